"""Writing samples into blocks: by time window, in slices of series, so that nothing waits for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from shared.durable import sync_directory
from shared.promql.model import Samples
from worker.series.blocks import BlockRow, BlockWriter
from worker.series.layers import Slab
from worker.series.pieces import Piece, join

WINDOWS_MAX = 32
"""Blocks written at a time. Samples scattered over more windows get wider ones."""
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
    directory: Path,
    generation: int,
    read: Callable[[slice], Samples],
    permanent: Ids,
    samples: int,
    *,
    window_ms: int | None,
    before_ms: int,
    stopped: Callable[[], bool],
) -> tuple[list[BlockRow], list[tuple[slice, Samples]]]:
    """(rows of the blocks, synced and named on the disk; what has t ≥ before_ms, slice by slice).

    `permanent` are the ids of the series in the order in which they are to be written, `read` gives the samples of a
    slice of them, `samples` says about how many there are. `window_ms` None: one block. Raises OSError, Stopped, or
    what `read` raises, and leaves no file then.
    """
    while True:
        windows = _Windows(directory, generation, window_ms, before_ms)
        try:
            for own in slices(len(permanent), samples):
                if stopped():
                    raise Stopped
                windows.add(own, permanent[own], read(own))
            rows = windows.finish()
            sync_directory(directory)
            return rows, windows.young
        except _TooManyWindows:
            windows.abandon()
            assert window_ms is not None
            window_ms *= WIDER
        except BaseException:
            windows.abandon()
            raise


class _Windows:
    def __init__(self, directory: Path, generation: int, window_ms: int | None, before_ms: int) -> None:
        self._directory = directory
        self._generation = generation
        self._window_ms = window_ms
        self._before_ms = before_ms
        self._writers: dict[int, BlockWriter] = {}
        self.young: list[tuple[slice, Samples]] = []

    def add(self, own: slice, ids: Ids, samples: Samples) -> None:
        times, values, lengths = samples.timestamps_ms, samples.values, np.diff(samples.offsets)
        rows = np.repeat(np.arange(len(ids)), lengths)
        late = times < self._before_ms
        if not late.all():
            young = ~late
            counts = np.bincount(rows[young], minlength=len(ids))
            offsets = np.concatenate(([0], np.cumsum(counts)))
            self.young.append((own, Samples(offsets, times[young], values[young])))
            rows, times, values = rows[late], times[late], values[late]
        if not len(times):
            return
        windows = times // self._window_ms if self._window_ms is not None else np.zeros(1, dtype=np.int64)
        if windows.min() == windows.max():
            self._write(int(windows[0]), ids, rows, times, values)
            return
        for window in np.unique(windows).tolist():
            inside = windows == window
            self._write(window, ids, rows[inside], times[inside], values[inside])

    def _write(self, window: int, ids: Ids, rows: Ids, times: Ids, values: NDArray[np.float64]) -> None:
        writer = self._writers.get(window)
        if writer is None:
            if len(self._writers) == WINDOWS_MAX:
                raise _TooManyWindows
            writer = self._writers[window] = BlockWriter(self._directory, self._generation)
        counts = np.bincount(rows, minlength=len(ids))
        there = np.flatnonzero(counts)
        writer.add(ids[there], counts[there], times, values)

    def finish(self) -> list[BlockRow]:
        return [writer.finish() for _, writer in sorted(self._writers.items())]

    def abandon(self) -> None:
        for writer in self._writers.values():
            writer.abandon()


def slab_of(young: list[tuple[slice, Samples]], ids: Ids, series: int) -> Slab | None:
    """What `write_blocks` left, of the series ids[slice], as a slab of all series below `series`."""
    if not young:
        return None
    pieces = []
    for own, samples in young:
        piece = Piece.of(samples)
        piece.rows = ids[own]
        pieces.append(piece)
    return Slab(join(pieces, series))
