"""What is refused under pressure: by memory and by waiting, in order, and not before it has to be."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from coordinator.fanout.calls import Waits
from coordinator.limits import pressure as module
from coordinator.limits.limiter import AtWork
from coordinator.limits.pressure import LIMIT_MIN, REFUSED_FROM, STANDING_TICKS, Level, Pressure, Queue
from coordinator.limits.request_kinds import is_read
from shared.errors import Overloaded
from shared.settings import Settings

RESERVE = 1000
LEAST = 5
TARGET_MS = 15
READ, WRITE, STATE, PAGE = "/api/v1/query", "/api/v1/log/append", "/metrics", "/"
DELETE = "/api/v1/vector/delete"


@dataclass
class Work:
    requests: int = 0
    announced: int = 0
    requests_max: int = 1024
    looks: int = 0
    reads: AtWork = field(default_factory=lambda: AtWork(LEAST, 0.004))
    writes: AtWork = field(default_factory=lambda: AtWork(LEAST, 0.008))

    def at_work(self) -> int:
        return self.requests

    def look(self, refused_share: float) -> None:
        assert refused_share == 0.25
        self.looks += 1


def begin(kind: AtWork, count: int) -> None:
    """So many more of this kind are at work."""
    for _ in range(count):
        kind.begin(object(), "", is_alone=False)


class Memory:
    def __init__(self) -> None:
        self.available = 100 * RESERVE

    def total_bytes(self) -> int:
        return 200 * RESERVE

    def available_bytes(self) -> int:
        return self.available


class Service:
    """A pressure whose work, waits and memory a test sets."""

    def __init__(self, **settings: int) -> None:
        self.work, self.waits, self.gate_waits, self.memory, self.pauses = Work(), Waits(), Waits(), Memory(), 0
        own = Settings(queue_wait_ms=TARGET_MS, **{"memory_reserve_bytes": RESERVE, **settings})
        self.pressure = Pressure(
            own,
            self.work,
            (self.waits, self.gate_waits),
            self._pause,
            self.memory,  # type: ignore[arg-type]
        )
        self.pressure.hardness = lambda: 0.25

    def _pause(self) -> None:
        self.pauses += 1

    def look(self, *, wait_ms: float = 0.0, gate_wait_ms: float = 0.0, behind_s: float = 0.0, times: int = 1) -> None:
        for _ in range(times):
            self.gate_waits.calls, self.gate_waits.ms = 2, 2 * gate_wait_ms
            self.waits.calls, self.waits.ms = 4, 4 * wait_ms
            self.pressure.look(behind_s)

    def refused(self) -> list[str]:
        """Of heavy queries, writes and reads, those that are refused now."""
        names = [] if self.pressure.allows_heavy() else ["heavy"]
        if not self.pressure.is_on:
            return names
        return names + [name for name, path in (("write", WRITE), ("read", READ)) if self.pressure.refusal(path)]


@pytest.fixture
def service() -> Service:
    return Service()


def test_nothing_is_refused_when_nothing_waits(service: Service) -> None:
    service.work.requests = 1000
    service.look(wait_ms=TARGET_MS - 1, behind_s=0.01, times=50)
    assert not service.pressure.is_on
    assert service.refused() == []
    assert service.pauses == 0


def test_a_burst_is_no_overload(service: Service) -> None:
    service.work.requests = 1000
    for _ in range(10):
        service.look(wait_ms=500, times=STANDING_TICKS - 1)
        service.look(wait_ms=1)
    assert service.refused() == []


def test_a_standing_queue_is_an_overload_by_work_that_waits_or_by_an_event_loop_that_is_behind() -> None:
    for waiting in ({"wait_ms": 20.0}, {"gate_wait_ms": 20.0}, {"behind_s": 0.02}):
        service = Service()
        service.work.requests = 1000
        service.look(**waiting, times=STANDING_TICKS)
        assert service.refused() == ["heavy", "write", "read"]
        assert service.pressure.level == Level.WRITES


def test_a_crowd_that_waits_for_itself_is_bounded_at_once_and_refused_when_it_stands(service: Service) -> None:
    pressure = service.pressure
    for requests, wait_ms in ((module.CROWD - 1, 500.0), (module.CROWD, TARGET_MS - 1.0)):
        service.work.requests, service.waits.calls, service.waits.ms = requests, 1, wait_ms
        pressure.bounds_now()
        assert not pressure.is_on
    service.work.requests, service.waits.calls, service.waits.ms = 100, 2, 4.0 * TARGET_MS
    pressure.bounds_now()
    assert pressure.is_on
    assert pressure.limit == 50
    assert not pressure.is_standing
    service.look(wait_ms=TARGET_MS - 1, times=STANDING_TICKS)
    assert pressure.is_standing


def test_the_mean_of_waits_counts_once() -> None:
    waits = Waits(calls=4, ms=100.0)
    assert waits.taken() == 0.025
    assert waits.taken() == 0.0


def test_the_longer_the_wait_the_fewer_may_be_at_work_but_never_less_than_the_least(service: Service) -> None:
    service.work.requests = 1000
    service.look(wait_ms=16, times=STANDING_TICKS)
    assert service.pressure.limit == int(1000 * 15 / 16)
    service.look(wait_ms=20)
    assert service.pressure.limit == int(1000 * 15 / 16 * 0.75)
    service.look(wait_ms=1000)
    assert service.pressure.limit == int(1000 * 15 / 16 * 0.75 * module.SHRINK_MOST)
    service.look(wait_ms=1000, times=30)
    assert service.pressure.limit == LIMIT_MIN


def test_few_requests_at_work_are_never_refused_however_long_they_wait(service: Service) -> None:
    service.work.requests = REFUSED_FROM // 4
    service.look(wait_ms=5000, behind_s=5.0, times=100)
    assert service.refused() == []
    assert service.pressure.level == Level.BACKGROUND


def test_heavy_queries_are_refused_first_then_writes_then_reads_and_never_the_state(service: Service) -> None:
    service.look(wait_ms=1000, times=100)
    assert service.pressure.limit == LIMIT_MIN
    seen = []
    for requests in range(REFUSED_FROM + 1):
        service.work.requests = requests
        now = service.refused()
        if not seen or now != seen[-1][1]:
            seen.append((requests, now))
        assert not service.pressure.refusal(STATE)
        assert not service.pressure.refusal(PAGE)
    assert seen == [
        (0, []),
        (REFUSED_FROM // 2, ["heavy"]),
        (REFUSED_FROM * 3 // 4, ["heavy", "write"]),
        (REFUSED_FROM, ["heavy", "write", "read"]),
    ]


def test_a_request_waits_for_its_turn_from_the_bound_on_and_the_state_is_told_at_once(service: Service) -> None:
    pressure = service.pressure
    assert pressure.has_place()
    service.look(wait_ms=1000, times=100)
    service.work.requests = LIMIT_MIN - 1
    assert pressure.has_place()
    assert not pressure.has_to_wait(READ)
    service.work.requests = LIMIT_MIN
    assert not pressure.has_place()
    assert pressure.has_to_wait(READ)
    assert pressure.has_to_wait(WRITE)
    assert not pressure.has_to_wait(STATE)
    assert not pressure.has_to_wait(PAGE)


def test_reads_wait_for_their_turn_from_the_first_burst_on_and_writes_do_not() -> None:
    service = Service(workers=3)
    pressure = service.pressure
    begin(service.work.reads, 3 * module.READS_A_WORKER - 1)
    assert pressure.has_place_for_read()
    assert not pressure.has_to_wait(READ)
    begin(service.work.reads, 1)
    assert not pressure.has_place_for_read()
    assert pressure.has_to_wait(READ)
    assert not pressure.has_to_wait(WRITE)
    assert not pressure.has_to_wait(STATE)
    assert not pressure.has_to_wait(PAGE)
    assert pressure.has_place()
    assert not pressure.is_on
    assert service.refused() == []
    service.look(times=2)
    assert service.work.looks == 2


@pytest.mark.parametrize(
    ("path", "expected"), [(READ, True), (DELETE, True), (WRITE, False), (STATE, False), (PAGE, False)]
)
def test_which_requests_are_reads(path: str, expected: bool) -> None:
    assert is_read(path) is expected


def test_heavy_queries_are_refused_when_many_wait_for_their_turn(service: Service) -> None:
    service.look(wait_ms=1000, times=100)
    service.work.requests = LIMIT_MIN
    assert service.pressure.allows_heavy()
    service.pressure.waiting = lambda: REFUSED_FROM // 2 - LIMIT_MIN
    assert not service.pressure.allows_heavy()
    assert service.pressure.level == Level.HEAVY


def test_the_bound_on_requests_goes_slowly_and_only_when_waits_are_short(service: Service) -> None:
    service.work.requests = 100
    service.look(wait_ms=1000, times=20)
    service.look(wait_ms=TARGET_MS - 1, times=200)
    assert service.pressure.limit == LIMIT_MIN  # neither above the target nor well below it
    ticks = 0
    while service.pressure.limit is not None:
        service.look(wait_ms=1)
        ticks += 1
    assert 20 < ticks < 100
    assert not service.pressure.is_on


def test_while_the_queue_is_long_requests_are_bounded_by_kind_and_not_all_together(service: Service) -> None:
    pressure, work = service.pressure, service.work
    begin(work.reads, LEAST)
    begin(work.writes, LEAST - 1)
    assert not pressure.has_to_wait(READ)
    service.look(wait_ms=1000, times=100)
    work.requests = 2 * LIMIT_MIN
    assert pressure.has_to_wait(WRITE)
    pressure.queue = lambda: Queue.LONG
    assert pressure.has_to_wait(READ)
    assert not pressure.has_to_wait(WRITE)
    begin(work.writes, 1)
    assert pressure.has_to_wait(WRITE)
    assert not pressure.has_to_wait(STATE)
    pressure.queue = lambda: Queue.SHORT
    assert not pressure.has_place()


def test_while_more_comes_than_leaves_requests_are_bounded_by_kind_also_if_work_does_not_wait(service: Service) -> None:
    pressure, work = service.pressure, service.work
    begin(work.reads, LEAST)
    begin(work.writes, LEAST)
    assert not pressure.bounds_now()
    pressure.queue = lambda: Queue.OVERFULL
    assert pressure.bounds_now()
    assert pressure.has_to_wait(READ)
    assert pressure.has_to_wait(WRITE)
    assert not pressure.has_to_wait(STATE)
    service.look()
    assert service.pauses == 1
    assert pressure.level == Level.BACKGROUND
    assert service.refused() == []
    assert pressure.allows_heavy()


def test_in_a_burst_there_are_some_places_for_reads_however_few_an_overload_would_have(service: Service) -> None:
    pressure, work = service.pressure, service.work
    pressure.queue = lambda: Queue.BURST
    count = module.READS_IN_BURST_A_WORKER * Settings().worker_count()
    begin(work.reads, max(LEAST, count) - 1)
    assert not pressure.has_to_wait(READ)
    begin(work.reads, 1)
    assert pressure.has_to_wait(READ)
    work.reads.limit = 1000
    assert not pressure.has_to_wait(READ)
    begin(work.reads, module.READS_A_WORKER * Settings().worker_count() - count)
    assert pressure.has_to_wait(READ)
    begin(work.writes, LEAST)
    assert pressure.has_to_wait(WRITE)


def test_while_the_queue_is_long_no_more_reads_are_at_work_than_at_other_times(service: Service) -> None:
    service.look(wait_ms=1000, times=100)
    service.pressure.queue = lambda: Queue.LONG
    service.work.reads.limit = 1000
    begin(service.work.reads, module.READS_A_WORKER * Settings().worker_count())
    assert service.pressure.has_to_wait(READ)


def test_a_long_queue_alone_bounds_nothing_since_work_does_not_wait(service: Service) -> None:
    """Bounds by kind would keep waits short, and the queue would never be seen to stand."""
    service.pressure.queue = lambda: Queue.LONG
    begin(service.work.reads, LEAST)
    begin(service.work.writes, 10 * LEAST)
    service.look(wait_ms=TARGET_MS - 1, times=100)
    assert not service.pressure.has_to_wait(READ)
    assert not service.pressure.has_to_wait(WRITE)


def test_an_overload_does_not_end_while_the_queue_is_long(service: Service) -> None:
    service.work.requests = 200
    service.look(wait_ms=1000, times=STANDING_TICKS)
    limit = service.pressure.limit
    service.pressure.queue = lambda: Queue.LONG
    service.look(wait_ms=0, times=200)
    assert service.pressure.limit == limit


def test_workers_pause_background_work_as_long_as_there_is_pressure(service: Service) -> None:
    service.work.requests = 100
    service.look(wait_ms=1000, times=STANDING_TICKS)
    assert service.pauses == 1
    service.look(wait_ms=1000, times=module.PAUSE_TICKS)
    assert service.pauses == 2
    service.look(wait_ms=0, times=200)
    paused = service.pauses
    service.look(wait_ms=0, times=200)
    assert service.pauses == paused


@pytest.mark.parametrize(
    ("available", "level", "refused"),
    [
        (2 * RESERVE, Level.NONE, []),
        (2 * RESERVE - 1, Level.BACKGROUND, []),
        (1.5 * RESERVE, Level.BACKGROUND, []),
        (1.5 * RESERVE - 1, Level.HEAVY, ["heavy"]),
        (RESERVE, Level.HEAVY, ["heavy"]),
        (RESERVE - 1, Level.WRITES, ["heavy", "write"]),
        (0, Level.WRITES, ["heavy", "write"]),
    ],
)
def test_memory_stops_background_work_then_heavy_queries_then_writes(
    service: Service, available: int, level: Level, refused: list[str]
) -> None:
    service.memory.available = int(available)
    service.look()
    assert (service.pressure.level, service.refused()) == (level, refused)
    assert service.pauses == (level > Level.NONE)


def test_deletions_are_not_refused_for_lack_of_memory(service: Service) -> None:
    service.memory.available = 0
    service.look()
    assert service.pressure.refusal(WRITE)
    assert not service.pressure.refusal(DELETE)


def test_a_level_ends_only_when_clearly_more_memory_is_there(service: Service) -> None:
    service.memory.available = RESERVE - 1
    service.look()
    levels = []
    for available in (RESERVE, int(1.25 * RESERVE) - 1, int(1.25 * RESERVE), int(1.875 * RESERVE), int(2.5 * RESERVE)):
        service.memory.available = available
        service.look()
        levels.append(service.pressure.level)
    assert levels == [Level.WRITES, Level.WRITES, Level.HEAVY, Level.BACKGROUND, Level.NONE]


def test_the_reserve_is_a_share_of_the_memory_unless_it_is_set() -> None:
    assert Service(memory_reserve_bytes=0).pressure.reserve_bytes == 200 * RESERVE // 20
    assert Service().pressure.reserve_bytes == RESERVE


def test_a_refusal_says_what_was_seen_and_which_setting_bounds_it(service: Service) -> None:
    service.memory.available = 900
    service.look()
    with pytest.raises(Overloaded) as refused:
        service.pressure.require(WRITE)
    assert str(refused.value) == (
        "900 bytes of memory are available; writes are accepted from 1250 bytes on (TRIPTYCH_MEMORY_RESERVE_BYTES is "
        "1000); try again later"
    )
    assert refused.value.status == 503
    assert refused.value.retry_after_s is not None
    service.memory.available = 100 * RESERVE
    service.work.requests = 200
    service.look(wait_ms=1000, times=50)
    with pytest.raises(Overloaded) as heavy:
        service.pressure.require_heavy()
    assert str(heavy.value) == (
        "24 requests or more are at work or wait for that, the limit for heavy queries until work waits less than "
        "15 ms for its turn (TRIPTYCH_QUEUE_WAIT); try again later"
    )


def test_refusals_are_counted_by_reason(service: Service) -> None:
    service.work.requests = 200
    service.look(wait_ms=1000, times=50)
    service.refused()
    service.memory.available = 0
    service.look(wait_ms=1000)
    for path in (WRITE, READ, READ, STATE):
        service.pressure.refusal(path)
    with pytest.raises(Overloaded):
        service.pressure.require_heavy()
    assert service.pressure.refused == {"writes": 1, "reads": 3, "memory": 2}
