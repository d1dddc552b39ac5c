"""What the coordinator learns from the answer to a write: the numbers of the series whose labels it has sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from coordinator.calls import WorkerReply
from coordinator.series.division import Rows
from coordinator.series.series_references import SeriesReferences
from coordinator.series.walk import LABELS, LABELS_END
from coordinator.series.walked import Walk
from shared.messages.series import WriteReply
from shared.wire import unpack

Place = tuple[int, int]
"""A frame of a message: (shard, which of the shard's frames)."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """What the workers say of the frames of a write: shard → the epoch of its numbers, where there is something to say;
    the frames that were not stored because their numbers are of another epoch; and the numbers of the series of the
    frames that have labels, int32[series]."""

    epochs: Mapping[int, int] = field(default_factory=dict)
    stale: frozenset[Place] = frozenset()
    numbers: Mapping[Place, NDArray[np.int32]] = field(default_factory=dict)

    @classmethod
    def of(cls, replies: Sequence[WorkerReply]) -> Receipt:
        """Of the replies to one message."""
        epochs, stale, numbers = dict[int, int](), set[Place](), dict[Place, NDArray[np.int32]]()
        for reply in replies:
            said = unpack(reply.message.body, WriteReply)
            if not said.epochs:
                continue
            epochs.update(said.epochs)
            stale.update((shard, place) for shard, places in said.stale.items() for place in places)
            numbered = [(shard, place) for shard, places in said.numbered.items() for place in places]
            for place, frame in zip(numbered, reply.message.frames, strict=True):
                numbers[place] = np.frombuffer(frame, dtype=np.int32)
        return cls(epochs, frozenset(stale), numbers) if epochs else NOTHING_SAID

    def part(self, frames: Mapping[int, range]) -> Receipt:
        """What it says of these frames of each shard, counted from the first of them."""
        if not self.epochs:
            return self
        none = range(0)
        return Receipt(
            {shard: epoch for shard, epoch in self.epochs.items() if shard in frames},
            frozenset((shard, at - frames[shard].start) for shard, at in self.stale if at in frames.get(shard, none)),
            {
                (shard, at - frames[shard].start): numbers
                for (shard, at), numbers in self.numbers.items()
                if at in frames.get(shard, none)
            },
        )


NOTHING_SAID = Receipt()


@dataclass(frozen=True, slots=True)
class Lesson:
    """The rows of a walk that were sent with their labels; `places`: shard → which of its frames has them."""

    walk: Walk
    rows: Rows
    places: Mapping[int, int]

    def learn(self, references: SeriesReferences, receipt: Receipt) -> None:
        """Keep the numbers that the receipt has."""
        table = self.walk.table
        numbers = np.full(len(table), -1, dtype=np.int64)
        at = 0
        for shard, count in enumerate(self.rows.totals[:, 0].tolist()):
            given = receipt.numbers.get((shard, self.places.get(shard, -1)))
            if given is not None:
                numbers[self.rows.order[at : at + count]] = given
            at += count
        # In the order of the request, in which the next one will have them.
        begins, ends = (np.ascontiguousarray(table[:, column]) for column in (LABELS, LABELS_END))
        references.learn(self.walk.label_data, begins, ends, self.walk.hashes, numbers, receipt.epochs)


def learn(lessons: Sequence[Lesson], references: SeriesReferences, receipt: Receipt) -> None:
    """Keep what the receipt of a request says, of which these are the lessons."""
    if references.is_crowded:
        references.tidy()
    references.begin_eras(receipt.epochs)
    for lesson in lessons:
        lesson.learn(references, receipt)
