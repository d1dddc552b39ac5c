"""Remote write to the shards of one process."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from shared.frames.exemplars import ExemplarColumns
from shared.frames.samples import SampleColumns
from shared.wire import Frame
from worker.series.arrivals import Arrival, parse
from worker.series.ingest import Committed
from worker.series.journal import Staged
from worker.series.part import SeriesPart

HOLD_UP_S = 1.0
"""How long a write waits for a head that is far over its bound to be sealed, before it is refused."""


@dataclass(slots=True)
class Stored:
    """The result of a write. `stale`: for each part that has any, the positions of the frames that are stale and were
    not stored. `numbers`: for each part that has any, position → series numbers, int64[runs], of the frames with labels
    and samples. `samples`: how many were stored in all."""

    stale: dict[SeriesPart, list[int]] = field(default_factory=dict)
    numbers: dict[SeriesPart, dict[int, NDArray[np.int64]]] = field(default_factory=dict)
    samples: int = 0


def write(bodies: Mapping[SeriesPart, Sequence[Frame]], timeout_s: float) -> Stored:
    """Store the samples and exemplars of these frames (shared.frames.samples, shared.frames.references,
    shared.frames.exemplars) in their parts, which belong to one process.

    When this returns, every later read sees them, and, unless the durability is "buffered", they survive the loss of
    power, except for stale frames. When it raises, no sample of the failed part is visible, unless that part has no ids
    for new series and has stored the frames without these; after a restart, some or all of them may be. Writing them
    again changes nothing, so the whole of a failed write should be repeated.
    """
    some_part = next(iter(bodies))
    rounds = some_part.services.rounds
    arrivals: dict[SeriesPart, list[Arrival]] = {}
    with rounds.coming():
        for part, frames in bodies.items():
            arrivals[part] = [Arrival(parse(frame)) for frame in frames]
    stored, due = Stored(), dict[Committed[Staged], Sequence[Arrival]]()
    for part, part_arrivals in arrivals.items():
        stale = [position for position, arrival in enumerate(part_arrivals) if part.is_stale(arrival.columns)]
        if stale:
            stored.stale[part] = stale
            part_arrivals = [arrival for arrival in part_arrivals if not part.is_stale(arrival.columns)]
        if part_arrivals:
            due[part] = part_arrivals
    if not due:
        return stored
    deadline_s = time.monotonic() + min(HOLD_UP_S, timeout_s)
    for part in bodies:
        part.hold_up(deadline_s)
    rounds.add(due, timeout_s, some_part.commit_delay_s)
    for part, part_arrivals in arrivals.items():
        for position, arrival in enumerate(part_arrivals):
            if arrival.refusal is not None:
                raise arrival.refusal
            columns = arrival.columns
            if isinstance(columns, SampleColumns):
                assert arrival.series is not None
                stored.numbers.setdefault(part, {})[position] = arrival.series
    for committed in due.values():
        for arrival in committed:
            if not isinstance(arrival.columns, ExemplarColumns):
                stored.samples += arrival.columns.samples
    return stored


def write_to(part: SeriesPart, frames: Sequence[Frame], timeout_s: float) -> int:
    """Store the samples and exemplars of these frames in one part; see `write`. Returns the number of samples."""
    return write({part: frames}, timeout_s).samples
