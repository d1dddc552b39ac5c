"""Writes the file of one block."""

from __future__ import annotations

import time
from uuid import uuid4

import numpy as np
import xxhash
from numpy.typing import NDArray

from shared.histograms.batch import HistogramBatch
from worker.series.blocks import sections
from worker.series.blocks.block import SUFFIX, BlockRow
from worker.series.blocks.chunks import CHUNK_SAMPLES, RUN_SAMPLES_MAX
from worker.series.blocks.directory import ID_MAX, encode_directory
from worker.series.blocks.histograms import CHUNK_NUMBERS
from worker.series.blocks.sections import Chunk, joined
from worker.storage.faces import Objects


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
        Copies the rows of `histograms` that the values refer to, unless these are all rows. Raises OSError."""
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
        """Write what is still buffered and the directory, and return the block's row. When this returns, the object's
        content is on disk. Raises OSError."""
        if self._buffered:
            self._flush()
        assert not self._buffered
        columns = {name: np.concatenate(arrays) for name, arrays in self._columns.items()}
        directory = encode_directory(
            {
                **columns,
                "chunk_runs": np.array(self._chunk_runs, dtype=np.int64),
                "chunk_at": np.array(self._chunk_at, dtype=np.int64),
                "chunk_hashes": np.array(self._chunk_hashes, dtype=np.uint64),
            }
        )
        self._draft.write(directory)
        self._draft.finish()
        directory_at = self._chunk_at[-1]
        return BlockRow(
            name=self._name,
            generation=self._generation,
            earliest_ms=int(columns["earliest"].min()),
            latest_ms=int(columns["latest"].max()),
            series=len(np.unique(columns["ids"])),
            samples=int(columns["counts"].sum(dtype=np.int64)),
            size_bytes=directory_at + len(directory),
            directory_at=directory_at,
            directory_hash=xxhash.xxh64_intdigest(directory),
            created_ms=int(time.time() * 1000),
            cleaned=self._cleaned,
        )

    def abandon(self) -> None:
        """Delete the object, finished or not."""
        self._draft.abandon()

    def _flush(self, *, full_only: bool = False) -> None:
        """Write the buffered samples as chunks. Long runs are split, as are runs that cross the end of a chunk. If
        `full_only`, the samples after the last full chunk stay buffered."""
        ids, counts, samples = np.concatenate(self._ids), np.concatenate(self._counts), joined(self._samples)
        ends = np.cumsum(counts)
        assert 0 < self._buffered == ends[-1] == len(samples.times_ms) == len(samples.values)
        numbers = samples.numbers()
        chunk_ends = _full_chunks(numbers)
        if not full_only and chunk_ends[-1:] != [self._buffered]:
            chunk_ends.append(self._buffered)
        run_ends = _cut(np.union1d(ends, np.array(chunk_ends, np.int64)))
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


def _cut(run_ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """The ends of the runs after runs of more than RUN_SAMPLES_MAX samples have been cut."""
    lengths = np.diff(run_ends, prepend=0)
    cuts = (lengths - 1) // RUN_SAMPLES_MAX
    if not cuts.any():
        return run_ends
    begins = np.repeat(run_ends - lengths, cuts)
    number = np.arange(len(begins)) - np.repeat(np.cumsum(cuts) - cuts, cuts)
    return np.union1d(run_ends, begins + (number + 1) * RUN_SAMPLES_MAX)


def _full_chunks(numbers: NDArray[np.int64]) -> list[int]:
    """Where the full chunks of these samples end: with CHUNK_SAMPLES samples, or with CHUNK_NUMBERS numbers of
    histograms. `numbers`, int64[n]: how many each sample has."""
    numbers_before = np.concatenate((np.zeros(1, np.int64), np.cumsum(numbers)))
    ends, start = list[int](), 0
    while True:
        full = int(np.searchsorted(numbers_before, numbers_before[start] + CHUNK_NUMBERS))
        end = min(start + CHUNK_SAMPLES, full)
        if end >= len(numbers_before):
            return ends
        ends.append(end)
        start = end
