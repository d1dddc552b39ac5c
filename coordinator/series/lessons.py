"""What the coordinator learns from the workers' replies to a write: the numbers of the series that it sent with
labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from coordinator.fanout.calls import WorkerReply
from coordinator.series.division import Rows
from coordinator.series.series_references import SeriesReferences
from coordinator.series.walk import LABELS, LABELS_END
from coordinator.series.walked import Walk
from shared.messages.series import WriteReply
from shared.wire import unpack

Place = tuple[int, int]
"""A frame of a message: (shard, index among the shard's frames)."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """What the workers reply about the frames of a write.

    `epochs`: shard → epoch of its series numbers, for the shards that the reply says something about. `stale`: the
    frames that were not stored because their series numbers belong to another epoch. `numbers`: frame with labels → the
    numbers of its series, int32[series].
    """

    epochs: Mapping[int, int] = field(default_factory=dict)
    stale: frozenset[Place] = frozenset()
    numbers: Mapping[Place, NDArray[np.int32]] = field(default_factory=dict)

    @classmethod
    def of(cls, replies: Sequence[WorkerReply]) -> Receipt:
        """The receipt in the replies to one message."""
        epochs, stale, numbers = dict[int, int](), set[Place](), dict[Place, NDArray[np.int32]]()
        for reply in replies:
            body = unpack(reply.message.body, WriteReply)
            if not body.epochs:
                continue
            epochs.update(body.epochs)
            stale.update((shard, index) for shard, indexes in body.stale.items() for index in indexes)
            numbered = [(shard, index) for shard, indexes in body.numbered.items() for index in indexes]
            for place, frame in zip(numbered, reply.message.frames, strict=True):
                numbers[place] = np.frombuffer(frame, dtype=np.int32)
        return cls(epochs, frozenset(stale), numbers) if epochs else EMPTY_RECEIPT

    def part(self, frames: Mapping[int, range]) -> Receipt:
        """The receipt for these frames only (shard → indexes of its frames), which get indexes from 0 on."""
        if not self.epochs:
            return self
        none = range(0)
        return Receipt(
            {shard: epoch for shard, epoch in self.epochs.items() if shard in frames},
            frozenset(
                (shard, index - frames[shard].start) for shard, index in self.stale if index in frames.get(shard, none)
            ),
            {
                (shard, index - frames[shard].start): numbers
                for (shard, index), numbers in self.numbers.items()
                if index in frames.get(shard, none)
            },
        )


EMPTY_RECEIPT = Receipt()


@dataclass(frozen=True, slots=True)
class Lesson:
    """The rows of a walk that were sent with labels. `frame_indexes`: shard → index of the frame that contains them."""

    walk: Walk
    rows: Rows
    frame_indexes: Mapping[int, int]

    def learn(self, references: SeriesReferences, receipt: Receipt) -> None:
        """Keep the series numbers in the receipt."""
        table = self.walk.table
        numbers = np.full(len(table), -1, dtype=np.int64)
        at = 0
        for shard, count in enumerate(self.rows.totals[:, 0].tolist()):
            frame_numbers = receipt.numbers.get((shard, self.frame_indexes.get(shard, -1)))
            if frame_numbers is not None:
                numbers[self.rows.order[at : at + count]] = frame_numbers
            at += count
        # In the order of the request: the next request will have the series in the same order.
        begins, ends = (np.ascontiguousarray(table[:, column]) for column in (LABELS, LABELS_END))
        references.learn(self.walk.label_data, begins, ends, self.walk.hashes, numbers, receipt.epochs)


def learn(lessons: Sequence[Lesson], references: SeriesReferences, receipt: Receipt) -> None:
    """Keep the epochs and series numbers that the receipt of a request contains. `lessons` are those of the request."""
    if references.is_crowded:
        references.tidy()
    references.begin_eras(receipt.epochs)
    for lesson in lessons:
        lesson.learn(references, receipt)
