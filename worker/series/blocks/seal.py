"""Writes samples into blocks, by time window and in slices of series, so that other threads do not have to wait."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from shared.promql.model import Samples
from worker.series.blocks.block import BlockRow, BlockWriter
from worker.series.blocks.layers import Slab
from worker.series.pieces import Piece, join
from worker.storage.faces import Objects

WINDOWS_MAX = 32
"""Blocks written at the same time. If samples are scattered over more windows, the windows with the most samples still
get a block each, and the others share wider blocks."""
WIDER = 4
SLICE_SAMPLES = 1 << 17
"""Samples gathered at a time: steps of less than a millisecond, between which other threads get their turn."""

Ids = NDArray[np.int64]


class Stopped(Exception):
    """The shard is closing; unfinished work is abandoned."""


class _TooManyWindows(Exception):
    pass


def slices(series: int, samples: int) -> Iterator[slice]:
    """Consecutive slices of the series, each with about SLICE_SAMPLES samples if all series have the same number."""
    step = max(1, SLICE_SAMPLES * series // max(samples, 1))
    for first in range(0, series, step):
        yield slice(first, min(first + step, series))


def write_blocks(
    objects: Objects,
    generation: int,
    read: Callable[[slice], Samples],
    permanent: Ids,
    samples: int,
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
    slice of them; `samples` is the approximate number of all samples. If `window_ms` is None, all samples go into one
    block. `announce` is called with the names before objects get them. Raises OSError, Stopped, or what `read` or
    `announce` raises; then no object is left behind.
    """
    cells = Cells(window_ms)
    while True:
        windows = _Windows(objects, generation, cells, before_ms, cleaned)
        try:
            for part in slices(len(permanent), samples):
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
            times = (read(part).timestamps_ms for part in slices(len(permanent), samples))
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

    def fewer(self, times_ms: Iterable[Ids]) -> Cells:
        """Cells for samples in more than WINDOWS_MAX windows, which these are: the windows with the most samples still
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
        times, values, lengths = samples.timestamps_ms, samples.values, np.diff(samples.offsets)
        rows = np.repeat(np.arange(len(ids)), lengths)
        is_old = times < self._before_ms
        if not is_old.all():
            is_young = ~is_old
            counts = np.bincount(rows[is_young], minlength=len(ids))
            offsets = np.concatenate(([0], np.cumsum(counts)))
            self.young.append((part, Samples(offsets, times[is_young], values[is_young])))
            rows, times, values = rows[is_old], times[is_old], values[is_old]
        if not len(times):
            return
        windows = self._cells.of(times)
        if windows.min() == windows.max():
            self._write(int(windows[0]), ids, rows, times, values)
            return
        for window in np.unique(windows).tolist():
            in_window = windows == window
            self._write(window, ids, rows[in_window], times[in_window], values[in_window])

    def _write(self, window: int, ids: Ids, rows: Ids, times: Ids, values: NDArray[np.float64]) -> None:
        assert len(rows) == len(times) == len(values)
        writer = self._writers.get(window)
        if writer is None:
            if len(self._writers) == WINDOWS_MAX:
                raise _TooManyWindows
            writer = self._writers[window] = BlockWriter(self._objects, self._generation, self._cleaned)
        counts = np.bincount(rows, minlength=len(ids))
        present = np.flatnonzero(counts)
        writer.add(ids[present], counts[present], times, values)

    def sync(self) -> list[BlockRow]:
        return [writer.sync() for _, writer in sorted(self._writers.items())]

    def publish(self) -> None:
        for writer in self._writers.values():
            writer.publish()

    def abandon(self) -> None:
        for writer in self._writers.values():
            writer.abandon()


def slab_of(young: list[tuple[slice, Samples]], ids: Ids, series: int) -> Slab | None:
    """The samples that `write_blocks` returned as too recent, as a slab of all series below `series`; None if there are
    none. `ids`: int64[n], the series in the order in which they were written."""
    if not young:
        return None
    pieces = []
    for part, samples in young:
        piece = Piece.of(samples)
        piece.rows = ids[part]
        pieces.append(piece)
    return Slab(join(pieces, series))
