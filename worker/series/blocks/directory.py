"""The directory of a block: where the samples of each series and time range are in the block's file."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import DTypeLike, NDArray
from pcodec import ChunkConfig, standalone

from shared.histograms.batch import INTS, Ints
from shared.kernels import kernel, types
from worker.series.blocks.chunks import CHUNK_SAMPLES
from worker.series.blocks.compression import decompressed_into

ID_MAX = int(np.iinfo(np.int32).max)
"""The directory has ids as int32."""


TIME_MIN, TIME_MAX = np.iinfo(np.int64).min, np.iinfo(np.int64).max


@kernel(
    types.int64(
        types.Array(types.int32, 1, "C", readonly=True), INTS, INTS, INTS, INTS, types.int64, types.int64,
        types.int64[::1], types.int64[::1],
    ),
    allocates=False,
)  # fmt: skip
def _find(
    sorted_ids: NDArray[np.int32],
    order: Ints,
    earliest: Ints,
    latest: Ints,
    ids: Ints,
    start_ms: int,
    end_ms: int,
    rows: Ints,
    runs: Ints,
) -> int:
    """Fill `rows` and `runs` with what `Directory.find` returns, as far as there is room. Returns how many there
    are."""
    count = 0
    for row in range(len(ids)):
        low, high = 0, len(sorted_ids)
        while low < high:
            middle = (low + high) >> 1
            if sorted_ids[middle] < ids[row]:
                low = middle + 1
            else:
                high = middle
        while low < len(sorted_ids) and sorted_ids[low] == ids[row]:
            run = order[low]
            if earliest[run] <= end_ms and latest[run] >= start_ms:
                if count < len(runs):
                    rows[count], runs[count] = row, run
                count += 1
            low += 1
    return count


@kernel(types.int64(INTS, INTS, types.int64[::1], types.int64[::1]), allocates=False)
def _cut_by_chunk(runs: Ints, chunk_runs: Ints, chunks: Ints, ends: Ints) -> int:
    """Fill `chunks` with the chunks that have these runs, and `ends` with where the runs of each end. Returns the
    number of chunks, or −1 if the runs do not ascend."""
    cuts, chunk_end = 0, chunk_runs[0]
    for i in range(len(runs)):
        if i > 0 and runs[i] < runs[i - 1]:
            return -1
        if runs[i] >= chunk_end:
            low, high = 0, len(chunk_runs) - 1
            while high - low > 1:
                middle = (low + high) >> 1
                if chunk_runs[middle] <= runs[i]:
                    low = middle
                else:
                    high = middle
            chunks[cuts], chunk_end = low, chunk_runs[low + 1]
            cuts += 1
        ends[cuts - 1] = i + 1
    return cuts


@dataclass(frozen=True, slots=True)
class Directory:
    """The runs in the order of the file: `ids` and `counts` int32[runs], `earliest` and `latest` int64[runs] in Unix
    ms. Chunk c has the runs chunk_runs[c]:chunk_runs[c + 1] and the bytes chunk_at[c]:chunk_at[c + 1]. `order`
    int64[runs] sorts the runs by id and leaves the runs of one series in order of time; `sorted_ids` = ids[order];
    `before` int64[runs + 1]: the number of samples before each run."""

    ids: NDArray[np.int32]
    counts: NDArray[np.int32]
    earliest: NDArray[np.int64]
    latest: NDArray[np.int64]
    chunk_runs: NDArray[np.int64]
    chunk_at: NDArray[np.int64]
    chunk_hashes: NDArray[np.uint64]
    order: NDArray[np.int64]
    sorted_ids: NDArray[np.int32]
    before: NDArray[np.int64]

    @property
    def size_bytes(self) -> int:
        return sum(int(getattr(self, name).nbytes) for name in self.__slots__)

    def find(
        self, ids: NDArray[np.int64], start_ms: int = TIME_MIN, end_ms: int = TIME_MAX
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(rows, runs), int64 each: the runs of every series ids[row] that begin at or before `end_ms` and end at or
        after `start_ms`, ascending by row and then by time."""
        room = len(ids)  # most series have one run
        while True:
            rows, runs = np.empty(room, np.int64), np.empty(room, np.int64)
            room = _find(self.sorted_ids, self.order, self.earliest, self.latest, ids, start_ms, end_ms, rows, runs)
            if room <= len(rows):
                return rows[:room], runs[:room]

    def first_chunks(self, ids: Ints, start_ms: int, end_ms: int, runs_max: int) -> tuple[int, int, Ints]:
        """(n, the number of runs of all these chunks, the chunks with the runs that `find` returns for ids[:n]), where
        n is as large as `runs_max` runs allow."""
        rows, runs = self.find(ids, start_ms, end_ms)
        chunks, first_at = np.unique(self._chunks_of(runs), return_index=True)
        by_row = np.argsort(first_at)
        chunks, first_at = chunks[by_row], first_at[by_row]
        runs_before = _bounds(np.diff(self.chunk_runs)[chunks])
        kept_chunks = int(np.searchsorted(runs_before, runs_max, side="right")) - 1
        covered = len(ids) if kept_chunks == len(chunks) else int(rows[first_at[kept_chunks]])
        return covered, int(runs_before[kept_chunks]), chunks[:kept_chunks]

    def extract(self, chunks: Ints) -> Directory:
        """A directory that has only these chunks, with all their runs. The chunks keep their numbers; the others are
        empty."""
        sizes = np.diff(self.chunk_runs)
        is_kept = np.zeros(len(sizes), dtype=np.bool_)
        is_kept[chunks] = True
        kept_runs = np.flatnonzero(np.repeat(is_kept, sizes))
        columns: dict[str, NDArray] = {name: getattr(self, name) for name in COLUMNS}
        columns |= {name: columns[name][kept_runs] for name in ("ids", "counts", "earliest", "latest")}
        columns["chunk_runs"] = _bounds(np.where(is_kept, sizes, 0))
        return _indexed(columns, _bounds(columns["counts"]))

    def by_chunk(self, rows: Ints, runs: Ints) -> Iterator[tuple[int, Ints, Ints]]:
        """(chunk, its rows, its runs) for each chunk that has some of these runs, in the order of the file. The runs of
        a chunk ascend, and those of one series stay in order of time."""
        room = min(len(runs), len(self.chunk_hashes))
        chunks, ends = np.empty(room, np.int64), np.empty(room, np.int64)
        count = _cut_by_chunk(runs, self.chunk_runs, chunks, ends)
        if count < 0:
            by_place = np.argsort(runs, kind="stable")
            rows, runs = rows[by_place], runs[by_place]
            count = _cut_by_chunk(runs, self.chunk_runs, chunks, ends)
        first = 0
        for chunk, last in zip(chunks[:count].tolist(), ends[:count].tolist(), strict=True):
            yield chunk, rows[first:last], runs[first:last]
            first = last

    def chunk_shares(self, ids: NDArray[np.int64]) -> NDArray[np.float64]:
        """float64[n]: how many chunks the samples of each series fill, such as 1.5 for a chunk and a half. A chunk is
        bounded in bytes, so this bounds the bytes that are decoded for a series."""
        chunk_samples = np.diff(self.before[self.chunk_runs])
        rows, runs = self.find(ids)
        shares = np.zeros(len(ids))
        np.add.at(shares, rows, self.counts[runs] / chunk_samples[self._chunks_of(runs)])
        return shares

    def _chunks_of(self, runs: Ints) -> Ints:
        """The chunk of each run."""
        return np.searchsorted(self.chunk_runs, runs, side="right") - 1


