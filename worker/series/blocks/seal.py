"""Writes samples into blocks, by time window, and in slices of series so that other threads need not wait."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from shared.histograms.references import used_only
from shared.promql.model import Samples
from worker.series.arena import BEFORE, NEVER
from worker.series.blocks.block import BlockRow
from worker.series.blocks.chunks import CHUNK_SAMPLES
from worker.series.blocks.histograms import CHUNK_NUMBERS
from worker.series.blocks.layers import Slab
from worker.series.blocks.writer import BlockWriter
from worker.series.pieces import Piece, between, join
from worker.storage.faces import Objects

WINDOWS_MAX = 32
"""Blocks that are written at the same time. If samples are scattered over more windows, the windows with the most
samples still get a block each, and the others share wider blocks."""
WIDER = 4
SLICE_CHUNKS = 2
"""Chunks' worth of samples gathered at a time: steps of about a millisecond, between which other threads get their
turn."""
CHUNK_BYTES = 16 * CHUNK_SAMPLES + 8 * CHUNK_NUMBERS
"""The approximate maximum memory of a chunk."""

Ids = NDArray[np.int64]


class Stopped(Exception):
    """The shard is closing; unfinished work is abandoned."""


class _TooManyWindows(Exception):
    pass


def slices(shares: NDArray[np.float64]) -> list[slice]:
    """Consecutive slices of n series, each with at most SLICE_CHUNKS chunks' worth of samples, or a single series.
    `shares`, float64[n]: how many chunks the samples of each series take."""
    ends = np.cumsum(shares)
    parts, first, chunks_before = list[slice](), 0, 0.0
    while first < len(shares):
        last = max(first + 1, int(np.searchsorted(ends, chunks_before + SLICE_CHUNKS, side="right")))
        parts.append(slice(first, last))
        first, chunks_before = last, ends[last - 1]
    return parts


def even_shares(series: int, samples: int, size_bytes: int) -> NDArray[np.float64]:
    """The shares of series that are assumed to have the same number of samples."""
    return np.full(series, max(samples / CHUNK_SAMPLES, size_bytes / CHUNK_BYTES) / max(series, 1))


def write_blocks(
    objects: Objects,
    generation: int,
    read: Callable[[slice], Samples],
    permanent: Ids,
    parts: Sequence[slice],
    *,
    window_ms: int | None,
    before_ms: int,
    cleaned: int,
    stopped: Callable[[], bool],
    announce: Callable[[Sequence[str]], None],
) -> tuple[list[BlockRow], list[tuple[slice, Samples]]]:
    """Write blocks of samples. Returns (rows of the blocks, which are synced and have their final names on disk; the
    samples with t ≥ before_ms, one entry for each slice that has any).

    `permanent`: int64[n], the ids of the series in the order in which they are written; `read` returns the samples of a
    slice of them; `parts` are all slices. If `window_ms` is None, all samples go into one block. `announce` is called
    with the names before objects get them. Raises OSError, Stopped, or what `read` or `announce` raises; then no object
    is left behind.
    """
    cells = Cells(window_ms)
    while True:
        windows = _Windows(objects, generation, cells, before_ms, cleaned)
        try:
            for part in parts:
                if stopped():
                    raise Stopped
                windows.add(part, permanent[part], read(part))
            rows = windows.sync()
            announce([row.name for row in rows])
            windows.publish()
            objects.sync_names()
            return rows, windows.young
        except _TooManyWindows:
            windows.abandon()
            times = (read(part).timestamps_ms for part in parts)
            cells = cells.fewer(times_ms[times_ms < before_ms] for times_ms in times)
        except BaseException:
            windows.abandon()
            raise


class Cells:
    """Decides which samples share a block: those of one window, or, among the windows that are not `apart`, those of
    one window that is `wider` times as wide."""

    def __init__(self, window_ms: int | None, apart: Ids | None = None, wider: int = 1) -> None:
        self._window_ms = window_ms
        self._apart = apart
        self._wider = wider

    def of(self, times_ms: Ids) -> Ids:
        """int64[n]: a number for the block of each sample."""
        if self._window_ms is None:
            return np.zeros(len(times_ms), dtype=np.int64)
        windows = times_ms // self._window_ms
        if self._apart is None:
            return windows
        return np.where(np.isin(windows, self._apart), 2 * windows + 1, 2 * (windows // self._wider))

    def parts(self, samples: Samples) -> Iterator[tuple[int, Samples]]:
        """(the number of a block, its samples), for each block that has some. The series ascend in time, and there is
        at least one sample."""
        times_ms = samples.timestamps_ms
        first, last = self.of(np.array([times_ms.min(), times_ms.max()])).tolist()
        if self._apart is not None or last - first >= WINDOWS_MAX:
            cells = self.of(times_ms)
            for cell in np.unique(cells).tolist():
                yield cell, _chosen(samples, cells == cell)
        elif first == last:
            yield first, samples
        else:
            assert self._window_ms is not None
            for window in range(first, last + 1):
                begin_ms = window * self._window_ms
                part = between(samples, begin_ms, begin_ms + self._window_ms - 1)
                if len(part.timestamps_ms):
                    yield window, part

    def fewer(self, times_ms: Iterable[Ids]) -> Cells:
        """Cells for these samples, which are in more than WINDOWS_MAX windows: the windows with the most samples still
        have a block each, and the others share wider ones."""
        assert self._window_ms is not None and self._apart is None
        counted = [np.unique(times // self._window_ms, return_counts=True) for times in times_ms]
        windows, at = np.unique(np.concatenate([windows for windows, _ in counted]), return_inverse=True)
        counts = np.bincount(at, weights=np.concatenate([counts for _, counts in counted]))
        order = np.argsort(counts, kind="stable")  # of windows with equal counts, the latest have a block each
        apart, others = order[-(WINDOWS_MAX // 2) :], order[: -(WINDOWS_MAX // 2)]
        wider = WIDER
        while len(np.unique(windows[others] // wider)) > WINDOWS_MAX // 2:
            wider *= WIDER
        return Cells(self._window_ms, np.sort(windows[apart]), wider)


class _Windows:
    """The writers of the blocks that are being written, one for each cell, and the samples that are too recent."""

    def __init__(self, objects: Objects, generation: int, cells: Cells, before_ms: int, cleaned: int) -> None:
        self._objects = objects
        self._generation = generation
        self._cells = cells
        self._before_ms = before_ms
        self._cleaned = cleaned
        self._writers: dict[int, BlockWriter] = {}
        self.young: list[tuple[slice, Samples]] = []

    def add(self, part: slice, ids: Ids, samples: Samples) -> None:
        """Write the samples of a slice of the series; `ids` are their permanent ids."""
        if samples.timestamps_ms.max(initial=BEFORE) >= self._before_ms:
            young = between(samples, self._before_ms, NEVER)
            young.values, young.histograms = used_only(young.values, young.histograms)
            self.young.append((part, young))
            samples = between(samples, BEFORE + 1, self._before_ms - 1)
        if len(samples.timestamps_ms):
            for window, window_samples in self._cells.parts(samples):
                self._write(window, ids, window_samples)

    def _write(self, window: int, ids: Ids, samples: Samples) -> None:
        writer = self._writers.get(window)
        if writer is None:
            if len(self._writers) == WINDOWS_MAX:
                raise _TooManyWindows
            writer = self._writers[window] = BlockWriter(self._objects, self._generation, self._cleaned)
        counts = np.diff(samples.offsets)
        non_empty = np.flatnonzero(counts)
        writer.add(
            ids[non_empty],
            counts[non_empty],
            samples.timestamps_ms,
            samples.values,
            samples.start_timestamps_ms,
            samples.histograms,
        )

    def sync(self) -> list[BlockRow]:
        return [writer.sync() for _, writer in sorted(self._writers.items())]

    def publish(self) -> None:
        for writer in self._writers.values():
            writer.publish()

    def abandon(self) -> None:
        for writer in self._writers.values():
            writer.abandon()


def _chosen(samples: Samples, is_chosen: NDArray[np.bool_]) -> Samples:
    """The samples where `is_chosen` (bool[m]), with the same batch."""
    start_times = samples.start_timestamps_ms
    return Samples(
        np.concatenate(([0], np.cumsum(is_chosen)))[samples.offsets],
        samples.timestamps_ms[is_chosen],
        samples.values[is_chosen],
        None if start_times is None else start_times[is_chosen],
        samples.histograms,
    )


def slab_of(young: list[tuple[slice, Samples]], ids: Ids, series: int) -> Slab | None:
    """The samples that `write_blocks` returned as too recent, as a slab of all series below `series`; None if there are
    none. `ids`: int64[n], the series in the order in which they were written."""
    if not young:
        return None
    return Slab(join([Piece.of(samples, ids[part]) for part, samples in young], series))
