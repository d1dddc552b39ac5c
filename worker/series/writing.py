"""Writes of remote write to the shards of one process."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from shared.exemplar_frames import ExemplarColumns
from shared.sample_frames import SampleColumns
from shared.wire import Frame
from worker.series.arrivals import Arrival, parse
from worker.series.ingest import Committed
from worker.series.journal import Staged
from worker.series.part import SeriesPart

HOLD_UP_S = 1.0
"""How long a write waits for a head that is far over its bound to be sealed, before it is refused."""


@dataclass(frozen=True, slots=True)
class Stored:
    """What became of a write, for each part: which of its frames are stale and were not stored; of the others that have
    labels of series and samples the numbers of these series, int64[runs]; and the number of samples stored in all."""

    stale: Mapping[SeriesPart, Sequence[bool]]
    numbers: Mapping[SeriesPart, Sequence[NDArray[np.int64] | None]] = field(default_factory=dict)
    samples: int = 0


def write(bodies: Mapping[SeriesPart, Sequence[Frame]], timeout_s: float) -> Stored:
    """Store the samples and exemplars of these frames (shared.sample_frames, shared.reference_frames,
    shared.exemplar_frames) in their parts, which belong to one process.

    When this returns, every later read sees them, and, unless the durability is "buffered", they survive the loss of
    power; but for the frames that are stale. When it raises, no sample of the failed part is visible; after a restart,
    some or all of them may be. Writing them again changes nothing, so the whole of a failed write should be repeated.
    """
    rounds = next(iter(bodies)).services.rounds
    arrivals: dict[SeriesPart, list[Arrival]] = {}
    with rounds.coming():
        for part, frames in bodies.items():
            arrivals[part] = [Arrival(parse(frame)) for frame in frames]
    stale = {part: [part.is_stale(arrival.columns) for arrival in own] for part, own in arrivals.items()}
    due: dict[Committed[Staged], Sequence[Arrival]] = {}
    for part, own in arrivals.items():
        kept = [arrival for arrival, is_stale in zip(own, stale[part], strict=True) if not is_stale]
        if kept:
            due[part] = kept
    if not due:
        return Stored(stale)
    give_up_s = time.monotonic() + min(HOLD_UP_S, timeout_s)
    for part in bodies:
        part.hold_up(give_up_s)
    delay_s = max((part.commit_delay_s for part in bodies), default=0.0)
    rounds.add(due, timeout_s, delay_s)
    return Stored(
        stale,
        {
            part: [arrival.series if isinstance(arrival.columns, SampleColumns) else None for arrival in own]
            for part, own in arrivals.items()
        },
        sum(
            arrival.columns.samples
            for own in due.values()
            for arrival in own
            if not isinstance(arrival.columns, ExemplarColumns)
        ),
    )


def write_to(part: SeriesPart, frames: Sequence[Frame], timeout_s: float) -> int:
    """Store the samples and exemplars of these frames in one part; see `write`. Returns the number of samples."""
    return write({part: frames}, timeout_s).samples
