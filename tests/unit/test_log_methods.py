"""What a worker answers to the log's methods, over several shards: what one cannot do, the others do all the same."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from shared import wire
from shared.errors import Conflict, DeadlineExceeded, Internal, Unavailable
from shared.hashing import hash64
from shared.log.blocks import block_of
from shared.messages import log
from shared.messages.log import SEQUENCE_MAX, Batch, CursorMove, Range, Span
from shared.wire import Reply, Request
from tests.unit.log_shard import OneShard
from worker.logs import writing
from worker.logs.messages import Message
from worker.methods import log as methods

WITHIN_S = 10.0


@pytest.fixture
def shards(tmp_path: Path) -> Iterator[dict[int, OneShard]]:
    """Each with a write-ahead log of its own."""
    opened = {number: OneShard(tmp_path / str(number)) for number in range(2)}
    yield opened
    for shard in opened.values():
        shard.close()


def call(
    shards: Mapping[int, OneShard],
    name: str,
    body: msgspec.Struct | None = None,
    parts: Mapping[int, bytes] | None = None,
    within_s: float = WITHIN_S,
) -> Reply:
    frames = {number: (part,) for number, part in (parts or {}).items()}
    packed = b"" if body is None else wire.pack(body)
    request = Request(name, tuple(shards), time.monotonic() + within_s, packed, (), frames)
    own: Any = {number: SimpleNamespace(logs=shard.part) for number, shard in shards.items()}
    return methods.METHODS[name].run(own, request)


def body(group: int, *, durable: bool = False, life: int = 5) -> log.AppendBody:
    return log.AppendBody(0, group, group, durable, 0, (Batch(group, 1, (0,)), Batch(group + 1, 1, (1,))), life)


def block(number: int, key: bytes = b"k", value: bytes = b"v") -> bytes:
    return block_of([(hash64(key), number, key, value)])


def append(shards: Mapping[int, OneShard], group: int, *, durable: bool = False, within_s: float = WITHIN_S) -> Any:
    parts = {number: block(0, b"k%d" % number, b"v%d" % group) for number in shards}
    return call(shards, "log.append", body(group, durable=durable), parts, within_s).shard_errors


def refuse(*_: object, **__: object) -> Any:
    raise Unavailable("the disk is full")


@pytest.mark.parametrize("durable", [False, True])
def test_each_shard_stores_the_batches_that_are_its_own(shards: dict[int, OneShard], durable: bool) -> None:
    assert append(shards, 0, durable=durable) == {}
    assert [shard.read() for shard in shards.values()] == [[(0, b"k0", b"v0")], [(1, b"k1", b"v0")]]


def test_an_append_past_its_deadline_is_refused_by_every_shard(shards: dict[int, OneShard]) -> None:
    assert append(shards, 0, within_s=0.0) == dict.fromkeys(shards, writing.PAST_DEADLINE)
    assert [shard.read() for shard in shards.values()] == [[], []]


@pytest.mark.parametrize("durable", [False, True])
def test_what_one_log_refuses_the_others_store_and_sync(
    shards: dict[int, OneShard], durable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards[0].log, "write", refuse)
    asked: list[str] = []
    monkeypatch.setattr(shards[1].part.keeper, "sync", lambda: asked.append("sync"))
    monkeypatch.setattr(shards[1].part.keeper, "written", lambda: asked.append("written"))
    assert append(shards, 0, durable=durable) == {0: "the disk is full"}
    assert [shard.read() for shard in shards.values()] == [[], [(1, b"k1", b"v0")]]
    assert asked == ["sync" if durable else "written"]


def test_a_shard_without_room_refuses_its_own_part(
    shards: dict[int, OneShard], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards[0].part, "make_room", refuse)
    assert append(shards, 0) == {0: "the disk is full"}
    assert [len(shard.read()) for shard in shards.values()] == [0, 1]


def test_records_whose_sync_fails_are_not_said_to_be_stored(
    shards: dict[int, OneShard], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards[1].part.keeper, "sync", refuse)
    assert append(shards, 0, durable=True) == {1: "the disk is full"}
    assert append(shards, 2) == {}


def test_a_shard_with_much_in_memory_is_gathered_soon(
    shards: dict[int, OneShard], monkeypatch: pytest.MonkeyPatch
) -> None:
    woken: list[int] = []
    for number, shard in shards.items():
        monkeypatch.setattr(shard.part.keeper, "wake", lambda number=number: woken.append(number))
    append(shards, 0)
    assert woken == []
    monkeypatch.setattr(shards[1].part, "is_large", lambda times=1: times == 1)
    append(shards, 2)
    assert woken == [1]


def test_no_lock_stays_taken_whatever_a_write_raises(
    shards: dict[int, OneShard], monkeypatch: pytest.MonkeyPatch
) -> None:
    message = Message(0, 0, 0, 0, (Batch(0, 1, (0,)),), b"x")
    with pytest.raises(Internal):
        writing.append({0: (shards[0].part, message)}, durable=False)
    assert not shards[0].part.lock.locked()
    assert append(shards, 0) == {}


def test_a_sync_is_done_once_for_each_log_and_says_which_shards_it_failed_for(
    shards: dict[int, OneShard], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(shards[0].log, "sync", lambda: asked.append(0))
    own = {0: shards[0], 1: shards[1], 2: shards[0]}
    assert call(own, "log.sync").shard_errors == {}
    assert asked == [0]
    monkeypatch.setattr(shards[0].log, "sync", refuse)
    assert call(own, "log.sync").shard_errors == {0: "the disk is full", 2: "the disk is full"}


def test_taking_back_and_dropping_reach_every_shard_that_can(
    shards: dict[int, OneShard], monkeypatch: pytest.MonkeyPatch
) -> None:
    append(shards, 0)
    append(shards, 2)
    assert call(shards, "log.revoke", log.RevokeBody(0, 2, [Span((2, 4))], 5)).shard_errors == {}
    assert [len(shard.read()) for shard in shards.values()] == [1, 1]
    monkeypatch.setattr(shards[0].part, "drop", refuse)
    monkeypatch.setattr(shards[0].part, "revoke", refuse)
    assert call(shards, "log.drop", log.DropBody(1, 9)).shard_errors == {0: "the disk is full"}
    assert call(shards, "log.revoke", log.RevokeBody(0, 2, [], 5)).shard_errors == {0: "the disk is full"}
    assert [shard.part.counts()["records"] for shard in shards.values()] == [1, 0]


def test_a_recovery_says_what_each_shard_holds_and_which_are_damaged(shards: dict[int, OneShard]) -> None:
    append(shards, 0)
    call(shards, "log.drop", log.DropBody(0, 0))
    shards[1].part.drop(1, 9)
    shards[1].part.damage.add("log", "records are missing")
    shards[0].part.damage.add("vector", "vectors are missing")
    answer = wire.unpack(call(shards, "log.recover", log.RecoverBody(0, 0, 0, 6)).body, log.RecoverReply)
    assert answer.next[0] == 1
    assert answer.settled == {0: 0, 1: 0}
    assert [(held.group, held.segment) for held in answer.groups[0]] == [(0, 0)]
    assert [held.records for held in answer.segments[0]] == [1]
    assert answer.segments[1] == []
    assert (answer.dropped, answer.damaged) == ({0: 0, 1: 1}, [1])
    assert "given up" in append(shards, 4)[0], "a coordinator of an earlier life"


def whole() -> Range:
    return Range(0, 9, 0, SEQUENCE_MAX)


def test_a_page_that_does_not_go_on_is_never_answered(
    shards: dict[int, OneShard], monkeypatch: pytest.MonkeyPatch
) -> None:
    append(shards, 0)
    asked = log.ScanBody(whole(), 10, key=b"k0")
    page = methods.reading.scan(shards[0].part, whole(), b"k0", 10, False)
    reply = call({0: shards[0]}, "log.scan", asked)
    assert wire.unpack(reply.body, log.ScanReply) == log.ScanReply(page.next, True)
    monkeypatch.setattr(methods.reading, "scan", lambda *_: page._replace(next=0, done=False))
    with pytest.raises(Internal, match="goes on at 0"):
        call({0: shards[0]}, "log.scan", asked)


def test_keys_are_the_first_of_all_shards_in_order(shards: dict[int, OneShard]) -> None:
    for shard, keys in zip(shards.values(), ((b"a", b"c", b"e"), (b"b", b"c", b"f")), strict=True):
        shard.append(0, [(key, b"") for key in keys])
    keys_body = log.KeysBody(whole(), b"", None, 4)
    reply = wire.unpack(call(shards, "log.keys", keys_body).body, log.KeysReply)
    assert reply.keys == [b"a", b"b", b"c", b"e"]
    keys_body = log.KeysBody(whole(), b"", b"b", 4)
    assert wire.unpack(call(shards, "log.keys", keys_body).body, log.KeysReply).keys == [b"c", b"e", b"f"]


def test_records_of_all_shards_are_counted_by_key_and_by_prefix(shards: dict[int, OneShard]) -> None:
    for shard in shards.values():
        shard.append(0, [(b"ka", b""), (b"kb", b""), (b"ka", b"")])

    def counted(key: bytes | None, prefix: bytes) -> int:
        return wire.unpack(call(shards, "log.count", log.CountBody(whole(), key, prefix)).body, log.CountReply).records

    assert [counted(b"ka", b""), counted(None, b"k"), counted(None, b"kb"), counted(b"x", b"")] == [4, 6, 2, 0]


def test_a_cursor_moves_as_a_whole_and_says_where_it_is(shards: dict[int, OneShard]) -> None:
    one = {0: shards[0]}

    def positions(key: bytes | None = None) -> list[tuple[bytes, int]]:
        answer = call(one, "log.cursor_get", log.CursorBody("c", key=key)).body
        return wire.unpack(answer, log.CursorReply).positions

    def move(*moves: CursorMove) -> None:
        call(one, "log.cursor_put", log.CursorBody("c", list(moves)))

    assert positions() == []
    move(CursorMove(b"a", 5, -1), CursorMove(b"b", 7, None))
    assert positions() == [(b"a", 5), (b"b", 7)]
    assert (positions(b"b"), positions(b"z")) == ([(b"b", 7)], [])
    with pytest.raises(Conflict, match="is at 7, expected was at 6"):
        move(CursorMove(b"a", 6, 5), CursorMove(b"b", 8, 6))
    with pytest.raises(Conflict, match="is not set, expected was at 0"):
        move(CursorMove(b"z", 6, 0))
    assert positions() == [(b"a", 5), (b"b", 7)]
    for name, own in (
        ("log.cursor_put", log.CursorBody("c", [CursorMove(b"a", 9, 5)])),
        ("log.cursor_delete", log.CursorBody("c")),
    ):
        with pytest.raises(DeadlineExceeded, match=name):
            call(one, name, own, within_s=0.0)
    assert positions() == [(b"a", 5), (b"b", 7)]
    shards[0].restart()
    assert positions() == [(b"a", 5), (b"b", 7)]
    call(one, "log.cursor_delete", log.CursorBody("c"))
    assert positions() == []


def test_the_answers_of_a_producer_are_found(shards: dict[int, OneShard]) -> None:
    shards[0].append_numbered(0, 3, producer="p")
    shards[0].append_numbered(1, 4, producer="p")
    answer = call({0: shards[0]}, "log.producer", log.ProducerBody("p")).body
    assert wire.unpack(answer, log.ProducerReply).answers == [(3, 0, 1), (4, 1, 1)]
