"""The coordinator's log over shards in this process: whole batches or nothing, in order, whatever fails."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import time
from pathlib import Path
from typing import Any

import pytest

from coordinator.log.area import LogArea
from coordinator.log.policy_document import Policy
from coordinator.log.reads import KeySelection
from shared.errors import BadData, ConfigError, Overloaded, TriptychError, Unavailable
from shared.hashing import shard_of
from shared.messages.log import SEQUENCE_MAX
from tests.unit.log_area import EVERYTHING, SHARDS, Log, Record, batch, eventually, key_on, read
from tests.unit.log_shard import OneShard


@pytest.fixture
def log(tmp_path: Path) -> Any:
    made = Log(tmp_path)
    yield made
    made.links.close()


async def test_concurrent_appends_never_overlap(log: Log) -> None:
    async with log.running() as area:
        sizes = [random.randrange(1, 50) for _ in range(100)]
        answers = await asyncio.gather(*(area.append(batch(*[(b"%d" % i, b"") for i in range(n)])) for n in sizes))
        spans = sorted((start, start + count) for start, count in answers)
        assert [count for _, count in answers] == sizes
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(spans))
        assert [n for n, _, _ in await read(area)] == [n for a, b in spans for n in range(a, b)]


async def test_batches_that_wait_together_share_a_message(log: Log) -> None:
    async with log.running() as area:
        await area.recovery.complete.wait()
        log.links.calls.clear()
        await asyncio.gather(*(area.append(batch((b"key", b"%d" % i))) for i in range(100)))
        assert log.links.calls.count("log.append") == 1


async def test_a_missing_shard_refuses_the_batch_before_anything_is_written(log: Log) -> None:
    async with log.running() as area:
        await area.append(batch((key_on(0), b"before")))
        log.links.down.add(1)
        with pytest.raises(Unavailable):
            await area.append(batch((key_on(0), b"half"), (key_on(1), b"other half")))
        await area.append(batch((key_on(0), b"alone")))
        assert [v for _, _, v in await read(area, KeySelection(key_on(0)))] == [b"before", b"alone"]


@pytest.mark.parametrize("fault", ["lost", "unanswered", "late"])
async def test_half_a_batch_is_never_read(log: Log, fault: str) -> None:
    async with log.running() as area:
        await area.append(batch((b"first", b"1")))
        log.links.fault = lambda method, shard: fault if (method, shard) == ("log.append", 1) else ""
        with pytest.raises(Unavailable, match="shard 1"):
            await area.append(batch((key_on(0), b"half"), (key_on(1), b"other half")))
        log.links.fault = lambda method, shard: ""
        assert [v for _, _, v in await read(area)] == [b"1"]
        log.links.deliver_late()
        await area.append(batch((key_on(0), b"2"), (key_on(1), b"3")))
        assert [v for _, _, v in await read(area)] == [b"1", b"2", b"3"]
        await eventually(lambda: not area.sequencer.revoked)
        assert [v for _, _, v in await read(area)] == [b"1", b"2", b"3"]
        assert await area.reader.count(EVERYTHING, 0, SEQUENCE_MAX) == 3


async def test_batches_of_other_shards_do_not_share_a_failure(log: Log) -> None:
    async with log.running() as area:
        await area.append(batch((b"first", b"1")))
        log.links.fault = lambda method, shard: "lost" if (method, shard) == ("log.append", 1) else ""
        outcomes = await asyncio.gather(
            *(area.append(batch((key_on(shard), b"%d" % shard))) for shard in range(SHARDS)), return_exceptions=True
        )
        assert [isinstance(outcome, Unavailable) for outcome in outcomes] == [False, True, False]


async def test_a_revoked_batch_stays_hidden_while_its_shard_is_down_and_after_a_crash(log: Log) -> None:
    async with log.running(crash=True) as area:
        await area.append(batch((b"first", b"1")))
        log.links.fault = lambda method, shard: {0: "", 1: "lost", 2: ""}[shard] if method == "log.append" else "lost"
        with pytest.raises(Unavailable):
            await area.append(batch((key_on(0), b"half"), (key_on(1), b"other half")))
        log.links.fault = lambda method, shard: "lost" if method == "log.revoke" else ""
        await area.append(batch((key_on(0), b"2")))
        assert [v for _, _, v in await read(area)] == [b"1", b"2"]
    async with log.running() as area:
        assert [v for _, _, v in await read(area)] == [b"1", b"2"]
        assert await area.reader.keys(b"", None, (0, 99), 10) == (sorted([b"first", key_on(0)]), False)
        log.links.fault = lambda method, shard: ""
        await eventually(lambda: not area.sequencer.revoked)
        assert [v for _, _, v in await read(area)] == [b"1", b"2"]


@pytest.mark.parametrize("fault", ["lost", "unanswered", "late"])
async def test_what_was_under_way_when_the_coordinator_died_is_whole_or_gone(log: Log, fault: str) -> None:
    halves = batch((key_on(0), b"half"), (key_on(1), b"other half"))
    async with log.running(crash=True) as area:
        await area.append(batch((b"first", b"1")))
        hang = asyncio.Event()

        async def dies(*_: Any) -> None:
            hang.set()
            await asyncio.sleep(60)

        area.recovery.revoke = dies  # type: ignore[method-assign]
        log.links.fault = lambda method, shard: fault if (method, shard) == ("log.append", 1) else ""
        append = asyncio.create_task(area.append(halves))
        await hang.wait()
        append.cancel()
    log.links.fault = lambda method, shard: ""
    expected = [b"1", b"half", b"other half"] if fault == "unanswered" else [b"1"]
    async with log.running() as area:
        assert [v for _, _, v in await read(area)] == expected
        log.links.deliver_late()
        assert [v for _, _, v in await read(area)] == expected
        start, _ = await area.append(batch((key_on(1), b"new")))
        assert start > 3
        assert [v for _, _, v in await read(area)] == [*expected, b"new"]


async def test_readers_stop_below_a_batch_in_doubt_until_its_shards_are_back(log: Log) -> None:
    async with log.running(crash=True) as area:
        await area.append(batch((key_on(0), b"1")))
        await area.append(batch((key_on(0), b"2"), (key_on(1), b"3")))
        await area.append(batch((key_on(0), b"4")))
    log.links.down.add(1)
    async with log.running() as area:
        here = KeySelection(key_on(0))
        await area.append(batch((key_on(0), b"5")))
        assert [v for _, _, v in await read(area, here)] == [b"1"]
        with pytest.raises(Unavailable):
            await read(area)
        log.links.down.clear()
        await area.recovery.complete.wait()
        assert [v for _, _, v in await read(area)] == [b"1", b"2", b"3", b"4", b"5"]


async def test_what_is_appended_during_the_recovery_is_not_taken_for_a_remnant(log: Log) -> None:
    async with log.running() as area:
        await area.recovery.complete.wait()
    log.links.fault = lambda method, shard: "lost" if (method, shard) == ("log.recover", 1) else ""
    async with log.running() as area:
        await area.recovery.wait_for([0])
        await area.append(batch((key_on(0), b"1"), (key_on(1), b"2"), durable=True))
        log.links.fault = lambda method, shard: ""
        await area.recovery.complete.wait()
        assert [v for _, _, v in await read(area)] == [b"1", b"2"]


async def test_durable_records_are_durable_and_others_soon(log: Log) -> None:
    async with log.running() as area:
        start, count = await area.append(batch((b"k", b"1"), durable=False))
        await eventually(lambda: area.frontier.durable >= start + count, within_s=0.2)
        start, count = await area.append(batch((b"k", b"2"), durable=True))
        assert area.frontier.durable >= start + count


async def test_what_a_crash_spared_is_durable_soon_after_the_start_without_another_append(log: Log) -> None:
    async with log.running(crash=True) as area:
        log.links.fault = lambda method, shard: "lost" if method == "log.sync" else ""
        start, count = await area.append(batch((b"k", b"1"), durable=False))
    log.links.fault = lambda method, shard: ""
    log.links.calls.clear()
    async with log.running() as area:
        await eventually(lambda: area.frontier.durable >= start + count, within_s=2.0)
        assert log.links.calls.count("log.sync") >= SHARDS


async def test_durable_visibility_hides_what_is_not_on_disk(tmp_path: Path) -> None:
    log = Log(tmp_path, log_visibility="durable")
    async with log.running() as area:
        await area.append(batch((b"k", b"1"), durable=True))
        await area.recovery.complete.wait()
        await eventually(lambda: area.frontier.durable == area.sequencer.next)
        log.links.fault = lambda method, shard: "lost" if method == "log.sync" else ""
        await area.append(batch((b"k", b"2")))
        assert [v for _, _, v in await read(area)] == [b"1"]
        with area.followers.following(KeySelection(b"k"), 1) as follower:
            assert await area.followers.read(follower, 10) == []
            log.links.fault = lambda method, shard: ""
            assert [v for _, _, v, _ in await area.followers.read(follower, 10)] == [b"2"]
        assert [v for _, _, v in await read(area)] == [b"1", b"2"]
    log.links.close()


async def test_a_lost_state_file_is_made_anew_from_the_shards(log: Log, tmp_path: Path) -> None:
    async with log.running() as area:
        start, _ = await area.append(batch((b"k", b"1"), (b"other", b"2")))
    (tmp_path / "sequencer" / "state").unlink()
    async with log.running() as area:
        again, _ = await area.append(batch((b"k", b"3")))
        assert again >= start + 2
        assert [v for _, _, v in await read(area)] == [b"1", b"2", b"3"]


async def test_a_log_goes_on_when_its_state_was_lost_twice_and_the_shards_refuse_what_a_crash_had_reserved(
    log: Log, tmp_path: Path
) -> None:
    for _ in range(2):
        async with log.running(crash=True) as area:
            await area.append(batch((b"k", b"given up by the next start"), producer="p"))
        # The shards have been told to refuse everything below the numbers of this start, and nothing of it is kept.
        async with log.running(crash=True) as area:
            await eventually(area.recovery.complete.is_set)
            refused_below = area.sequencer.next
        (tmp_path / "sequencer" / "state").unlink()
        async with log.running() as area:
            assert (await area.append(batch((b"k", b"new"), durable=True)))[0] >= refused_below


def test_a_start_is_told_of_the_numbers_that_an_earlier_one_had_refused(tmp_path: Path) -> None:
    shard = OneShard(tmp_path / "shard")
    assert shard.part.recover(1 << 20, 0, 0)[0] == 0
    assert shard.part.recover(0, 0, 0)[0] == 1 << 20
    shard.close()


async def test_retention_by_size_drops_whole_segments(tmp_path: Path) -> None:
    log = Log(tmp_path, log_segment_bytes=1024, log_retention_bytes=2500)
    async with log.running() as area:
        for _ in range(10):
            await area.append(batch((b"k", bytes(500)), (b"j", bytes(500))))
        first = 16  # of five segments of 2,000 bytes, the last two fit
        await eventually(lambda: sum(shard.logs.counts()["records"] for shard in log.links._shards) == 20 - first)
        assert area.sequencer.log_start == first
        assert [n for n, _, _ in await read(area)] == list(range(first, 20))
        assert len(list(log.links._shards[shard_of(b"k", SHARDS)].store.scan("log"))) <= 2 * (20 - first)
    log.links.close()


async def test_retention_by_age_drops_an_idle_log(tmp_path: Path) -> None:
    log = Log(tmp_path, log_segment_age_ms=100, log_retention_ms=200)
    async with log.running() as area:
        await area.append(batch((b"k", b"old")))
        await eventually(lambda: area.sequencer.log_start == 1)
        assert await read(area) == []
        await area.append(batch((b"k", b"new")))
        assert [v for _, _, v in await read(area)] == [b"new"]
    log.links.close()


async def test_a_clock_that_jumps_back_drops_nothing_and_repeats_no_number(tmp_path: Path) -> None:
    log = Log(tmp_path, log_segment_age_ms=100, log_retention_ms=60_000)
    async with log.running(crash=True) as area:
        await area.append(batch((b"k", b"1")))
        now_ms = area.sequencer.wall_ms()
        area.sequencer.wall_ms = lambda: now_ms - 86_400_000
        await asyncio.sleep(0.15)
        assert await area.append(batch((b"k", b"2"))) == (1, 1)
        assert [s.start_seq for s in area.sequencer.segments] == [0, 1]
        times = [s.start_time_ms for s in area.sequencer.segments]
        assert times == sorted(times)
        await area._retention._check()
        assert [v for _, _, v in await read(area)] == [b"1", b"2"]
    async with log.running() as area:
        area.sequencer.wall_ms = lambda: now_ms - 2 * 86_400_000
        start, _ = await area.append(batch((b"k", b"3")))
        assert start > 1
        assert [v for _, _, v in await read(area)] == [b"1", b"2", b"3"]
    log.links.close()


async def test_a_clock_that_jumps_forward_drops_nothing(tmp_path: Path) -> None:
    """Neither by the retention nor by policies, until it has been steady for a while."""
    log = Log(tmp_path, log_segment_age_ms=100, log_retention_ms=3_600_000)
    async with log.running() as area:
        await area.append(batch((b"k", b"1")))
        await asyncio.sleep(0.15)
        await area.append(batch((b"k", b"2")))
        assert [s.start_seq for s in area.sequencer.segments] == [0, 1]
        await area.policies.put(Policy("aged", b"", max_age_ms=3_600_000))
        area.sequencer.wall_ms = lambda: time.time_ns() // 1_000_000 + 365 * 86_400_000
        await area._retention._check()
        assert await area.policy_passes._pass()
        assert [v for _, _, v in await read(area)] == [b"1", b"2"]
    log.links.close()


async def test_a_follower_is_handed_the_records_without_a_read(log: Log) -> None:
    async with log.running() as area:
        await area.append(batch((b"k", b"1")))
        with area.followers.following(KeySelection(b"k"), 0) as follower:
            assert [v for _, _, v, _ in await area.followers.read(follower, 10)] == [b"1"]
            log.links.calls.clear()
            await area.append(batch((b"j", b"not this"), (b"k", b"2"), (b"k", b"3")))
            assert [v for _, _, v, _ in await area.followers.read(follower, 10)] == [b"2", b"3"]
            assert "log.scan" not in log.links.calls


async def test_a_slow_follower_loses_nothing(log: Log) -> None:
    async with log.running() as area:
        with area.followers.following(KeySelection(None, b"k"), 0) as follower:
            assert await area.followers.read(follower, 10) == []
            for i in range(30):
                await area.append(batch(*[(b"k%d" % (j % 5), b"%d" % (i * 100 + j)) for j in range(100)]))
            seen: list[bytes] = []
            while len(seen) < 3000:
                seen += [v for _, _, v, _ in await area.followers.read(follower, 700)]
            assert seen == [b"%d" % i for i in range(3000)]


async def test_followers_are_bounded(tmp_path: Path) -> None:
    log = Log(tmp_path, log_followers_max=1)
    async with log.running() as area:
        with area.followers.following(EVERYTHING, 0), pytest.raises(Overloaded, match="LOG_FOLLOWERS_MAX"):
            area.followers.following(EVERYTHING, 0).__enter__()
        with area.followers.following(EVERYTHING, 0):
            pass
    log.links.close()


async def test_a_producer_is_answered_again_after_a_crash(log: Log) -> None:
    async with log.running(crash=True) as area:
        first = await area.append(batch((b"a", b"1"), (b"b", b"2"), producer="p", seq=7))
    async with log.running() as area:
        assert await area.append(batch((b"a", b"1"), (b"b", b"2"), producer="p", seq=7)) == first
        assert len(await read(area)) == 2
        with pytest.raises(BadData, match="is at 7 already"):
            await area.append(batch((b"a", b"0"), producer="p", seq=3))


async def test_a_producer_may_repeat_what_failed(log: Log) -> None:
    async with log.running() as area:
        await area.append(batch((b"a", b"0"), producer="p", seq=1))
        home = shard_of(b"p", SHARDS)
        log.links.fault = lambda method, shard: "unanswered" if (method, shard) == ("log.append", home) else ""
        with pytest.raises(Unavailable):
            await area.append(batch((key_on(0), b"1"), producer="p", seq=2))
        log.links.fault = lambda method, shard: ""
        await area.append(batch((key_on(0), b"1"), producer="p", seq=2))
        assert [v for _, _, v in await read(area)] == [b"0", b"1"]


async def test_a_producer_that_sends_twice_at_once_is_stored_once(log: Log) -> None:
    async with log.running() as area:
        same = batch((b"a", b"1"), producer="p", seq=1)
        answers = await asyncio.gather(*(area.append(same) for _ in range(10)))
        assert len(set(answers)) == 1
        assert len(await read(area)) == 1


@pytest.mark.parametrize("seed", range(int(os.environ.get("LOG_FAULT_SEEDS", "6"))))
async def test_batches_are_whole_and_stay_where_they_are_under_random_faults(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twelve lives of a coordinator whose shards lose, delay and leave unanswered, and restart; readers look on."""
    if seed % 2:  # records are gathered into runs all the time, not only when they are many
        monkeypatch.setattr("worker.logs.part.GATHER_BYTES", 1)
        monkeypatch.setattr("worker.logs.part.BEHIND_FACTOR", 1)
    chance = random.Random(seed)
    log = Log(tmp_path, log_segment_bytes=4096)
    acknowledged: dict[int, list[tuple[bytes, bytes]]] = {}
    sent: list[list[tuple[bytes, bytes]]] = []
    seen: list[Record] = []

    def faults(method: str, shard: int) -> str:
        if method == "log.append" and chance.random() < 0.1:
            return chance.choice(["lost", "unanswered", "late"])
        return "lost" if method in ("log.revoke", "log.sync") and chance.random() < 0.5 else ""

    async def one(area: LogArea, records: list[tuple[bytes, bytes]]) -> None:
        try:
            start, _ = await area.append(batch(*records, durable=chance.random() < 0.5))
            acknowledged[start] = records
        except TriptychError:
            pass

    async def look(area: LogArea) -> None:
        nonlocal seen
        now = await read(area)
        assert now[: len(seen)] == seen, "what was read once has changed"
        seen = now

    for _ in range(12):
        async with log.running(crash=chance.random() < 0.7) as area:
            log.links.fault = faults
            for step in range(5):
                writes = []
                for i in range(chance.randrange(1, 8)):
                    mark = b"%d-%d-%d" % (len(sent), step, i)
                    sent.append(
                        [(b"k%d" % chance.randrange(9), mark + b"/%d" % n) for n in range(chance.randrange(1, 6))]
                    )
                    writes.append(asyncio.create_task(one(area, sent[-1])))
                await asyncio.gather(*writes)
                await look(area)
                if chance.random() < 0.3:
                    log.links.restart(chance.randrange(SHARDS))
                if chance.random() < 0.5:
                    log.links.deliver_late()
            for i in range(3):  # under way when it ends
                sent.append([(b"k%d" % i, b"end %d/%d" % (len(sent), i))])
                asyncio.create_task(one(area, sent[-1])).add_done_callback(lambda task: task.cancelled())
            await asyncio.sleep(0)
    log.links.fault = lambda method, shard: ""
    async with log.running() as area:
        await look(area)
        await eventually(lambda: not area.sequencer.revoked)
        await look(area)
    by_number = {number: (key, value) for number, key, value in seen}
    assert [number for number, _, _ in seen] == sorted(by_number)
    for start, records in acknowledged.items():
        assert [by_number.get(start + i) for i in range(len(records))] == records
    stored = [(key, value) for _, key, value in seen]
    for records in sent:
        found = [record for record in records if record in stored]
        assert found in ([], records), "half a batch"
    log.links.close()


async def test_policies_are_read_at_the_start_and_a_damaged_document_is_named(log: Log) -> None:
    async with log.running() as area:
        await area.policies.put(Policy("a", b"prefix", 3))
    async with log.running() as area:
        assert area.policies.all() == [Policy("a", b"prefix", 3)]
    document = log.settings.data / "sequencer" / "policies"
    document.write_bytes(document.read_bytes()[:-1] + b" ")
    with pytest.raises(ConfigError, match=r"sequencer/policies is damaged \(its checksum does not match"):
        async with log.running():
            pass
    document.unlink()
