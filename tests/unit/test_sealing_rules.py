"""When a head is sealed, by a clock of the test: at rest, with old samples, and never a storm of small blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.unit.series_shard import WINDOW_MS, A, Quiet, m
from worker.patience import MEMORY_S, Patience
from worker.series import sealing_rules
from worker.series.arena import NEVER
from worker.series.head import Head
from worker.series.sealing_rules import BUSY_S_MAX, LATE_S, REST_S, WORTH_BYTE_S, Due, HeadState, Reason, SealingRules

HOUR_S = 3600.0
WINDOW_HOURS_MS = 7_200_000
HEAD_BYTES_MAX = 64 << 20
BEGIN_MS = 1000 * WINDOW_HOURS_MS + WINDOW_HOURS_MS // 8
"""The clock of the wall when a window begins to be the one in which samples arrive."""
BIG = 8 << 20


class Simulated:
    """A shard that gets bytes, live or late, by the second; what was sealed, with its size and reason."""

    def __init__(self, begin_size: int = 0) -> None:
        self.now_s = 0.0
        self.live = self.late = 0
        self.live = begin_size
        self.is_behind = self.is_frozen = False
        self.seals: list[tuple[float, Reason, int]] = []
        self.rules = SealingRules(HEAD_BYTES_MAX, WINDOW_HOURS_MS, lambda: self.now_s)
        self.rules.begin(self.state(), self.now_ms)

    @property
    def now_ms(self) -> int:
        return BEGIN_MS + round(self.now_s * 1000)

    def state(self) -> HeadState:
        before_ms = self.rules.before_ms(self.now_ms)
        earliest_ms = before_ms - 1 if self.late else before_ms if self.live else NEVER
        size = self.live + self.late
        return HeadState(size, size, earliest_ms, self.is_behind, self.is_frozen, lambda _: self.late)

    def run(self, seconds: float, arrive: Callable[[int], tuple[int, int]] = lambda _: (0, 0)) -> Simulated:
        """`arrive`: second → (live bytes, late bytes) that arrive then."""
        for second in range(round(seconds)):
            self.now_s += 1.0
            live, late = arrive(second)
            self.live += live
            self.late += late
            due = self.rules.due(self.state(), self.now_ms)
            if due is not None:
                self._seal(due)
        return self

    def _seal(self, due: Due) -> None:
        size = self.live + self.late if due.before_ms == NEVER else self.late
        self.seals.append((self.now_s, due.reason, size))
        self.late = 0
        if due.before_ms == NEVER:
            self.live = 0
        self.rules.sealed(due)

    @property
    def reasons(self) -> list[Reason]:
        return [reason for _, reason, _ in self.seals]


def every(seconds: int, size: int) -> Callable[[int], tuple[int, int]]:
    return lambda second: (size if second % seconds == 0 else 0, 0)


def test_a_large_head_is_sealed_soon_after_the_last_samples() -> None:
    shard = Simulated().run(20, every(1, BIG // 20)).run(120)
    [(at_s, reason, size)] = shard.seals
    assert (reason, size) == ("rest", BIG // 20 * 20)
    assert 20 + REST_S - 2 <= at_s <= 20 + REST_S + 1


def test_a_trickle_does_not_end_the_rest_of_a_head_that_others_have_filled() -> None:
    shard = Simulated().run(HOUR_S / 2, every(15, 600)).run(20, every(1, BIG // 20)).run(40, every(15, 600))
    assert shard.reasons == ["rest"]
    assert shard.run(HOUR_S, every(15, 600)).reasons == ["rest"], "the trickle alone is not at rest"


def test_a_small_head_rests_longer_so_that_its_block_is_worth_it() -> None:
    size = WORTH_BYTE_S // 600
    shard = Simulated().run(1, every(1, size)).run(595)
    assert not shard.seals
    assert shard.run(10).reasons == ["rest"]
    assert not Simulated().run(1, every(1, 1000)).run(HOUR_S).seals, "a very small one waits for its window"


@pytest.mark.parametrize("interval_s", [5, 15, 30, 60])
@pytest.mark.parametrize("size", [160 * 340, 1 << 20, 2 << 20])
def test_a_steady_sender_is_not_sealed_before_its_window_is_over(interval_s: int, size: int) -> None:
    """With 340 series of 15 s in a shard, and with very many."""
    scrape = size * interval_s // 240
    shard = Simulated().run(1.9 * HOUR_S, every(interval_s, scrape))
    assert shard.reasons == []


@pytest.mark.parametrize("interval_s", [45, 60, 90, 300])
def test_large_bursts_with_long_pauses_are_not_sealed_one_by_one_for_ever(interval_s: int) -> None:
    shard = Simulated().run(2 * HOUR_S, every(interval_s, 4 << 20))
    early = [reason for reason in shard.reasons if reason == "rest"]
    assert len(early) <= 12, "each makes the next one wait longer"


def test_a_steady_sender_that_stops_is_sealed_within_minutes() -> None:
    shard = Simulated().run(HOUR_S, every(15, 16 * 2700)).run(60)
    assert not shard.seals
    assert shard.run(BUSY_S_MAX).reasons == ["rest"]


def test_what_a_start_has_replayed_is_not_sealed_before_its_senders_could_come_back() -> None:
    shard = Simulated(begin_size=BIG).run(BUSY_S_MAX - 10, every(15, 1000))
    assert not shard.seals
    assert shard.run(20).reasons == ["rest"]


def test_old_samples_among_live_ones_are_sealed_after_a_while_and_the_log_is_free_of_them() -> None:
    shard = Simulated().run(600, every(15, 500_000))
    shard.run(30, lambda second: (500_000 if second % 15 == 0 else 0, 50_000)).run(LATE_S - 35, every(15, 500_000))
    assert not shard.seals
    shard.run(10, every(15, 500_000))
    assert shard.reasons == ["late"]
    assert shard.seals[0][2] > 20_000_000, "with the live ones, in front of which the journal could not be cut"


def test_a_trickle_of_late_samples_makes_few_blocks() -> None:
    def arrive(second: int) -> tuple[int, int]:
        return (100_000 if second % 15 == 0 else 0), 200

    shard = Simulated().run(1.9 * HOUR_S, arrive)
    late = [size for _, reason, size in shard.seals if reason == "late"]
    assert set(shard.reasons) == {"late"}
    assert len(late) <= 12
    single = Simulated().run(600, every(15, 100_000)).run(1, lambda _: (0, 32)).run(HOUR_S, every(15, 100_000))
    assert not single.seals, "one sample waits for the end of the window"


def test_a_slow_backfill_is_sealed_a_few_times_only_and_before_its_head_is_full() -> None:
    shard = Simulated().run(1.9 * HOUR_S, lambda second: (1000, 20_000))
    assert 5 <= len(shard.seals) <= 12
    assert set(shard.reasons) == {"late"}


def test_a_fast_backfill_is_sealed_by_size() -> None:
    shard = Simulated().run(600, lambda second: (0, 4 << 20))
    assert set(shard.reasons) == {"size"}


def test_samples_sealed_at_rest_that_arrive_again_wait_for_the_next_seal() -> None:
    shard = Simulated().run(20, every(1, BIG // 20)).run(60).run(1, every(1, 1000)).run(600)
    assert shard.reasons == ["rest"]
    assert shard.live == 1000


def test_a_seal_that_failed_is_tried_again_first() -> None:
    shard = Simulated()
    shard.is_frozen = True
    assert shard.run(1, every(1, 1)).reasons == ["retry"]


def test_a_log_that_waits_is_heard_at_once() -> None:
    shard = Simulated()
    shard.is_behind = True
    assert shard.run(1, every(1, 1)).reasons == ["log"]


def test_a_clock_that_is_set_back_seals_no_window_twice_and_misses_none() -> None:
    shard = Simulated()
    shard.live = 1
    rules = shard.rules
    old = HeadState(1, 10, 0, False, False, lambda _: 0)
    assert rules.due(old, 2 * WINDOW_HOURS_MS) is None, "the windows before were sealed, as far as is known"
    for number in (3, 4):
        assert rules.due(old, number * WINDOW_HOURS_MS) == Due((number - 1) * WINDOW_HOURS_MS, "window")
        rules.sealed(Due((number - 1) * WINDOW_HOURS_MS, "window"))
        assert rules.due(old, number * WINDOW_HOURS_MS) is None


def test_patience_grows_with_each_time_and_is_forgotten() -> None:
    now_s = [0.0]
    patience = Patience(10.0, lambda: now_s[0])
    assert patience.wait_s == 10.0
    for done in range(1, 4):
        patience.done()
        assert patience.wait_s == 10.0 * (1 + done)
        now_s[0] += 1.0
    now_s[0] = MEMORY_S
    assert patience.wait_s == 40.0
    now_s[0] = MEMORY_S + 1.5
    assert patience.wait_s == 20.0
    now_s[0] = 3 * MEMORY_S
    assert patience.wait_s == 10.0


# With a shard


def test_late_bytes_of_a_head_are_those_before_the_time() -> None:
    head = Head()
    assert head.late_bytes(NEVER) == 0
    head.extend(2)
    times = np.arange(4, dtype=np.int64)
    head.append(np.zeros(4, np.int64), times, np.ones(4))
    head.append(np.ones(4, np.int64), times + 1000, np.ones(4))
    assert head.late_bytes(0) == 0
    assert head.late_bytes(4) == head.size_bytes // 2
    assert head.late_bytes(1003) == head.size_bytes // 2, "a chunk with later samples does not count"
    assert head.late_bytes(1004) == head.size_bytes


@pytest.fixture
def shard(tmp_path: Path) -> Iterator[Quiet]:
    opened = Quiet(tmp_path / "shard")
    yield opened
    opened.close()


def test_late_bytes_of_a_shard_include_those_that_the_last_seal_left(shard: Quiet) -> None:
    shard.write([(m(job="a"), [(t, 1.0) for t in range(2 * WINDOW_MS)])])
    shard.seal(WINDOW_MS)
    layers = shard.part.contents.layers
    assert layers.slab is not None
    assert shard.part.contents.late_bytes(WINDOW_MS) == 0
    assert shard.part.contents.late_bytes(2 * WINDOW_MS) == layers.slab.size_bytes
    shard.write([(m(job="a"), [(5, 2.0)])])
    assert shard.part.contents.late_bytes(WINDOW_MS) == shard.part.contents.head.size_bytes > 0


def test_a_shard_at_rest_is_sealed_and_counts_why_and_late_samples_over_its_blocks_count(
    shard: Quiet, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = [0.0]
    sealing = shard.part.upkeep.sealing
    monkeypatch.setattr(sealing_rules, "WORTH_BYTE_S", 1)
    sealing._rules = SealingRules(1 << 30, WINDOW_MS, lambda: now_s[0])
    now_ms = 10 * WINDOW_MS
    for _ in range(2):
        shard.write([(m(job="a"), [(now_ms, 1.0), (now_ms + 1, 2.0)])])
        for _ in range(round(3 * REST_S)):
            now_s[0] += 1.0
            type(sealing).tick(sealing, now_ms)
    assert sealing.seals_for == {"size": 0, "log": 0, "window": 0, "rest": 2, "late": 0, "retry": 0}
    assert shard.journal() == 0, "the log has nothing to replay"
    shard.write([(m(job="a"), [(now_ms, 3.0)])])
    assert shard.samples()[A] == [(now_ms, 3.0), (now_ms + 1, 2.0)]
    shard.reopen()
    assert shard.samples()[A] == [(now_ms, 3.0), (now_ms + 1, 2.0)]


def test_the_head_of_a_steady_sender_is_not_at_rest_while_its_chunks_have_room(
    shard: Quiet, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = [0.0]
    sealing = shard.part.upkeep.sealing
    monkeypatch.setattr(sealing_rules, "WORTH_BYTE_S", 1)
    sealing._rules = SealingRules(1 << 30, 1 << 40, lambda: now_s[0])
    for scrape in range(240):
        shard.write([(m(job=str(n)), [(scrape * 15_000, 1.0)]) for n in range(20)])
        for _ in range(15):
            now_s[0] += 1.0
            type(sealing).tick(sealing, scrape * 15_000)
    assert sum(sealing.seals_for.values()) == 0
