"""Blocks: the sealed samples of a time range, in one immutable file each, found by series and time.

A file has the chunks, one after another, and then the directory. For every run of samples, the directory has its
series, its number of samples, its earliest and latest time, and its chunk. The row that makes a file a block is in the
shard's store (`BlockRow`). It has the directory's position and checksum, and the directory has the checksums of the
chunks. Opening a block reads nothing.

Blocks are files instead of rows of the store because a file is written once, whereas the store writes its log, a table,
and that table again at each of its own compactions (see docs/internals/metrics.md for the figures).
"""

from __future__ import annotations

import struct
import weakref
from collections.abc import Callable, Iterable
from functools import partial

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from shared.errors import Unavailable
from shared.histograms.batch import Ints
from shared.process.array_memory import uncounted
from worker.series.blocks import sections
from worker.series.blocks.cache import DecodedCache
from worker.series.blocks.chunks import CHUNK_SAMPLES
from worker.series.blocks.deletions import Deleted
from worker.series.blocks.directory import Directory, decode_directory
from worker.series.blocks.paged_chunk import PagedChunk
from worker.series.blocks.sections import Chunk
from worker.series.blocks.stored_runs import StoredRuns
from worker.series.pieces import Part, Piece
from worker.storage.faces import NotOpened, Objects

SUFFIX = ".block"
"""The suffix of a block's object name, after the name in its row."""


class CorruptBlock(Exception):
    """A block's file is not as it was written."""

    def __init__(self, block: Block, reason: str) -> None:
        super().__init__(f"block {block.row.name}: {reason}")
        self.block = block
        self.reason = reason


