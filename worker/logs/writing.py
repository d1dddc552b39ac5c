"""Appends to several shards of a worker: one write of the write-ahead log, and one sync of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from shared.errors import Unavailable
from shared.messages.log import SEQUENCE_MAX, AppendBody
from shared.wire import Frame
from worker.logs.messages import Message
from worker.logs.part import LogPart
from worker.storage.faces import WorkerJournal

PAST_DEADLINE = "the records came past their deadline"

Arrivals = dict[int, tuple[LogPart, Message]]
"""Shard → where its part of a group goes."""


def message_of(body: AppendBody, shard: int, frame: Frame) -> Message:
    batches = tuple(batch for batch in body.batches if shard in batch.shards)
    return Message(body.segment, body.group, body.closed, body.settled, batches, frame)


def _never() -> bool:
    return False


def append(
    arrivals: Mapping[int, tuple[LogPart, Message]],
    durable: bool,
    is_late: Callable[[], bool] = _never,
    life: int = SEQUENCE_MAX,
) -> dict[int, str]:
    """Store parts of a group; shard → why it could not take its own, of which nothing is stored then. `is_late` is
    asked once more before anything is written, since making room for it and waiting for the others take their time.
    `life`: of the coordinator that sent it.

    When it returns, the rest survives the death of the process; if `durable`, the loss of power; if not, it will within
    100 ms. Raises Internal when a frame is not sound.
    """
    failed: dict[int, str] = {}
    by_log: dict[WorkerJournal, Arrivals] = {}
    for shard, (part, message) in sorted(arrivals.items()):
        try:
            part.make_room()
        except Unavailable as error:
            failed[shard] = str(error)
        else:
            by_log.setdefault(part.wal.log, {})[shard] = part, message
    for log, own in by_log.items():
        failed |= _write(log, own, is_late, life)
        parts = {shard: part for shard, (part, _) in own.items() if shard not in failed}
        if not parts:
            continue
        keeper = next(iter(parts.values())).keeper
        if durable:
            try:
                keeper.sync()
            except Unavailable as error:
                failed |= dict.fromkeys(parts, str(error))
        else:
            keeper.written()
        if any(part.is_large() for part in parts.values()):
            keeper.wake()
    return failed


def _write(log: WorkerJournal, arrivals: Arrivals, is_late: Callable[[], bool], life: int) -> dict[int, str]:
    """Shard → why it refuses. Locks are taken by ascending shard, and nobody who has one waits for another lock of a
    lower shard."""
    failed: dict[int, str] = {}
    held: list[LogPart] = []
    try:
        for part, _ in arrivals.values():
            part.lock.acquire()
            held.append(part)
        if is_late():
            return dict.fromkeys(arrivals, PAST_DEADLINE)
        for shard, (part, message) in arrivals.items():
            if why := part.stage(message, life):
                failed[shard] = why
        taken = {shard: arrival for shard, arrival in arrivals.items() if shard not in failed}
        try:
            positions = log.write([(part.wal, message.pieces()) for part, message in taken.values()])
        except Unavailable as error:
            return failed | dict.fromkeys(taken, str(error))
        for (part, message), position in zip(taken.values(), positions, strict=True):
            part.take_in(message, position)
    finally:
        for part in held:
            part.lock.release()
    return failed