COLUMNS: dict[str, DTypeLike] = {
    "ids": np.int32,
    "counts": np.int32,
    "earliest": np.int64,
    "latest": np.int64,
    "chunk_runs": np.int64,
    "chunk_at": np.int64,
    "chunk_hashes": np.uint64,
}
"""The columns in the order of the file, with the type of their numbers."""
_SIZES = struct.Struct("<7I")
"""The compressed bytes of each column."""


def encode_directory(columns: dict[str, NDArray]) -> bytes:
    runs, chunk_count = len(columns["ids"]), len(columns["chunk_hashes"])
    assert runs == len(columns["counts"]) == len(columns["earliest"]) == len(columns["latest"])
    assert chunk_count == len(columns["chunk_runs"]) - 1 == len(columns["chunk_at"]) - 1
    assert columns["chunk_runs"][-1] == runs
    assert (columns["latest"] >= columns["earliest"]).all()
    # A run ends shortly after it begins: the difference compresses better than the latest time.
    return pack({**columns, "latest": columns["latest"] - columns["earliest"]})


def pack(columns: dict[str, NDArray]) -> bytes:
    """The columns as they are, compressed one after another."""
    packed = [standalone.simple_compress(columns[name], ChunkConfig()) for name in COLUMNS]
    return _SIZES.pack(*map(len, packed)) + b"".join(packed)