class BlockRow(msgspec.Struct, frozen=True):
    """A block as its row in the store describes it. It holds samples of the journal's records before `generation`,
    without the samples that a deletion before `generation` deleted. Where two blocks have samples with equal times,
    those of the higher generation win."""

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
    """An open block. After `condemn`, its file is deleted once no reader uses the block."""

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
        return self.cached_directory() or self.read_directory()

    def cached_directory(self) -> Directory | None:
        """The decoded directory if it is in the cache."""
        return self._cache.get(self.row.name)

    def read_directory(self) -> Directory:
        """Decode the directory and put it in the cache. Raises CorruptBlock, Unavailable."""
        with uncounted():
            return self._read_directory()

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
        rows, runs = directory.find(ids, start_ms, end_ms)
        earliest, latest = directory.earliest[runs], directory.latest[runs]
        is_certain = ((earliest >= start_ms) & (earliest <= end_ms)) | ((latest >= start_ms) & (latest <= end_ms))
        has_samples = np.zeros(len(ids), dtype=np.bool_)
        has_samples[rows[is_certain]] = True
        open_runs = np.flatnonzero((earliest < start_ms) & (latest > end_ms) & ~has_samples[rows])
        if not len(open_runs):
            return has_samples
        rows, runs = rows[open_runs], runs[open_runs]
        chunk = np.searchsorted(directory.chunk_runs, runs, side="right") - 1
        order = np.argsort(chunk, kind="stable")
        for in_chunk in np.split(order, np.flatnonzero(np.diff(chunk[order])) + 1):
            check()
            number = int(chunk[in_chunk[0]])
            has_times = self._between(directory, number, start_ms, end_ms)
            has_samples[rows[in_chunk[has_times[runs[in_chunk] - directory.chunk_runs[number]]]]] = True
        return has_samples

    def may_have(
        self,
        ids: NDArray[np.int64],
        start_ms: int,
        end_ms: int,
        deletions: Iterable[Deleted],
    ) -> NDArray[np.bool_]:
        """bool[n]: which series may have samples with start ≤ t ≤ end in this block, after `deletions` are applied.
        Raises CorruptBlock, Unavailable."""
        directory = self.directory()
        rows, runs = directory.find(ids, start_ms, end_ms)
        earliest, latest = directory.earliest[runs], directory.latest[runs]
        is_left = np.ones(len(runs), dtype=np.bool_)
        for is_deleted, first_ms, last_ms in deletions:
            is_covered = (np.maximum(earliest, start_ms) >= first_ms) & (np.minimum(latest, end_ms) <= last_ms)
            is_left &= ~(is_deleted[rows] & is_covered)
        has_samples = np.zeros(len(ids), dtype=np.bool_)
        has_samples[rows[is_left]] = True
        return has_samples

    def pieces(
        self, ids: NDArray[np.int64], start_ms: int, end_ms: int, directory: Directory | None = None
    ) -> list[Part]:
        """The samples of the distinct series `ids` with start ≤ t ≤ end; row i is ids[i]. `directory`: the block's, or
        an extract that has the runs of these series. Raises CorruptBlock, Unavailable; so may the parts, when their
        samples are decoded."""
        directory = directory or self.directory()
        rows, runs = directory.find(ids, start_ms, end_ms)
        if not len(runs):
            return []
        parts: list[Part] = []
        for chunk, chunk_rows, chunk_runs in directory.by_chunk(rows, runs):
            parts += self._of_chunk(directory, chunk, chunk_rows, chunk_runs, start_ms, end_ms)
        return parts

    def _of_chunk(
        self, directory: Directory, number: int, rows: Ints, runs: Ints, start_ms: int, end_ms: int
    ) -> list[Part]:
        """The samples of `runs`, which ascend and are in one chunk, with start ≤ t ≤ end. Only runs that are partly in
        the range are decoded here. Parts with the same row are in order of time."""
        chunk = self.opened(directory, number)
        is_clipped = not (start_ms <= self.row.earliest_ms and self.row.latest_ms <= end_ms)
        if isinstance(chunk, Chunk):
            base = directory.before[directory.chunk_runs[number]]
            starts, ends = directory.before[runs] - base, directory.before[runs + 1] - base
            piece = Piece(chunk.times_ms, chunk.values, rows, starts, ends, chunk.start_timestamps_ms, chunk.histograms)
            return [piece.clipped(start_ms, end_ms) if is_clipped else piece]
        stored = StoredRuns.of(chunk, partial(self.undecodable, number), rows, runs - int(directory.chunk_runs[number]))
        if not is_clipped:
            return [stored]
        begins_before, ends_after = directory.earliest[runs] < start_ms, directory.latest[runs] > end_ms
        parts: list[Part] = []
        for is_partial in (begins_before, ends_after & ~begins_before):
            if is_partial.any():
                parts.append(stored.only(is_partial).decoded().clipped(start_ms, end_ms))
        is_inside = ~begins_before & ~ends_after
        if is_inside.any():
            parts.insert(1 if begins_before.any() else 0, stored.only(is_inside))
        return parts

    def missing(self) -> str:
        """Why the file cannot be what was written, judged by its size only; "" if it may be."""
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
        chunk = self.opened(directory, number)
        if isinstance(chunk, Chunk):
            return chunk
        try:
            return sections.decode_paged(chunk)
        except ValueError as error:
            raise self.undecodable(number, error) from error

    def undecodable(self, number: int, error: Exception) -> CorruptBlock:
        """The error for a chunk that cannot be decoded."""
        return CorruptBlock(self, f"chunk {number} cannot be decoded: {error}")

    def opened(self, directory: Directory, number: int) -> Chunk | PagedChunk:
        """A chunk from the cache or the file, decoded unless it has pages. Raises CorruptBlock, Unavailable."""
        assert 0 <= number < len(directory.chunk_hashes)
        key = (self.row.name, number)
        opened = self._cache.get(key)
        if opened is None:
            with uncounted():
                opened = self._open_chunk(directory, number)
            self._cache.put(key, opened, opened.nbytes)
        return opened

    def _open_chunk(self, directory: Directory, number: int) -> Chunk | PagedChunk:
        data = self._chunk_bytes(directory, number)
        runs = slice(*directory.chunk_runs[number : number + 2].tolist())
        # Copies: a chunk in the cache must not keep the directory, or the extract of a query, in memory.
        counts, firsts = directory.counts[runs].astype(np.int64), directory.earliest[runs].copy()
        try:
            return sections.opened(data, counts, firsts, self._cache)
        except (ValueError, struct.error) as error:
            raise self.undecodable(number, error) from error

    def _between(self, directory: Directory, number: int, start_ms: int, end_ms: int) -> NDArray[np.bool_]:
        """bool[runs of the chunk]: which runs have a time with start ≤ t ≤ end. The decoded times are not cached."""
        runs = slice(*directory.chunk_runs[number : number + 2].tolist())
        data = self._chunk_bytes(directory, number)
        counts, firsts = directory.counts[runs].astype(np.int64), directory.earliest[runs]
        try:
            return sections.between(data, counts, firsts, start_ms, end_ms)
        except (ValueError, struct.error) as error:
            raise self.undecodable(number, error) from error

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
