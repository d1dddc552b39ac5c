"""Blocks: the sealed samples of a stretch of time, in one immutable file each, found by series and time.

A file has the chunks, one after another, and then the directory. For every run of samples, the directory has its
series, its number of samples, its earliest and latest time, and its chunk. The row that makes a file a block is in the
shard's store (`BlockRow`). It has the directory's position and checksum, and the directory has the checksums of the
chunks. Opening a block reads nothing.

Blocks are files instead of rows of the store because a file is written once, whereas the store writes its log, a table,
and that table again at each of its own compactions (see docs/internals/metrics.md for the figures).
"""

from __future__ import annotations

import struct
import time
import weakref
from collections.abc import Callable, Sequence
from uuid import uuid4

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from shared.array_memory import uncounted
from shared.errors import Unavailable
from shared.histograms.batch import HistogramBatch
from worker.series.blocks import sections
from worker.series.blocks.cache import DecodedCache
from worker.series.blocks.chunks import CHUNK_SAMPLES
from worker.series.blocks.directory import Directory, decode_directory, encode_directory
from worker.series.blocks.histograms import CHUNK_NUMBERS
from worker.series.blocks.sections import Chunk, joined
from worker.series.pieces import Piece
from worker.storage.faces import NotOpened, Objects

SUFFIX = ".block"
"""The suffix of a block's object name, after the name in its row."""
ID_MAX = int(np.iinfo(np.int32).max)
"""The directory has ids as int32."""


class CorruptBlock(Exception):
    """A block's file is not as it was written."""

    def __init__(self, block: Block, reason: str) -> None:
        super().__init__(f"block {block.row.name}: {reason}")
        self.block = block
        self.reason = reason


class BlockRow(msgspec.Struct, frozen=True):
    """A block as its row in the store describes it. It holds samples of the journal's records before `generation`,
    without the samples that a deletion before `generation` deleted. Where two blocks have samples with equal times,
    those of the higher generation count."""

    name: str
    generation: int
    earliest_ms: int
    latest_ms: int
    series: int
    samples: int
    size_bytes: int
    directory_at: int
    directory_hash: int
    created_ms: int
    cleaned: int
    """Deletions before this sequence of the journal have been applied to the block, in addition to those before
    `generation`."""

    def __post_init__(self) -> None:
        """Raises ValueError if no block can have such a row."""
        if not self.name.isalnum() or not self.name.isascii():
            raise ValueError(f"{self.name!r} is no name of a block")
        most_samples = CHUNK_SAMPLES * self.directory_at
        if not 0 < self.samples <= most_samples or not 0 < self.directory_at < self.size_bytes:
            raise ValueError(
                f"block {self.name} has {self.samples} samples in {self.size_bytes} bytes, "
                f"and its directory begins at {self.directory_at}"
            )

    @property
    def deletions_from(self) -> int:
        """The sequence from which on deletions must be applied to samples read from the block."""
        return max(self.generation, self.cleaned)


