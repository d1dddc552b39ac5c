"""The samples of the workload `series` that are histograms, with start timestamps: every third one."""

from __future__ import annotations

from collections.abc import Iterable

from loadtest.harness.remote_write_bodies import Series
from tests.oracle_native_histograms import NativeHistogram
from tests.powerloss.history import require
from tests.unit.extended_samples import Run, frame, read, text_of
from tests.unit.series_shard import Shard

EVERY = 3
START_MS = 77


def is_histogram(value: float) -> bool:
    return value % EVERY == 0


def floats(points: Iterable[tuple[int, float]]) -> list[tuple[int, float]]:
    """Those of the samples that are written as numbers."""
    return [(at, value) for at, value in points if not is_histogram(value)]


def frames(series: Iterable[Series]) -> list[bytes]:
    """A frame with the others, if there are any."""
    runs: list[Run] = [
        (dict(labels)["job"], [(at, _histogram(value), START_MS) for at, value in points if is_histogram(value)])
        for labels, points in series
    ]
    runs = [run for run in runs if run[1]]
    return [frame(runs)] if runs else []


def _histogram(value: float) -> NativeHistogram:
    """One that tells which value it stands for, of a layout that changes at times."""
    return NativeHistogram(schema=0, count=value, sum=value, positive={int(value) // 30: value})


def held(shard: Shard) -> dict[tuple[str, int], float]:
    """(job, Unix ms) → the value that was written."""
    values = {}
    for job, entries in read(shard).items():
        for at, text, start_ms in entries:
            number = text.partition("sum=")[2].partition(",")[0]
            value = float(number or text)
            values[job, at] = value
            whole = (text_of(_histogram(value)), START_MS) if is_histogram(value) else (repr(value), 0)
            require((text, start_ms) == whole, f"at {at}, {job} has {text} from {start_ms}, not {whole}")
    return values
