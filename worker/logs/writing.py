"""Appends to several shards of a worker with one write and one sync of the write-ahead log."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from shared.errors import Unavailable
from shared.messages.log import SEQUENCE_MAX, AppendBody
from shared.wire import Frame
from worker.logs.messages import Message
from worker.logs.part import LogPart
from worker.storage.faces import WorkerJournal

PAST_DEADLINE = "the records arrived after their deadline"

Arrivals = dict[int, tuple[LogPart, Message]]
"""Shard → its log, and its part of a group."""


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
    """Store the shards' parts of a group. Returns shard → why it failed. `is_late` is called just before the write,
    because making room and waiting for locks take time. `life`: of the coordinator that sent the group.

    When this returns, the parts of the other shards survive the death of the process, and, if `durable`, the loss of
    power; if not `durable`, they survive the loss of power 100 ms later. Nothing of a refused part is stored; a part
    whose write or sync failed may be stored. Raises Internal when a frame is not valid.
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
    for log, log_arrivals in by_log.items():
        failed |= _write(log, log_arrivals, is_late, life)
        parts = {shard: part for shard, (part, _) in log_arrivals.items() if shard not in failed}
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
    """Write the parts of one log. Returns shard → why it refused. The locks are taken in ascending order of the shards,
    so that two threads never wait for each other."""
    failed: dict[int, str] = {}
    locked: list[LogPart] = []
    try:
        for part, _ in arrivals.values():
            part.lock.acquire()
            locked.append(part)
        if is_late():
            return dict.fromkeys(arrivals, PAST_DEADLINE)
        for shard, (part, message) in arrivals.items():
            if why := part.stage(message, life):
                failed[shard] = why
        staged = {shard: arrival for shard, arrival in arrivals.items() if shard not in failed}
        try:
            positions = log.write([(part.wal, message.pieces()) for part, message in staged.values()])
        except Unavailable as error:
            return failed | dict.fromkeys(staged, str(error))
        for (part, message), position in zip(staged.values(), positions, strict=True):
            part.take_in(message, position)
    finally:
        for part in locked:
            part.lock.release()
    return failed
