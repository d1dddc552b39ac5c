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


@dataclass(slots=True)
class Stored:
    """What became of a write. `stale`: the positions of the frames of a part that are stale and were not stored, where
    there are any. `numbers`: by position the numbers of the series of each frame that has their labels and samples,
    int64[runs], where there are any. `samples`: how many were stored in all."""

    stale: dict[SeriesPart, list[int]] = field(default_factory=dict)
    numbers: dict[SeriesPart, dict[int, NDArray[np.int64]]] = field(default_factory=dict)
    samples: int = 0


def write(bodies: Mapping[SeriesPart, Sequence[Frame]], timeout_s: float) -> Stored:
    """Store the samples and exemplars of these frames (shared.sample_frames, shared.reference_frames,
    shared.exemplar_frames) in their parts, which belong to one process.

    When this returns, every later read sees them, and, unless the durability is "buffered", they survive the loss of
    power; but for the frames that are stale. When it raises, no sample of the failed part is visible, unless that part
    has no ids for new series and has stored the frames without these; after a restart, some or all of them may be.
    Writing them again changes nothing, so the whole of a failed write should be repeated.
    """
    some_part = next(iter(bodies))
    rounds = some_part.services.rounds
    arrivals: dict[SeriesPart, list[Arrival]] = {}
    with rounds.coming():
        for part, frames in bodies.items():
            arrivals[part] = [Arrival(parse(frame)) for frame in frames]
    stored, due = Stored(), dict[Committed[Staged], Sequence[Arrival]]()
    for part, own in arrivals.items():
        stale = [position for position, arrival in enumerate(own) if part.is_stale(arrival.columns)]
        if stale:
            stored.stale[part] = stale
            own = [arrival for arrival in own if not part.is_stale(arrival.columns)]
        if own:
            due[part] = own
    if not due:
        return stored
    give_up_s = time.monotonic() + min(HOLD_UP_S, timeout_s)
    for part in bodies:
        part.hold_up(give_up_s)
    rounds.add(due, timeout_s, some_part.commit_delay_s)
    for part, own in arrivals.items():
        for position, arrival in enumerate(own):
            if arrival.refusal is not None:
                raise arrival.refusal
            columns = arrival.columns
            if isinstance(columns, SampleColumns):
                assert arrival.series is not None
                stored.numbers.setdefault(part, {})[position] = arrival.series
    for kept in due.values():
        for arrival in kept:
            if not isinstance(arrival.columns, ExemplarColumns):
                stored.samples += arrival.columns.samples
    return stored


def write_to(part: SeriesPart, frames: Sequence[Frame], timeout_s: float) -> int:
    """Store the samples and exemplars of these frames in one part; see `write`. Returns the number of samples."""
    return write({part: frames}, timeout_s).samples
