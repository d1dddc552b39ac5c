"""Consumer groups: what a shard keeps of a group, and what it reads for a member."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

from shared import wire
from shared.errors import Conflict, NotFound, Overloaded
from shared.hashing import hash64
from shared.log.blocks import block_of
from shared.log.slots import NOT_OWNED, SlotFilter, slot_count, slot_of
from shared.messages import log_groups
from shared.messages.log import Batch, CursorMove, Range
from shared.messages.log_pages import Records
from shared.wire import Reply, Request
from tests.unit.log_shard import OneShard
from worker.logs import cursors, groups, reading, writing
from worker.logs.messages import Message
from worker.methods import log_groups as methods


@pytest.fixture
def shard(tmp_path: Path) -> Iterator[OneShard]:
    opened = OneShard(tmp_path / "0")
    yield opened
    opened.close()


def call(shard: OneShard, name: str, body: msgspec.Struct) -> Reply:
    own: Any = {0: SimpleNamespace(logs=shard.part)}
    return methods.METHODS[name].run(own, Request(name, (0,), time.monotonic() + 10, wire.pack(body)))


def check() -> None:
    """Never too late."""


def stored(revision: int) -> log_groups.StoredGroup:
    return log_groups.StoredGroup(revision, 1, b"p", b"document")


def test_a_group_is_changed_only_at_the_expected_revision_and_survives_a_restart(shard: OneShard) -> None:
    groups.put(shard.part, "g", 0, stored(1), check)
    groups.put(shard.part, "g", 1, stored(4), check)
    for expected in (0, 1, 5):
        with pytest.raises(Conflict, match="at revision 4"):
            groups.put(shard.part, "g", expected, stored(9), check)
    shard.restart()
    assert groups.get(shard.part, "g") == (stored(4), 0)


def test_revisions_of_a_deleted_group_are_never_used_again(shard: OneShard) -> None:
    groups.put(shard.part, "g", 0, stored(7), check)
    groups.delete(shard.part, "g", check)
    with pytest.raises(NotFound):
        groups.delete(shard.part, "g", check)
    assert groups.get(shard.part, "g") == (None, 8)
    with pytest.raises(Conflict):
        groups.put(shard.part, "g", 7, stored(8), check)
    groups.put(shard.part, "g", 8, stored(9), check)


def test_the_groups_of_a_shard_are_bounded(shard: OneShard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "GROUPS_MAX", 2)
    for name in "ab":
        groups.put(shard.part, name, 0, stored(1), check)
    groups.put(shard.part, "a", 1, stored(2), check)
    with pytest.raises(Overloaded, match="2 groups"):
        groups.put(shard.part, "c", 0, stored(1), check)


NAMES = ["a", "a\0", "a\0b", "ab", "b", "é"]


def test_groups_and_cursors_are_listed_in_pages(shard: OneShard) -> None:
    for name in NAMES:
        groups.put(shard.part, name, 0, stored(1), check)
        cursors.move(shard.part, name, [CursorMove(key, 1, None) for key in (b"x", b"\0", b"y")], check)
    for method, reply, name_of in (
        ("log.group_list", log_groups.GroupsReply, lambda row: row[0]),
        ("log.cursor_list", log_groups.NamesReply, lambda row: row),
    ):
        listed: list[str] = []
        while len(listed) < len(NAMES):
            after = listed[-1] if listed else ""
            answer: Any = wire.unpack(call(shard, method, log_groups.NamesBody(after, 2)).body, reply)
            page = answer.groups if method == "log.group_list" else answer.names
            assert page, (method, listed)
            listed += map(name_of, page)
        assert listed == sorted(NAMES, key=str.encode)


def append(shard: OneShard, group: int, keys: list[bytes]) -> None:
    block = block_of([(hash64(key), at, key, b"%d" % (group + at)) for at, key in enumerate(keys)])
    batch = Batch(group, len(keys), (0,))
    message = Message(0, group, group, 0, (batch,), block)
    assert not writing.append({0: (shard.part, message)}, False, lambda: False, 5)


@pytest.mark.parametrize("is_gathered", [False, True])
def test_a_member_reads_the_records_of_its_slots_and_no_others(shard: OneShard, is_gathered: bool) -> None:
    keys = [b"p%d" % (n % 17) if n % 3 else b"q%d" % n for n in range(300)]
    append(shard, 0, keys)
    append(shard, 300, keys)
    if is_gathered:
        shard.part.gather()
    rng = np.random.default_rng(5)
    starts = np.where(rng.random(slot_count(1)) < 0.5, rng.integers(0, 400, slot_count(1)), NOT_OWNED).astype(np.uint64)
    expected = [
        (number, keys[number % 300])
        for number in range(600)
        if keys[number % 300].startswith(b"p") and number >= int(starts[slot_of(keys[number % 300], 1)])
    ]
    span, slots = Range(0, 0, 0, 600), SlotFilter(starts, 1)
    received: list[tuple[int, bytes]] = []
    while span.start < 600:
        page = reading.merge(shard.part, span, b"p", 7, check, slots=slots)
        received += zip(page.records.sequences.tolist(), page.records.key_list(), strict=True)
        span.start = page.next
    assert received == expected
    span.start = 0
    assert reading.count_prefix(shard.part, span, b"p", check, slots) == len(expected)
    body = log_groups.LagBody(span, b"p", starts.tobytes(), 1, None, 100)
    lags = dict(wire.unpack(call(shard, "log.group_lag", body).body, log_groups.LagReply).keys)
    assert lags.keys() == {key for key in keys if key.startswith(b"p")}
    for key, lag in lags.items():
        assert lag == sum(1 for _, other in expected if other == key)
    body = log_groups.SlotsBody(span, b"p", starts.tobytes(), 1, {0: 20}, 1 << 20)
    reply = call(shard, "log.group_read", body)
    ((following, done),) = wire.unpack(reply.body, log_groups.SlotsReply).pages
    assert Records.from_frames(reply.frames).sequences.tolist() == [number for number, _ in expected[:20]]
    assert (following > expected[19][0], done) == (True, False)