class Block:
    """An open block. After `condemn`, its file is deleted once no reader uses the block any more."""

    def __init__(self, row: BlockRow, objects: Objects, cache: DecodedCache) -> None:
        self.row = row
        self.object_name = row.name + SUFFIX
        self._objects = objects
        self._cache = cache

    @property
    def location(self) -> str:
        """Where the block's file is, for messages."""
        return self._objects.location(self.object_name)

    def overlaps(self, start_ms: int, end_ms: int) -> bool:
        return self.row.earliest_ms <= end_ms and self.row.latest_ms >= start_ms

    def directory(self) -> Directory:
        """The decoded directory. Raises CorruptBlock, Unavailable."""
        decoded = self._cache.get(self.row.name)
        if decoded is None:
            with uncounted():
                decoded = self._read_directory()
        return decoded

    def _read_directory(self) -> Directory:
        row = self.row
        data = self._read(row.directory_at, row.size_bytes - row.directory_at, row.directory_hash, "directory")
        try:
            decoded = decode_directory(data, row.samples, row.directory_at)
        except (ValueError, struct.error) as error:
            raise CorruptBlock(self, f"its directory cannot be decoded: {error}") from error
        self._cache.put(row.name, decoded, decoded.size_bytes)
        return decoded

    def having(
        self, ids: NDArray[np.int64], start_ms: int, end_ms: int, check: Callable[[], None]
    ) -> NDArray[np.bool_]:
        """bool[n]: which series have samples with start ≤ t ≤ end in this block. The directory tells this for a run
        whose earliest or latest time is in the range; for a run that begins before the range and ends after it, the
        times are decoded, chunk by chunk. `check` is called before each chunk and may raise. Raises CorruptBlock,
        Unavailable."""
        directory = self.directory()
        rows, runs = directory.find(ids)
        earliest, latest = directory.earliest[runs], directory.latest[runs]
        inside = ((earliest >= start_ms) & (earliest <= end_ms)) | ((latest >= start_ms) & (latest <= end_ms))
        has_samples = np.zeros(len(ids), dtype=np.bool_)
        has_samples[rows[inside]] = True
        open_runs = np.flatnonzero((earliest < start_ms) & (latest > end_ms) & ~has_samples[rows])
        if not len(open_runs):
            return has_samples
        rows, runs = rows[open_runs], runs[open_runs]
        chunk = np.searchsorted(directory.chunk_runs, runs, side="right") - 1
        order = np.argsort(chunk, kind="stable")
        for in_chunk in np.split(order, np.flatnonzero(np.diff(chunk[order])) + 1):
            check()
            number = int(chunk[in_chunk[0]])
            has = self._between(directory, number, start_ms, end_ms)
            has_samples[rows[in_chunk[has[runs[in_chunk] - directory.chunk_runs[number]]]]] = True
        return has_samples

    def may_have(
        self,
        ids: NDArray[np.int64],
        start_ms: int,
        end_ms: int,
        deletions: Sequence[tuple[NDArray[np.bool_], int, int]],
    ) -> NDArray[np.bool_]:
        """bool[n]: which series may have samples with start ≤ t ≤ end in this block. `deletions`: (bool[n], which
        series are affected; the first and last deleted time in ms). Raises CorruptBlock, Unavailable."""
        directory = self.directory()
        rows, runs = directory.find(ids)
        earliest, latest = directory.earliest[runs], directory.latest[runs]
        inside = (earliest <= end_ms) & (latest >= start_ms)
        for is_deleted, first_ms, last_ms in deletions:
            whole = (np.maximum(earliest, start_ms) >= first_ms) & (np.minimum(latest, end_ms) <= last_ms)
            inside &= ~(is_deleted[rows] & whole)
        has_samples = np.zeros(len(ids), dtype=np.bool_)
        has_samples[rows[inside]] = True
        return has_samples

    def pieces(self, ids: NDArray[np.int64], start_ms: int, end_ms: int) -> list[Piece]:
        """The samples of the distinct series `ids` with start ≤ t ≤ end; row i is ids[i]. Raises CorruptBlock,
        Unavailable."""
        directory = self.directory()
        rows, runs = directory.find(ids)
        inside = (directory.earliest[runs] <= end_ms) & (directory.latest[runs] >= start_ms)
        rows, runs = rows[inside], runs[inside]
        if not len(runs):
            return []
        by_place = np.argsort(runs, kind="stable")
        rows, runs = rows[by_place], runs[by_place]
        chunk = np.searchsorted(directory.chunk_runs, runs, side="right") - 1
        cuts = np.flatnonzero(np.diff(chunk)) + 1
        pieces = []
        for first, last in zip([0, *cuts.tolist()], [*cuts.tolist(), len(runs)], strict=True):
            number, chunk_runs = int(chunk[first]), runs[first:last]
            chunk_samples = self.chunk(directory, number)
            base = directory.before[directory.chunk_runs[number]]
            starts, ends = directory.before[chunk_runs] - base, directory.before[chunk_runs + 1] - base
            piece = Piece(
                chunk_samples.times_ms, chunk_samples.values, rows[first:last], starts, ends,
                chunk_samples.start_timestamps_ms, chunk_samples.histograms,
            )  # fmt: skip
            whole = directory.earliest[chunk_runs].min() >= start_ms and directory.latest[chunk_runs].max() <= end_ms
            pieces.append(piece if whole else piece.clipped(start_ms, end_ms))
        return pieces

    def missing(self) -> str:
        """Why the file cannot be as it was written, judged by its size; "" if it may be."""
        try:
            size = self._objects.size(self.object_name)
        except OSError as error:
            return f"its file cannot be opened: {error.strerror}"
        if size < self.row.size_bytes:
            return f"its file has {size} of {self.row.size_bytes} bytes"
        return ""

    def condemn(self) -> None:
        """Delete the file when the last reader has released this block."""
        weakref.finalize(self, self._objects.delete, self.object_name)

    def chunk(self, directory: Directory, number: int) -> Chunk:
        """The samples of all runs of a chunk. Raises CorruptBlock, Unavailable."""
        assert 0 <= number < len(directory.chunk_hashes)
        key = (self.row.name, number)
        decoded = self._cache.get(key)
        if decoded is None:
            with uncounted():
                decoded = self._read_chunk(directory, number)
            self._cache.put(key, decoded, decoded.nbytes)
        return decoded

    def _read_chunk(self, directory: Directory, number: int) -> Chunk:
        data = self._chunk_bytes(directory, number)
        runs = slice(*directory.chunk_runs[number : number + 2].tolist())
        try:
            return sections.decode(data, directory.counts[runs].astype(np.int64), directory.earliest[runs])
        except (ValueError, struct.error) as error:
            raise CorruptBlock(self, f"chunk {number} cannot be decoded: {error}") from error

    def _between(self, directory: Directory, number: int, start_ms: int, end_ms: int) -> NDArray[np.bool_]:
        """bool[runs of the chunk]: which runs have a time with start ≤ t ≤ end. The decoded times are not cached."""
        runs = slice(*directory.chunk_runs[number : number + 2].tolist())
        data = self._chunk_bytes(directory, number)
        counts, firsts = directory.counts[runs].astype(np.int64), directory.earliest[runs]
        try:
            return sections.between(data, counts, firsts, start_ms, end_ms)
        except (ValueError, struct.error) as error:
            raise CorruptBlock(self, f"chunk {number} cannot be decoded: {error}") from error

    def _chunk_bytes(self, directory: Directory, number: int) -> bytes:
        at, end = directory.chunk_at[number : number + 2].tolist()
        return self._read(at, end - at, int(directory.chunk_hashes[number]), f"chunk {number}")

    def _read(self, at: int, size: int, checksum: int, what: str) -> bytes:
        """The bytes at:at + size of the file, checked against their xxh64. `what` names them in errors. Raises
        CorruptBlock, Unavailable if the file cannot be opened at the moment."""
        try:
            data = self._objects.read(self.object_name, at, size)
        except NotOpened as error:
            if error.is_passing:
                raise Unavailable(f"block {self.row.name} cannot be opened: {error.strerror}") from error
            raise CorruptBlock(self, f"its file cannot be opened: {error.strerror}") from error
        except OSError as error:
            raise CorruptBlock(self, f"its {what} cannot be read: {error.strerror}") from error
        if len(data) != size or xxhash.xxh64_intdigest(data) != checksum:
            raise CorruptBlock(self, f"the checksum of its {what} is wrong")
        return data


