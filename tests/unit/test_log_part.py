"""One shard's log: what is in the write-ahead log, in memory and in the store is one log, whenever it crashes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shared.errors import Internal, Unavailable
from shared.hashing import hash64
from shared.log.blocks import block_of
from shared.messages.log import Batch
from tests.unit.log_shard import OneShard, named
from worker.logs import part, rows, writing
from worker.logs.gathering import RUN_BYTES_MAX, RUN_RECORDS_MAX
from worker.logs.keeper import Keeper
from worker.logs.messages import Message, Revocation, read
from worker.logs.part import LogPart
from worker.logs.runs import unpacked
from worker.storage.rows.store import Store
from worker.storage.wal.log import LOG, WriteAheadLog


@pytest.fixture
def shard(tmp_path: Path) -> Iterator[OneShard]:
    made = OneShard(tmp_path / "shard")
    yield made
    made.close()


def stored_runs(shard: OneShard) -> int:
    return len(list(shard.store.scan("log", rows.RUN, rows.after(rows.RUN))))


def test_groups_are_read_from_memory_then_from_the_store(shard: OneShard) -> None:
    shard.append(0, named(10), named(5))
    shard.append(15, named(4, b"other"))
    before = shard.read()
    assert [number for number, _, _ in before] == list(range(19))
    assert stored_runs(shard) == 0
    shard.part.gather()
    assert stored_runs(shard) == 3, "the last group is not known to be decided"
    assert shard.read() == before
    shard.append(19, named(1))
    assert shard.read()[:19] == before
    assert shard.read(b"other") == before[15:]


@pytest.mark.parametrize("moment", ["before the gathering", "after its write", "after its flush", "after the release"])
def test_a_crash_around_a_gathering_changes_nothing(
    shard: OneShard, tmp_path: Path, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for group in range(0, 50, 10):
        shard.append(group, named(10, start=group), producer="p")
    before, answers, counts = shard.read(), shard.part.producer_answers("p"), shard.part.segments()
    if moment != "after the release":
        monkeypatch.setattr(shard.part, "_release", lambda: None)
    if moment != "before the gathering":
        shard.part.gather()
    if moment in ("after its flush", "after the release"):
        shard.part.flush()
    for number in range(2):
        after = shard.crashed_into(tmp_path / f"after-{number}")
        assert after.read() == before
        assert after.part.producer_answers("p") == answers
        assert after.part.segments() == counts
        after.append(50, named(10, start=50))
        after.part.gather()
        assert [number for number, _, _ in after.read()] == list(range(60))
        after.restart()
        assert [number for number, _, _ in after.read()] == list(range(60))
        after.close()


def test_the_write_ahead_log_is_released_up_to_what_is_still_in_memory(
    shard: OneShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    released: list[int] = []
    monkeypatch.setattr(shard.part.wal, "release", released.append)
    shard.append(0, named(3))
    shard.append(3, named(3))
    first = [held.position for held in shard.part._memory.segments[0].groups]
    shard.part.gather()
    assert released == []
    shard.part.flush()
    assert released == [first[1]]
    shard.append(6, named(3), closed=9)
    shard.part.gather()
    shard.part.flush()
    assert released[1] > first[1]
    assert shard.part._memory.first_position is None


def test_a_group_past_its_deadline_is_not_written_however_long_it_waited_for_room(shard: OneShard) -> None:
    """The deadline is looked at once more when the shard may write: a worker may have been stopped meanwhile."""
    block = block_of([(hash64(b"k"), 0, b"k", b"v")])
    message = Message(0, 0, 0, 0, (Batch(0, 1, (0,)),), block)
    assert writing.append({0: (shard.part, message)}, durable=True, is_late=lambda: True) == {0: writing.PAST_DEADLINE}
    assert shard.read() == []
    shard.restart()
    assert shard.read() == []


def test_what_a_refused_gathering_still_holds_is_not_released(
    shard: OneShard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard.append(0, named(10))
    shard.append(10, named(5))

    def refuse(*_: Any, **options: Any) -> None:
        raise Unavailable("no room, says the test")

    with monkeypatch.context() as patch:
        patch.setattr(shard.store, "write", refuse)
        with pytest.raises(Unavailable):
            shard.part.gather()
    shard.part.revoke(0, 10, [(10, 15)])  # of what is in memory nothing is left to be kept
    released: list[int] = []
    monkeypatch.setattr(shard.part.wal, "release", released.append)
    first = shard.part._gathering.first_position
    shard.part.flush()
    assert first is not None
    assert released == [first]
    monkeypatch.undo()
    assert [number for number, _, _ in shard.crashed_into(tmp_path / "crashed").read()] == list(range(10))


def test_dropped_segments_stay_dropped(shard: OneShard, tmp_path: Path) -> None:
    shard.append(0, named(3), producer="old")
    shard.append(3, named(3), segment=1, producer="new")
    shard.part.gather()
    shard.append(6, named(3), segment=1)
    shard.append(9, named(3), segment=2)
    shard.part.drop(2, 9)
    assert "given up" in shard.append(12, named(3), segment=1)[0]
    for log in (shard, shard.crashed_into(tmp_path / "after")):
        assert [number for number, _, _ in log.read()] == [9, 10, 11]
        assert [segment.segment for segment in log.part.segments()] == [2]
        assert log.part.counts() == {"records": 3}
        assert log.part.producer_answers("old") == log.part.producer_answers("new") == []
    log.close()


def test_groups_that_overtake_each_other_are_read_in_order(shard: OneShard) -> None:
    shard.append(10, named(5, start=10), closed=0)
    shard.append(0, named(10), closed=0)
    expected = [(n, b"%d" % n) for n in range(15)]
    assert [(number, value) for number, _, value in shard.read()] == expected
    shard.append(15, named(5, start=15), closed=15)
    shard.part.gather()
    assert [(number, value) for number, _, value in shard.read()][:15] == expected


def test_a_store_that_refuses_loses_nothing_and_stops_what_comes(
    shard: OneShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(part, "GATHER_BYTES", 2000)
    write = shard.store.write

    def full(*_: Any, **__: Any) -> None:
        raise Unavailable("no room")

    monkeypatch.setattr(shard.store, "write", full)
    group = 0
    while not (failed := shard.append(group, named(10, start=group))):
        group += 10
        assert group < 10_000
    assert failed == {0: "no room"}
    expected = shard.read()
    assert [number for number, _, _ in expected] == list(range(group))
    shard.part.revoke(0, 0, [(0, 10)])
    assert shard.read() == expected[10:]
    monkeypatch.setattr(shard.store, "write", write)
    assert shard.append(group, named(10, start=group)) == {}
    assert shard.read()[: group - 10] == expected[10:]
    assert shard.part.counts() == {"records": group}
    shard.restart()
    assert shard.part.counts() == {"records": group}


def test_a_start_reports_groups_in_memory_and_in_the_store(shard: OneShard) -> None:
    shard.append(0, named(3))
    shard.append(3, named(3), named(2))
    shard.part.gather()
    shard.append(8, named(3))
    above, settled, groups = shard.part.recover(11, 3, 0)
    assert (above, settled, sorted(group.group for group in groups)) == (11, 3, [3, 8])
    assert "given up" in shard.append(9, named(1))[0]
    assert shard.append(11, named(1)) == {}


def test_a_frame_that_is_no_block_is_an_error_and_stores_nothing(shard: OneShard) -> None:
    for frame in (b"x", bytes(7), b"\xff" * 64, bytes(8)):
        message = Message(0, 0, 0, 0, (Batch(0, 1, (0,)),), frame)
        with pytest.raises(Internal, match="blocks of records"):
            writing.append({0: (shard.part, message)}, durable=True)
    assert shard.append(0, named(2)) == {}
    shard.restart()
    assert [number for number, _, _ in shard.read()] == [0, 1]


@pytest.mark.parametrize(("count", "size"), [(1, 3), (RUN_RECORDS_MAX + 1, 1), (3, 200_000), (5000, 100), (1, 0)])
def test_runs_are_bounded_and_hold_all_records(shard: OneShard, count: int, size: int) -> None:
    values = [bytes([i % 256]) * size for i in range(count)]
    shard.append(100, [(b"a\0b", value) for value in values], segment=7, closed=100 + count)
    shard.part.gather()
    found = list(shard.store.scan("log", rows.RUN, rows.after(rows.RUN)))
    runs = [unpacked(value) for _, value in found]
    firsts = [rows.sequence_bytes(int(run.sequences[0])) for run in runs]
    assert [row for row, _ in found] == [rows.runs_of(7, b"a\0b") + first for first in firsts]
    assert all(len(run.sequences) <= RUN_RECORDS_MAX for run in runs)
    assert all(int(run.ends[-1]) <= RUN_BYTES_MAX + size for run in runs)
    assert [n for run in runs for n in run.sequences.tolist()] == list(range(100, 100 + count))
    assert [run.value(i) for run in runs for i in range(len(run.ends))] == values


def test_records_of_the_write_ahead_log_are_read_as_they_were_written() -> None:
    message = Message(3, 1 << 60, 5, 7, (Batch(1, 2, (0, 4), "p", 9), Batch(3, 1, (0,))), b"blocks")
    assert read(memoryview(b"".join(message.pieces()))) == message
    revocation = Revocation(3, 9, [(9, 12), (15, 16)])
    assert read(memoryview(b"".join(revocation.pieces()))) == revocation
    with pytest.raises(ValueError, match="kind 9"):
        read(memoryview(bytes([9]) + bytes(39)))


def test_shards_of_a_worker_share_one_write_and_one_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = WriteAheadLog(tmp_path / "wal").open()
    keeper, parts = Keeper(log), []
    for number in range(4):
        parts.append(LogPart(Store(tmp_path / str(number)), keeper, log.stream(number, LOG)))
        parts[-1].load()
    calls: list[str] = []
    for name in ("write", "sync"):
        method = getattr(log, name)
        monkeypatch.setattr(log, name, lambda *a, name=name, method=method: calls.append(name) or method(*a))
    frame = block_of([(hash64(b"k"), 0, b"k", b"v")])
    parts[2].revoke(0, 7, [(7, 8)])
    calls.clear()
    arrivals = {
        number: (own, Message(0, 7, 0, 0, (Batch(7, 1, (0, 1, 2, 3)),), frame)) for number, own in enumerate(parts)
    }
    failed = writing.append(arrivals, durable=True)
    assert calls == ["write", "sync"]
    assert list(failed) == [2]
    assert "given up" in failed[2]
    assert [own.counts()["records"] for own in parts] == [1, 1, 0, 1]
    for own in parts:
        own.close()
        own.store.close()
    log.close()


@pytest.mark.parametrize("seed", range(6))
def test_a_random_life_leaves_what_a_list_would(tmp_path: Path, seed: int) -> None:
    """Groups that come, overtake, are revoked, gathered and dropped, and crashes at any moment between."""
    chance = random.Random(seed)
    shard = OneShard(tmp_path / "life")
    model: dict[int, tuple[int, bytes, bytes]] = {}  # number → (segment, key, value)
    spans: list[tuple[int, int, int, int]] = []  # segment, group, start, end of batches
    following = closed = first_segment = 0
    for step in range(150):
        act = chance.random()
        segment = following // 200
        if act < 0.6:
            pending = []
            for _ in range(chance.randrange(1, 4)):
                group = following
                batches = [
                    [(b"k%d" % chance.randrange(5), b"%d-%d" % (step, i)) for i in range(chance.randrange(1, 5))]
                    for _ in range(chance.randrange(1, 4))
                ]
                for batch in batches:
                    spans.append((segment, group, following, following + len(batch)))
                    for key, value in batch:
                        model[following] = (segment, key, value)
                        following += 1
                pending.append((group, batches))
            chance.shuffle(pending)
            for group, batches in pending:
                assert shard.append(group, *batches, segment=segment, closed=closed) == {}
            closed = following if chance.random() < 0.7 else closed
        elif act < 0.75:
            shard.part.gather()
            if chance.random() < 0.3:
                shard.part.flush()
        elif act < 0.85 and spans:
            segment, group, start, end = chance.choice(spans[-20:])
            shard.part.revoke(segment, group, [(start, end)])
            for number in range(start, end):
                model.pop(number, None)
        elif act < 0.88 and segment > first_segment + 1:
            first_segment += 1
            shard.part.drop(first_segment, first_segment * 200)
            model = {number: row for number, row in model.items() if row[0] >= first_segment}
            spans = [span for span in spans if span[0] >= first_segment]
        else:
            crashed = shard.crashed_into(tmp_path / f"life-{step}")
            shard.close()
            shard = crashed
        if step % 10 == 9:
            assert shard.read() == [(number, row[1], row[2]) for number, row in sorted(model.items())]
            assert shard.part.counts() == {"records": len(model)}
    shard.close()