def decode_directory(data: bytes, samples: int, chunk_bytes: int) -> Directory:
    """The directory of a block with `samples` samples, in chunks of `chunk_bytes` bytes in total. Raises ValueError or
    struct.error if the bytes are not such a directory."""
    sizes = _SIZES.unpack_from(data)
    if _SIZES.size + sum(sizes) != len(data):
        raise ValueError(f"its columns have {sum(sizes)} bytes, and there are {len(data) - _SIZES.size}")
    columns: dict[str, NDArray] = {}
    at = _SIZES.size
    for (name, dtype), size in zip(COLUMNS.items(), sizes, strict=True):
        # Each run has a sample, and each chunk a run. The memory of an array that is not filled is never touched.
        out = np.empty(len(columns["ids"]) + 1 if columns else samples, dtype=dtype)
        columns[name] = out[: decompressed_into(data[at : at + size], out)].copy()
        at += size
    runs, chunk_count = len(columns["ids"]), len(columns["chunk_hashes"])
    lengths = [runs, runs, runs, runs, chunk_count + 1, chunk_count + 1, chunk_count]
    if [len(column) for column in columns.values()] != lengths:
        raise ValueError(f"its columns have {[len(column) for column in columns.values()]} numbers, not {lengths}")
    columns["latest"] += columns["earliest"]
    return _indexed(columns, _checked(columns, samples, chunk_bytes))


def _indexed(columns: dict[str, NDArray], before: Ints) -> Directory:
    order = np.argsort(columns["ids"], kind="stable")
    return Directory(**columns, order=order, sorted_ids=columns["ids"][order], before=before)


def _bounds(sizes: NDArray) -> Ints:
    """int64[n + 1]: where each of n consecutive parts of these sizes begins, and where the last one ends."""
    return np.concatenate(([0], np.cumsum(sizes, dtype=np.int64)))


def _checked(columns: dict[str, NDArray], samples: int, chunk_bytes: int) -> NDArray[np.int64]:
    """int64[runs + 1]: the number of samples before each run. Raises ValueError if the columns contradict each other,
    or are not those of a block with `samples` samples in chunks of `chunk_bytes` bytes in total."""
    ids, counts, earliest, latest, chunk_runs, chunk_at, _ = (columns[name] for name in COLUMNS)
    before = _bounds(counts)
    if before[-1] != samples:
        raise ValueError(f"it has {before[-1]} samples and its row {samples}")
    if ids.min() < 0 or counts.min() < 1 or (latest < earliest).any():
        raise ValueError("it has a run without samples, of no series, or that ends before it begins")
    for bounds, end, what in ((chunk_runs, len(ids), "runs"), (chunk_at, chunk_bytes, "bytes")):
        if bounds[0] != 0 or bounds[-1] != end or (bounds[1:] <= bounds[:-1]).any():
            raise ValueError(f"its chunks do not share its {end} {what}")
    largest = int(np.diff(before[chunk_runs]).max())
    if largest > CHUNK_SAMPLES:
        raise ValueError(f"it has a chunk of {largest} samples; the limit is {CHUNK_SAMPLES}")
    return before
