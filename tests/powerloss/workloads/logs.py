"""A shard's log: groups appended, gathered, flushed, taken back, dropped; keys trimmed; producers' answers."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from shared.hashing import hash64
from shared.log.blocks import block_of
from shared.messages.log import PRODUCER_ANSWERS_MAX, Batch, CursorMove, Range
from tests.powerloss.history import History, require, some
from tests.powerloss.recording import Recorder
from tests.powerloss.workloads.store import killed as killed_store
from tests.powerloss.workloads.wal import killed as killed_log
from tests.unit.log_shard import OneShard
from worker.logs import cleaning, cursors, trimming, writing
from worker.logs.keeper import Keeper
from worker.logs.messages import Message
from worker.logs.part import LogPart
from worker.storage.rows.store import Store
from worker.storage.wal.log import LOG, WriteAheadLog

STEPS = 80
KEYS = 6
FILE_BYTES = 8 << 10
PRODUCER, CURSOR = "p", "c"
KEPT_S = 0.3
"""Appends that nobody waits for are on the disk within 100 ms; three times that, for a busy machine."""
KEPT_EVERY = 20
SEGMENT_GROUPS = 12

Records = dict[int, tuple[bytes, bytes]]


class Part(OneShard):
    def _open(self) -> None:
        self.store = Store(self.directory / "store")
        self.log = WriteAheadLog(self.directory / "wal", file_bytes=FILE_BYTES).open()
        self.part = LogPart(self.store, Keeper(self.log), self.log.stream(0, LOG))
        self.part.load()

    def kill(self) -> None:
        """As if the process had died: nothing is synced or flushed."""
        self.part.close()
        killed_store(self.store)
        killed_log(self.log)

    def write(self, group: int, batches: Sequence[Sequence], segment: int, producer: str, durable: bool) -> None:
        start, named, blocks = group, [], []
        for records in batches:
            named.append(Batch(start, len(records), (0,), producer, start))
            blocks.append(block_of((hash64(key), at, key, value) for at, (key, value) in enumerate(records)))
            start += len(records)
        message = Message(segment, group, group, 0, tuple(named), b"".join(blocks))
        failed = writing.append({0: (self.part, message)}, durable)
        assert not failed, failed


def _in_time() -> None:
    """There is no deadline."""


def run(root: Path, recorder: Recorder, chance: random.Random) -> None:
    shard = Part(root)
    recorder.settled()
    groups: list[tuple[int, int, list[int]]] = []  # (segment, first number, sizes of the batches)
    following = first_segment = 0
    for step in range(STEPS):
        how = chance.random()
        is_kept = step % KEPT_EVERY == KEPT_EVERY - 1
        if how < 0.6 or is_kept:
            batches = [
                [(b"k%d" % chance.randrange(KEYS), chance.randbytes(chance.choice((5, 400)))) for _ in range(size)]
                for size in (chance.randint(1, 4) for _ in range(chance.randint(1, 2)))
            ]
            segment = len(groups) // SEGMENT_GROUPS
            is_durable = chance.random() < 0.6 and not is_kept
            producer = chance.choice(("", PRODUCER))
            write = partial(shard.write, following, batches, segment, producer, is_durable)
            recorder.act(["append", *write.args], write)
            groups.append((segment, following, [len(own) for own in batches]))
            following += sum(len(own) for own in batches)
            if is_kept:
                time.sleep(KEPT_S)
                recorder.begin(["synced"])(None)
        elif how < 0.7:
            recorder.act(["gather"], shard.part.gather)
        elif how < 0.78:
            recorder.act(["flush"], shard.part.flush)
        elif how < 0.86 and groups:
            segment, group, sizes = chance.choice(groups)
            if segment >= first_segment:
                span = (group, group + sizes[0])
                recorder.act(["revoke", *span], partial(shard.part.revoke, segment, group, [span]))
        elif how < 0.9 and groups and groups[-1][0] > first_segment:
            first_segment += 1
            start = min(group for segment, group, _ in groups if segment >= first_segment)
            recorder.act(["drop", first_segment], partial(shard.part.drop, first_segment, start))
        elif how < 0.93 and groups:
            key, before = b"k%d" % chance.randrange(KEYS), chance.choice((following, following // 2))
            below = Range(0, len(groups), 0, before)
            recorder.act(["trim", key, before], partial(trimming.trim, shard.part, below, key, following, _in_time))
        elif how < 0.95:
            moves = [CursorMove(b"k%d" % chance.randrange(KEYS), len(groups), None)]
            move = partial(cursors.move, shard.part, CURSOR, moves, _in_time)
            recorder.act(["move", moves[0].key, len(groups)], move)
            if chance.random() < 0.5:
                recorder.act(["forget"], partial(cursors.remove, shard.part, CURSOR, _in_time))
        else:
            recorder.act(["stop"], chance.choice((shard.close, shard.kill)))
            shard._open()
            # A start syncs what it reads.
            recorder.begin(["synced"])(None)
    shard.close()


def check(root: Path, history: History) -> None:
    """Records that were acknowledged as durable are there, those taken back or dropped are not, nothing else is;
    batches are whole, totals are right, answers to producers are remembered, and the log goes on."""
    shard = Part(root)
    expected = _expected(history)
    there = {number: (key, value) for number, key, value in shard.read()}
    _compare(there, expected)
    require(not shard.part.damage.texts("log"), f"it says that it is damaged: {shard.part.damage.texts('log')}")
    held = shard.part.counts()["records"]
    require(held == len(there) or (held > len(there) and bool(expected.may_be_gone)), f"{held} of {len(there)} records")
    above = shard.part.recover(0, 0, 0)[0]
    require(above > max(there, default=-1), f"numbers go on from {above}, and {max(there, default=-1)} is there")
    answers = shard.part.producer_answers(PRODUCER)
    _compare_answers(answers, history, expected, there)
    _compare_cursor(dict(cursors.read(shard.part, CURSOR, None)), history)
    new = max([above, *(number + 1 for number in expected.tried)])
    segment = 1 + max((act.told[3] for act in history.acts if act.told[0] == "append"), default=0)
    shard.write(new, [[(b"new", b"value")]], segment, "", True)
    shard.part.gather()
    while cleaning.clean(shard.part):
        pass
    held = shard.part.counts()["records"]
    require(held == len(there) + 1, f"{held} records are stored, and {len(there) + 1} are there")
    shard.restart()
    again = {number: (key, value) for number, key, value in shard.read()}
    require(again == there | {new: (b"new", b"value")}, f"the second start differs in {set(again) ^ {*there, new}}")
    shard.close()


class _Expected:
    """`tried`: number → what was to be there; `needed` and `gone` are numbers; `may_be_gone` those that a trim
    concerns; `batches` those of each batch."""

    def __init__(self) -> None:
        self.tried: Records = {}
        self.needed: set[int] = set()
        self.gone: set[int] = set()
        self.may_be_gone: set[int] = set()
        self.segments: dict[int, int] = {}
        self.batches: list[range] = []
        self.producers: list[range] = []


def _expected(history: History) -> _Expected:
    expected = _Expected()
    for act in history.acts:
        kind, *told = act.told
        if kind == "append":
            number, batches, segment, producer, durable = told
            for records in batches:
                own = range(number, number + len(records))
                expected.batches.append(own)
                if producer:
                    expected.producers.append(own)
                for key, value in records:
                    expected.tried[number] = bytes(key), bytes(value)
                    expected.segments[number] = segment
                    number += 1
            if act.is_done and durable:
                expected.needed = set(expected.tried) - expected.gone
        elif kind == "synced":
            expected.needed = set(expected.tried) - expected.gone
        elif kind == "trim":
            key, before = told
            numbers = {n for n, (own, _) in expected.tried.items() if own == key and n < before}
            expected.needed -= numbers
            expected.may_be_gone |= numbers
            if act.is_done:
                expected.gone |= numbers
        elif kind in ("revoke", "drop"):
            numbers = (
                set(range(*told)) if kind == "revoke" else {n for n, s in expected.segments.items() if s < told[0]}
            )
            expected.needed -= numbers
            if act.is_done:
                # Its sync is one of everything before it.
                expected.gone |= numbers
    return expected


def _compare(there: Records, expected: _Expected) -> None:
    lost = expected.needed - set(there)
    require(not lost, f"lost records {some(sorted(lost))}")
    back = expected.gone & set(there)
    require(not back, f"records {some(sorted(back))} are back")
    invented = [number for number, record in there.items() if expected.tried.get(number) != record]
    require(not invented, f"records {some(invented)} are not as written")
    for own in expected.batches:
        held = [number for number in own if number in there]
        lacking = set(own) - {*held, *expected.may_be_gone}
        require(not held or not lacking, f"of the batch {own} there are {held}")


def _compare_answers(answers: list, history: History, expected: _Expected, there: Records) -> None:
    starts = [start for _, start, _ in answers]
    known = {(own.start, len(own)) for own in expected.producers}
    require(all((start, count) in known for _, start, count in answers), f"an answer is invented: {answers}")
    # The answer about a batch takes a place also when its records have been trimmed since.
    last = [own.start for own in expected.producers if own.start in there or own.start in expected.may_be_gone]
    kept = [start for start in last[-PRODUCER_ANSWERS_MAX // 2 :] if start not in expected.may_be_gone]
    missing = [start for start in kept if start not in starts and start in expected.needed]
    require(not missing, f"answers {some(missing)} to the producer are forgotten; there are {starts}")
    orphans = [
        start for start in starts if start in expected.gone and start not in there and _was_revoked(history, start)
    ]
    require(not orphans, f"answers {some(orphans)} are remembered, whose batches were taken back")


def _was_revoked(history: History, start: int) -> bool:
    return any(act.told[:2] == ["revoke", start] and act.is_done for act in history.acts)


def _compare_cursor(there: dict[bytes, int], history: History) -> None:
    """Each position is the last one acknowledged, or one under way."""
    allowed: dict[bytes, set[int | None]] = {b"k%d" % key: {None} for key in range(KEYS)}
    for act in history.acts:
        if act.told[0] not in ("move", "forget"):
            continue
        for key, own in allowed.items():
            if act.told[0] == "move" and act.told[1] != key:
                continue
            if act.is_done:
                own.clear()
            own.add(act.told[2] if act.told[0] == "move" else None)
    wrong = {key: there.get(key) for key, own in allowed.items() if there.get(key) not in own}
    require(not wrong, f"cursors {wrong} should be one of {[allowed[key] for key in wrong]}")