class BlockWriter:
    """Writes one block's object. Until `publish` it is a draft, which the next start deletes."""

    def __init__(self, objects: Objects, generation: int, cleaned: int = 0) -> None:
        self._name = uuid4().hex
        self._generation = generation
        self._cleaned = cleaned
        self._draft = objects.draft(self._name + SUFFIX)
        self._ids: list[NDArray] = []
        self._counts: list[NDArray] = []
        self._samples: list[Chunk] = []
        self._buffered = self._buffered_numbers = 0
        self._columns: dict[str, list[NDArray]] = {name: [] for name in ("ids", "counts", "earliest", "latest")}
        self._chunk_runs = [0]
        self._chunk_at = [0]
        self._chunk_hashes: list[int] = []

    def add(
        self,
        ids: NDArray[np.int64],
        counts: NDArray[np.int64],
        times_ms: NDArray[np.int64],
        values: NDArray[np.float64],
        start_timestamps_ms: NDArray[np.int64] | None = None,
        histograms: HistogramBatch | None = None,
    ) -> None:
        """Append runs of samples: counts[i] ≥ 1 samples of series ids[i], one run after another, ascending in time.
        Copies those rows of `histograms` that the values refer to, unless they are all. Raises OSError."""
        assert len(ids) == len(counts) and len(times_ms) == len(values)
        samples = Chunk(times_ms, values, start_timestamps_ms, histograms)
        if histograms is not None:
            samples = samples.samples(0, len(values))
            self._buffered_numbers += int(samples.numbers().sum())
        self._ids.append(ids)
        self._counts.append(counts)
        self._samples.append(samples)
        self._buffered += len(times_ms)
        if self._buffered >= CHUNK_SAMPLES or self._buffered_numbers >= CHUNK_NUMBERS:
            self._flush(full_only=True)

    def finish(self) -> BlockRow:
        """Call `sync` and `publish`, and return the block's row."""
        row = self.sync()
        self.publish()
        return row

    def publish(self) -> None:
        """Give the object its final name, which a row may then contain. The name is not durable yet: see
        `Objects.sync_names`. Raises OSError."""
        self._draft.publish()

    def sync(self) -> BlockRow:
        """Write the rest, and return the block's row. When this returns, the object's content is on disk. Raises
        OSError."""
        if self._buffered:
            self._flush()
        assert not self._buffered
        columns = {name: np.concatenate(arrays) for name, arrays in self._columns.items()}
        packed = encode_directory(
            {
                **columns,
                "chunk_runs": np.array(self._chunk_runs, dtype=np.int64),
                "chunk_at": np.array(self._chunk_at, dtype=np.int64),
                "chunk_hashes": np.array(self._chunk_hashes, dtype=np.uint64),
            }
        )
        self._draft.write(packed)
        self._draft.finish()
        at = self._chunk_at[-1]
        return BlockRow(
            name=self._name,
            generation=self._generation,
            earliest_ms=int(columns["earliest"].min()),
            latest_ms=int(columns["latest"].max()),
            series=len(np.unique(columns["ids"])),
            samples=int(columns["counts"].sum(dtype=np.int64)),
            size_bytes=at + len(packed),
            directory_at=at,
            directory_hash=xxhash.xxh64_intdigest(packed),
            created_ms=int(time.time() * 1000),
            cleaned=self._cleaned,
        )

    def abandon(self) -> None:
        """Delete the object, finished or not."""
        self._draft.abandon()

    def _flush(self, *, full_only: bool = False) -> None:
        """Write the buffered samples as chunks, and split runs where a chunk is full. Keep the samples after the last
        full chunk if `full_only`."""
        ids, counts, samples = np.concatenate(self._ids), np.concatenate(self._counts), joined(self._samples)
        ends = np.cumsum(counts)
        assert 0 < self._buffered == ends[-1] == len(samples.times_ms) == len(samples.values)
        numbers = samples.numbers()
        chunk_ends = _full_chunks(numbers)
        if not full_only and chunk_ends[-1:] != [self._buffered]:
            chunk_ends.append(self._buffered)
        run_ends = np.union1d(ends, np.array(chunk_ends, np.int64))
        run_ids = ids[np.searchsorted(ends, run_ends, side="left")]
        lengths = np.diff(run_ends, prepend=0)
        first = start = 0
        for end in chunk_ends:
            last = int(np.searchsorted(run_ends, end)) + 1
            self._write_chunk(run_ids[first:last], lengths[first:last], samples.samples(start, end))
            first, start = last, end
        self._ids, self._counts, self._samples = (
            [run_ids[first:]],
            [lengths[first:]],
            [samples.samples(start, ends[-1])],
        )
        self._buffered, self._buffered_numbers = int(ends[-1]) - start, int(numbers[start:].sum())

    def _write_chunk(self, ids: NDArray, counts: NDArray, samples: Chunk) -> None:
        assert 0 <= int(ids.min()) <= int(ids.max()) <= ID_MAX, "a permanent id that int32 would change"
        data = sections.encode(counts, samples)
        ends = np.cumsum(counts)
        self._columns["ids"].append(ids.astype(np.int32))
        self._columns["counts"].append(counts.astype(np.int32))
        self._columns["earliest"].append(samples.times_ms[ends - counts])
        self._columns["latest"].append(samples.times_ms[ends - 1])
        self._chunk_runs.append(self._chunk_runs[-1] + len(ids))
        self._chunk_at.append(self._chunk_at[-1] + len(data))
        self._chunk_hashes.append(xxhash.xxh64_intdigest(data))
        self._draft.write(data)


def _full_chunks(numbers: NDArray[np.int64]) -> list[int]:
    """Where the full chunks of these samples end: with CHUNK_SAMPLES samples, or with CHUNK_NUMBERS numbers of
    histograms. `numbers`, int64[n]: how many each sample has."""
    before = np.concatenate((np.zeros(1, np.int64), np.cumsum(numbers)))
    ends, start = list[int](), 0
    while True:
        full = int(np.searchsorted(before, before[start] + CHUNK_NUMBERS))
        end = min(start + CHUNK_SAMPLES, full)
        if end >= len(before):
            return ends
        ends.append(end)
        start = end
