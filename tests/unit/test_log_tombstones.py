"""Tombstones: how requests and answers have them, and what policies make of them on a shard."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

from coordinator.api.log import answers
from coordinator.headers.negotiation import JSON, PROTOBUF, PROTOBUF_JSON
from coordinator.log import records
from coordinator.log.columns import FEW_RECORDS, columns_of
from coordinator.log.headers import packed
from coordinator.log.policies import PolicyPasses
from coordinator.log.policy_document import Policy
from proto import log_pb2
from shared.errors import BadData, Unavailable
from shared.log.headers import TOMBSTONE, HeadedValue, joined, split
from shared.messages.log import Batch, KeyPolicy, PoliciesBody, Range
from shared.messages.log_pages import Records
from shared.settings import Settings
from shared.wire import pack, unpack
from tests.unit.log_area import Log, batch
from tests.unit.log_shard import OneShard
from tests.unit.test_log_policies import apply, run
from tests.unit.test_log_trimming import Uncleaned, clean
from worker.logs import entries, policies, reading, rows, writing
from worker.logs.entries import GatheringEntry
from worker.logs.messages import Message

Row = tuple[int, bytes, bytes]
MARK = packed({}, "", "r", tombstone=True)
WITH_HEADERS = packed({"a": "b"}, "text/plain", "r", tombstone=True)
STONE = b""
"""In these tests a record is a tombstone if its value is empty."""


# Requests and answers


def body_of(content_type: str, rows: Sequence[dict[str, Any]]) -> bytes:
    if content_type != PROTOBUF:
        return json.dumps({"records": rows}).encode()
    message = log_pb2.AppendRequest()
    for row in rows:
        added = message.records.add(headers=row.get("headers"), tombstone=row.get("tombstone"))
        added.key.value = b"k"
        added.value = row.get("text", "").encode()
    return message.SerializeToString()


@pytest.mark.parametrize("count", [2, FEW_RECORDS + 1, 3000])
@pytest.mark.parametrize("content_type", [JSON, PROTOBUF_JSON, PROTOBUF])
def test_tombstones_are_read_from_bodies_of_every_size(content_type: str, count: int) -> None:
    rows: list[dict[str, Any]] = [{"keyText": "k", "text": "v", "tombstone": False} for _ in range(count)]
    rows[0] = {"keyText": "k", "tombstone": True}
    rows[-1] = {"keyText": "k", "tombstone": True, "headers": {"a": "b"}}
    read = records.parse(content_type, body_of(content_type, rows), Settings()).records
    found = [read.value(at) for at in range(count)]
    assert found == [b"", *[b"v"] * (count - 2), b""]
    headers = [value.headers if isinstance(value, HeadedValue) else b"" for value in found]
    assert headers == [TOMBSTONE, *[b""] * (count - 2), packed({"a": "b"}, "", "r", tombstone=True)]


@pytest.mark.parametrize("value", [{"text": "v"}, {"value": "dg=="}, {"json": None}])
@pytest.mark.parametrize("content_type", [JSON, PROTOBUF_JSON])
def test_a_tombstone_with_a_value_is_refused(content_type: str, value: dict[str, Any]) -> None:
    rows = [{"keyText": "k", "text": ""}, {"keyText": "k", "tombstone": True, **value}]
    with pytest.raises(
        BadData, match=r"`\$.records\[1\]` has more than one of `value`, `text`, `json` and `tombstone`"
    ):
        records.parse(content_type, body_of(content_type, rows), Settings())


def test_a_tombstone_with_a_value_is_refused_in_protobuf() -> None:
    rows = [{"tombstone": True}, {"text": "v", "tombstone": True}]
    with pytest.raises(BadData, match=r"`records\[1\]` has `tombstone` and a `value`"):
        records.parse(PROTOBUF, body_of(PROTOBUF, rows), Settings())


def test_a_record_with_neither_a_value_nor_a_tombstone_is_refused() -> None:
    with pytest.raises(BadData, match=r"records\[0\].value` is missing: give .* a `tombstone`"):
        records.parse(JSON, body_of(JSON, [{"keyText": "k", "tombstone": False}]), Settings())


def test_answers_show_tombstones() -> None:
    stones = [(1, b"k", split(joined(MARK, b"")), 7), (2, b"k", split(joined(WITH_HEADERS, b"")), 7), (3, b"k", b"", 7)]
    first, second, ordinary = json.loads(b"[" + answers.json_records(stones) + b"]")
    assert first == {"sequence": 1, "key": "aw==", "value": "", "timeMs": 7, "tombstone": True}
    assert (second["tombstone"], second["headers"], second["contentType"]) == (True, {"a": "b"}, "text/plain")
    assert "tombstone" not in ordinary
    for encoding in (answers.Encoding.TEXT, answers.Encoding.JSON):
        shown = json.loads(answers.json_records(stones[:1], answers.Form(encoding)))
        assert shown == {"sequence": 1, "keyText": "k", "text": "", "timeMs": 7, "tombstone": True}
    assert b'"tombstone":true' in answers.event(stones[0])
    stored = [joined(MARK, b""), joined(WITH_HEADERS, b""), b""]
    page = Records.of(np.arange(3, dtype=np.uint64), stored, [b"k"] * 3, np.arange(3), np.array([True, True, False]))
    (read,) = log_pb2.ScanResponse.FromString(b"".join(answers.protobuf_page(page))).pages
    ends = np.cumsum([0, *read.header_lengths]).tolist()
    parts = [log_pb2.RecordHeaders.FromString(read.headers[a:b]) for a, b in pairwise(ends)]
    assert [part.tombstone for part in parts] == [True, True, False]


# On a shard


@pytest.fixture
def shard(tmp_path: Path) -> Iterator[OneShard]:
    made = Uncleaned(tmp_path / "shard")
    yield made
    made.close()


def append(shard: OneShard, start: int, group: Sequence[tuple[bytes, bytes]], segment: int = 0) -> None:
    keys, values = [key for key, _ in group], [value for _, value in group]
    stones = {at: (MARK, WITH_HEADERS)[at % 2] for at, value in enumerate(values) if value == STONE}
    blocks = columns_of(keys, values, stones).blocks(1)
    message = Message(segment, start, start, 0, (Batch(start, len(group), (0,)),), bytes(blocks[0]))
    assert not writing.append({0: (shard.part, message)}, durable=True)


def stored_tombstones(shard: OneShard) -> list[int]:
    found = shard.store.scan("log", rows.ENTRY, rows.after(rows.ENTRY))
    return [number for _, value in found for number in entries.unpacked(value).tombstones.tolist()]


def test_a_tombstone_makes_older_records_go_and_then_itself(shard: OneShard) -> None:
    wanted = [KeyPolicy(b"", 3)]
    append(shard, 0, [(b"a", b"0"), (b"a", b"1"), (b"b", b"2"), (b"a", STONE), (b"c", STONE)])
    apply(shard, wanted, 5)
    assert shard.read() == [(2, b"b", b"2"), (3, b"a", STONE), (4, b"c", STONE)]
    append(shard, 5, [(b"a", b"5")])
    apply(shard, wanted, 6, expired=4)
    assert (3, b"a", STONE) in shard.read(), "a newer record follows: it is one of the newest 3"
    apply(shard, wanted, 6, expired=5)
    assert shard.read() == [(2, b"b", b"2"), (3, b"a", STONE), (5, b"a", b"5")]
    append(shard, 6, [(b"a", b"6"), (b"a", b"7")])
    apply(shard, wanted, 8)
    assert shard.read(b"a") == [(5, b"a", b"5"), (6, b"a", b"6"), (7, b"a", b"7")]
    assert stored_tombstones(shard) == []


def test_without_keep_newest_a_tombstone_is_an_ordinary_record(shard: OneShard) -> None:
    append(shard, 0, [(b"a", b"0"), (b"a", STONE), (b"z", STONE)])
    apply(shard, [KeyPolicy(b"a", 0, 1000), KeyPolicy(b"x", 1)], 3, expired=3)
    assert [number for number, _, _ in shard.read()] == [0, 1, 2]


def test_an_empty_value_and_headers_are_no_tombstone(shard: OneShard) -> None:
    odd = {0: packed({"\x18\x01": ""}, "", "r"), 1: packed({}, "\x18\x01", "r")}
    block = columns_of([b"a", b"a", b"a"], [b"", b"", b"\x18\x01\x18\x01\x18\x01"], odd).blocks(1)[0]
    message = Message(0, 0, 0, 0, (Batch(0, 3, (0,)),), bytes(block))
    assert not writing.append({0: (shard.part, message)}, durable=True)
    apply(shard, [KeyPolicy(b"", 5)], 3, expired=3)
    assert len(shard.read()) == 3 and stored_tombstones(shard) == []


def test_a_tombstone_that_is_not_settled_makes_nothing_go(shard: OneShard) -> None:
    append(shard, 0, [(b"k", b"old")])
    append(shard, 1, [(b"k", STONE)])
    run(shard, [KeyPolicy(b"", 5)], 1, True, closed=2, expired=2)
    clean(shard)
    assert [number for number, _, _ in shard.read()] == [0, 1]
    shard.part.revoke(0, 1, [(1, 2)])
    assert stored_tombstones(shard) == [], "it went with its batch"


def model(alive: list[Row], keep: int, expired: int) -> list[Row]:
    left = []
    for key in {row[1] for row in alive}:
        own = [row for row in alive if row[1] == key]
        stones = [at for at, row in enumerate(own) if row[2] == STONE]
        own = own[stones[-1] :][-keep:] if stones else own[-keep:]
        left += [] if own[-1][2] == STONE and own[-1][0] < expired else own
    return sorted(left)


@pytest.mark.parametrize("seed", range(8))
def test_passes_between_appends_leave_what_the_model_leaves(
    shard: OneShard, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(seed)
    monkeypatch.setattr("worker.logs.gathering.RUN_RECORDS_MAX", 3)
    if seed % 2:
        monkeypatch.setattr(policies, "KEYS_A_SLICE", 1)
    keep = chance.randint(1, 4)
    alive: list[Row] = []
    number = expired = 0
    for _ in range(40):
        group = [(chance.choice((b"a", b"aa", b"b")), chance.choice((STONE, b"1", b"2", b"3")))
                 for _ in range(chance.randint(1, 6))]  # fmt: skip
        append(shard, number, group, segment=number // 40)
        alive += [(number + at, key, value) for at, (key, value) in enumerate(group)]
        number += len(group)
        if chance.random() < 0.2:
            shard.part._closed = number
            shard.part.gather()
        if chance.random() < 0.3:
            expired = chance.randint(expired, number)
            apply(shard, [KeyPolicy(b"", keep)], number, expired=expired)
            alive = model(alive, keep, expired)
            assert shard.read() == alive
            assert stored_tombstones(shard) == [row[0] for row in alive if row[2] == STONE]
        if chance.random() < 0.1:
            shard.restart()
    # Under another policy, a pass begins with the first entry.
    apply(shard, [KeyPolicy(b"", keep), KeyPolicy(b"a", 2)], number, expired=number)
    ours = [row for row in alive if row[1] != b"b"]
    assert shard.read() == sorted(model(ours, 2, number) + model([r for r in alive if r[1] == b"b"], keep, number))


def test_no_value_is_read_to_find_tombstones(shard: OneShard, monkeypatch: pytest.MonkeyPatch) -> None:
    append(shard, 0, [(b"k%d" % n, b"v") for n in range(20)])
    apply(shard, [KeyPolicy(b"", 1)], 20)
    append(shard, 20, [(b"k3", STONE)])
    looked_at = []
    monkeypatch.setattr(policies, "_has_newer", lambda part, key, *_: looked_at.append(key))
    apply(shard, [KeyPolicy(b"", 1)], 21, expired=21)
    assert looked_at == [b"k3"] and len(shard.read()) == 19
    shard.restart()
    apply(shard, [KeyPolicy(b"", 1)], 21, expired=21)
    assert looked_at == [b"k3"], "the position is stored"


def test_policies_of_unlike_ages_are_each_at_their_own_place(shard: OneShard) -> None:
    wanted = [KeyPolicy(b"a", 1), KeyPolicy(b"b", 1), KeyPolicy(b"bb", 1), KeyPolicy(b"c", 0, 1000)]

    def pass_with(expired: list[int]) -> list[bytes]:
        more, is_new = True, True
        while more:
            more, is_new = policies.run(shard.part, PoliciesBody(wanted, [0] * 4, 8, 8, is_new, expired)), False
        clean(shard)
        return [key for _, key, _ in shard.read()]

    for start in (0, 4):
        append(shard, start, [(key + b"%d" % start, STONE) for key in (b"a", b"b", b"bb", b"c")])
        shard.part._closed = start + 4
        shard.part.gather()
    assert pass_with([4, 8, 4, 8]) == [b"c0", b"a4", b"bb4", b"c4"]
    assert pass_with([8, 8, 4, 8]) == [b"c0", b"bb4", b"c4"]
    shard.restart()
    assert pass_with([8, 8, 8, 8]) == [b"c0", b"c4"]


def test_positions_from_before_there_were_tombstones_begin_again(shard: OneShard) -> None:
    wanted = [KeyPolicy(b"", 1)]
    changes = shard.store.batch()
    changes.put("log", rows.POLICIES, msgspec.msgpack.encode((wanted, (0, 0), [(0, 0)])))
    shard.store.write(changes, durable=True)
    append(shard, 0, [(b"a", b"0"), (b"a", STONE)])
    apply(shard, wanted, 2, expired=2)
    assert shard.read() == []


def test_an_entry_with_a_tombstone_that_is_none_of_its_records_is_refused() -> None:
    numbers, codes = np.array([5, 6], np.uint64), np.array([0, 0], np.uint32)
    stray = GatheringEntry(0, [], numbers, codes, [b"k"], np.array([7], np.uint64))
    with pytest.raises(ValueError, match="it has 1 tombstones; each must be one of its records"):
        entries.unpacked(stray.packed())
    earlier = msgspec.msgpack.encode((0, [], numbers.tobytes(), codes.tobytes(), [b"k"]))
    assert len(entries.unpacked(earlier).tombstones) == 0, "of an earlier version"


def test_a_scan_of_a_key_shows_the_tombstone_before_and_after_gathering(shard: OneShard) -> None:
    append(shard, 0, [(b"a", b"0"), (b"a", STONE)])
    for _ in range(2):
        page = reading.scan(shard.part, Range(0, 9, 0, 9), b"a", 10, False).records
        plain, stone = page.value_list()
        assert not isinstance(plain, HeadedValue) and isinstance(stone, HeadedValue) and stone.headers == WITH_HEADERS
        shard.part._closed = 2
        shard.part.gather()


# The coordinator


async def test_a_pass_says_which_tombstones_are_old_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(tmp_path, log_policies_interval_ms=3_600_000)
    bodies: list[PoliciesBody] = []

    async def passes(self: PolicyPasses, shard: int, body: PoliciesBody) -> bool:
        bodies.append(unpack(pack(body), PoliciesBody))
        return True

    monkeypatch.setattr(PolicyPasses, "_shard_pass", passes)
    async with log.running() as area:
        for _ in range(3):
            await area.append(batch((b"k", b"v"), durable=True))
        await area.policies.put(Policy("a", b"a", 1, 0, 0))
        await area.policies.put(Policy("b", b"b", 0, 86_400_000))
        await area.policies.put(Policy("c", b"c", 1))
        settled = area.policy_passes._frontier.settled
        monkeypatch.setattr(area.policy_passes, "_ages", SimpleNamespace(before_ms=lambda age_ms: (1 << 50) - age_ms))
        assert await area.policy_passes._pass()
        assert bodies[-1].expired == [settled, 0, settled] and bodies[-1].too_old == [0, settled, 0]

        async def away(*_: Any) -> int:
            raise Unavailable("shard 1 is down")

        monkeypatch.setattr(area.policy_passes._reader, "sequence_at", away)
        assert not await area.policy_passes._pass(), "it is not complete"
        assert (bodies[-1].expired, bodies[-1].too_old) == ([0, 0, 0], [0, 0, 0]), "the newest are kept all the same"
    log.links.close()
