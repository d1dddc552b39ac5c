"""Writing samples into blocks: by time window, in slices of series, so that nothing waits for it."""

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
"""Blocks written at a time. Of samples scattered over more windows, those of the fullest ones get blocks of one window
all the same, and the few in each of the others share wider blocks."""
WIDER = 4
SLICE_SAMPLES = 1 << 17
"""Samples gathered at a time: steps of less than a millisecond between which other threads get their turn."""

Ids = NDArray[np.int64]


class Stopped(Exception):
    """The shard is closing; what was begun is abandoned."""


class _TooManyWindows(Exception):
    pass


def slices(series: int, samples: int) -> Iterator[slice]:
    """Of series in order, so that each has about SLICE_SAMPLES."""
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
    """(rows of the blocks, synced and named on the disk; what has t ≥ before_ms, slice by slice).

    `permanent` are the ids of the series in the order in which they are to be written, `read` gives the samples of a
    slice of them, `samples` says about how many there are. `window_ms` None: one block. `announce` is told the names
    before objects get them. Raises OSError, Stopped, or what `read` or `announce` raises, and leaves no object then.
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
    """Which samples share a block: those of one window, or, of the windows that are not `apart`, of `wider` windows."""

    def __init__(self, window_ms: int | None, apart: Ids | None = None, wider: int = 1) -> None:
        self._window_ms = window_ms
        self._apart = apart
        self._wider = wider

    def of(self, times_ms: Ids) -> Ids:
        """A number for the block of each sample."""
        if self._window_ms is None:
            return np.zeros(len(times_ms), dtype=np.int64)
        windows = times_ms // self._window_ms
        if self._apart is None:
            return windows
        return np.where(np.isin(windows, self._apart), 2 * windows + 1, 2 * (windows // self._wider))

    def fewer(self, times_ms: Iterable[Ids]) -> Cells:
        """Cells for samples in more than WINDOWS_MAX windows, as these are: the windows with the most samples have a
        block each, as they would have otherwise, and the others share wider ones."""
        assert self._window_ms is not None and self._apart is None
        counted = [np.unique(times // self._window_ms, return_counts=True) for times in times_ms]
        windows, at = np.unique(np.concatenate([windows for windows, _ in counted]), return_inverse=True)
        counts = np.bincount(at, weights=np.concatenate([counts for _, counts in counted]))
        order = np.argsort(counts, kind="stable")  # of equal ones the latest have a block each
        apart, others = order[-(WINDOWS_MAX // 2) :], order[: -(WINDOWS_MAX // 2)]
        wider = WIDER
        while len(np.unique(windows[others] // wider)) > WINDOWS_MAX // 2:
            wider *= WIDER
        return Cells(self._window_ms, np.sort(windows[apart]), wider)


class _Windows:
    def __init__(self, objects: Objects, generation: int, cells: Cells, before_ms: int, cleaned: int) -> None:
        self._objects = objects
        self._generation = generation
        self._cells = cells
        self._before_ms = before_ms
        self._cleaned = cleaned
        self._writers: dict[int, BlockWriter] = {}
        self.young: list[tuple[slice, Samples]] = []

    def add(self, part: slice, ids: Ids, samples: Samples) -> None:
        times, values, lengths = samples.timestamps_ms, samples.values, np.diff(samples.offsets)
        rows = np.repeat(np.arange(len(ids)), lengths)
        late = times < self._before_ms
        if not late.all():
            young = ~late
            counts = np.bincount(rows[young], minlength=len(ids))
            offsets = np.concatenate(([0], np.cumsum(counts)))
            self.young.append((part, Samples(offsets, times[young], values[young])))
            rows, times, values = rows[late], times[late], values[late]
        if not len(times):
            return
        windows = self._cells.of(times)
        if windows.min() == windows.max():
            self._write(int(windows[0]), ids, rows, times, values)
            return
        for window in np.unique(windows).tolist():
            inside = windows == window
            self._write(window, ids, rows[inside], times[inside], values[inside])

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
    """What `write_blocks` left, of the series ids[slice], as a slab of all series below `series`."""
    if not young:
        return None
    pieces = []
    for part, samples in young:
        piece = Piece.of(samples)
        piece.rows = ids[part]
        pieces.append(piece)
    return Slab(join(pieces, series))
