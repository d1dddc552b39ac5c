"""How many requests may be at work: on a simulated server, whose clock is that of the simulation."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from coordinator.limits.limiter import FRESH_S, LOOKS, PATHS_MAX, PLACE_S, SLOWDOWN, SLOWDOWN_MILD, AtWork

STEP_S, LOOK_S = 0.0005, 0.1
PROCESSORS = 2
LEAST = 4
PRIOR_S = 0.004
REFUSED_SHARE = 2 / 3
READ, SLOW, WRITE = "/read", "/slow", "/write"


@dataclass(eq=False)
class Request:
    """`work_s`: of a processor; of a write, the time of a commit that it may share with others."""

    path: str
    work_s: float
    began: float = 0.0


@dataclass
class Server:
    """Processors that requests share in equal parts, and commits one after the other, each of all writes there are.
    Those that find no place wait, the newest in front, and few of them."""

    at_work: AtWork = field(init=False)
    now: float = 0.0
    stalled_until: float = 0.0
    took_s: dict[str, list[float]] = field(default_factory=dict)
    _running: list[Request] = field(default_factory=list)
    _waiting: list[Request] = field(default_factory=list)
    _commit: list[Request] = field(default_factory=list)
    _commit_ends: float = 0.0
    _due: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.at_work = AtWork(LEAST, PRIOR_S, lambda: self.now)

    def run(self, seconds: float, rates: dict[str, float], work_s: dict[str, float]) -> None:
        """Requests of each path arrive at its rate."""
        self.took_s = {path: [] for path in rates}
        until, looked = self.now + seconds, self.now
        while self.now < until:
            for path, rate in rates.items():
                self._due[path] = self._due.get(path, 0.0) + rate * STEP_S
                while self._due[path] >= 1.0:
                    self._due[path] -= 1.0
                    self._waiting.append(Request(path, work_s[path]))
            self._admit()
            self._work()
            self.now += STEP_S
            if self.now - looked >= LOOK_S:
                self.at_work.look(REFUSED_SHARE)
                looked = self.now

    def rest(self) -> None:
        """Nothing comes, and what is here ends."""
        self.run(1.0, {}, {})

    def _admit(self) -> None:
        del self._waiting[:-16]
        while self._waiting and len(self.at_work) < self.at_work.limit:
            request = self._waiting.pop()
            request.began = self.now
            self.at_work.begin(request, request.path, is_alone=len(self.at_work) < 2)
            self._running.append(request)

    def _work(self) -> None:
        if self.now < self.stalled_until:
            return
        reads = [request for request in self._running if request.path != WRITE]
        share_s = STEP_S * min(1.0, PROCESSORS / len(reads)) if reads else 0.0
        for request in reads:
            request.work_s -= share_s
        for request in [*(one for one in reads if one.work_s <= 0), *self._committed()]:
            self._running.remove(request)
            self.at_work.end(request)
            self.took_s.setdefault(request.path, []).append(self.now + STEP_S - request.began)

    def _committed(self) -> list[Request]:
        done = []
        if self._commit and self.now >= self._commit_ends:
            done, self._commit = self._commit, []
        writes = [request for request in self._running if request.path == WRITE and request not in done]
        if not self._commit and writes:
            self._commit, self._commit_ends = writes, self.now + writes[0].work_s
        return done

    def median_s(self, path: str) -> float:
        return statistics.median(self.took_s[path])


@pytest.fixture
def server() -> Server:
    return Server()


def test_under_three_times_the_load_requests_are_quick_and_as_many_end_as_can(server: Server) -> None:
    work_s = {READ: 0.010}
    capacity = PROCESSORS / work_s[READ]
    server.run(2.0, {READ: 20.0}, work_s)
    assert server.median_s(READ) == pytest.approx(0.010, rel=0.1)
    server.run(5.0, {READ: 3 * capacity}, work_s)
    assert len(server.took_s[READ]) > 0.95 * 5.0 * capacity
    assert server.median_s(READ) < 1.3 * SLOWDOWN * work_s[READ]


def test_as_many_are_at_work_as_the_processors_need_however_long_each_takes(server: Server) -> None:
    limits = []
    for work_s in (0.030, 0.005):
        server.run(3.0, {READ: 20.0}, {READ: work_s})
        server.run(3.0, {READ: 3 * PROCESSORS / work_s}, {READ: work_s})
        limits.append(server.at_work.limit)
    for limit in limits:
        assert 0.9 * SLOWDOWN * PROCESSORS <= limit <= 1.5 * SLOWDOWN * PROCESSORS


def test_writes_that_share_a_commit_are_not_held_back(server: Server) -> None:
    """A commit takes as long for one as for many, so the bound grows until all that come find a place."""
    server.run(2.0, {WRITE: 20.0}, {WRITE: 0.010})
    server.run(3.0, {WRITE: 2000.0}, {WRITE: 0.010})
    server.run(3.0, {WRITE: 2000.0}, {WRITE: 0.010})
    assert len(server.took_s[WRITE]) > 0.95 * 3.0 * 2000.0
    assert server.median_s(WRITE) < 0.025


def test_slow_requests_beside_quick_ones_do_not_look_like_a_queue(server: Server) -> None:
    work_s = {READ: 0.002, SLOW: 0.040}
    server.run(5.0, {READ: 10.0, SLOW: 5.0}, work_s)
    rates = {READ: 1500.0, SLOW: 75.0}  # three times as much as can be done, half of it by slow ones
    server.run(5.0, rates, work_s)
    done_s = sum(len(server.took_s[path]) * work_s[path] for path in rates)
    assert done_s > 0.9 * PROCESSORS * 5.0
    assert server.median_s(READ) < 2 * SLOWDOWN * work_s[READ]


def test_a_stall_does_not_lower_the_bound(server: Server) -> None:
    server.run(2.0, {READ: 20.0}, {READ: 0.010})
    server.run(2.0, {READ: 600.0}, {READ: 0.010})
    limit = server.at_work.limit
    assert limit > LEAST
    server.stalled_until = server.now + 0.2
    server.run(0.3, {READ: 600.0}, {READ: 0.010})
    assert server.at_work.limit >= limit


def test_rest_after_a_burst_is_as_before_it(server: Server) -> None:
    seen = []
    for _ in range(3):
        server.run(2.0, {READ: 20.0}, {READ: 0.010})
        seen.append(server.at_work.limit)
        assert server.median_s(READ) == pytest.approx(0.010, rel=0.1)
        server.run(1.0, {READ: 600.0}, {READ: 0.010})
        assert server.at_work.limit > LEAST
        server.rest()
    assert seen == [LEAST] * 3


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def asked(clock: Clock) -> Iterator[Callable[..., AtWork]]:
    kind = AtWork(LEAST, PRIOR_S, clock)

    def ask(path: str, took_s: float, *, times: int = 1, is_alone: bool = True) -> AtWork:
        for _ in range(times):
            request = object()
            kind.begin(request, path, is_alone=is_alone)
            clock.now += took_s
            kind.end(request)
        return kind

    yield ask


def load_of(kind: AtWork, clock: Clock, path: str, count: int, refused_share: float = REFUSED_SHARE) -> int:
    """The bound after so many requests to this path in each look."""
    for _ in range(LOOKS):
        requests = [object() for _ in range(count)]
        for request in requests:
            kind.begin(request, path, is_alone=False)
        clock.now += LOOK_S
        for request in requests:
            kind.end(request)
        kind.look(refused_share)
    return kind.limit


def test_the_time_at_rest_is_the_median_of_requests_that_were_alone(asked: Callable[..., AtWork], clock: Clock) -> None:
    asked(READ, 0.020, times=60)
    asked(READ, 0.200, times=60, is_alone=False)
    kind = asked(READ, 5.0)  # the first query after a start loads kernels
    assert load_of(kind, clock, READ, 100) == pytest.approx(SLOWDOWN * 100 / LOOK_S * 0.020, rel=0.25)


def test_a_path_of_which_nothing_is_known_takes_the_usual_time(asked: Callable[..., AtWork], clock: Clock) -> None:
    kind = asked(READ, 0.020, times=60)
    assert load_of(kind, clock, "/other", 400) == pytest.approx(SLOWDOWN * 400 / LOOK_S * PRIOR_S, abs=1)


def test_the_times_of_some_paths_are_kept(asked: Callable[..., AtWork], clock: Clock) -> None:
    for number in range(PATHS_MAX):
        kind = asked(f"/api/v1/label/{number}/values", 0.020, times=60)
    known, unknown = (load_of(kind, clock, f"/api/v1/label/{number}/values", 100) for number in (3, PATHS_MAX))
    assert known == pytest.approx(unknown, rel=0.3)  # that of all others was measured as well


def test_those_that_leave_or_are_slow_neither_count_nor_are_measured(clock: Clock) -> None:
    kind = AtWork(LEAST, PRIOR_S, clock)
    for request in ("a", "b", "c"):
        kind.begin(request, READ, is_alone=False)
    assert kind.leave("a")
    assert not kind.leave("a")
    clock.now += FRESH_S / 2
    kind.begin("d", READ, is_alone=False)
    kind.begin("b", READ, is_alone=False)  # its next request
    clock.now += FRESH_S / 2
    kind.look(REFUSED_SHARE)
    assert len(kind) == 2
    kind.end("c")
    clock.now += FRESH_S / 2
    kind.look(REFUSED_SHARE)
    assert len(kind) == 0
    assert kind.limit == LEAST


def test_more_may_be_at_work_in_a_mild_overload(asked: Callable[..., AtWork], clock: Clock) -> None:
    kind = asked(READ, 0.020, times=60)
    hard, mild = (load_of(kind, clock, READ, 100, refused_share=share) for share in (0.5, 0.0))
    assert mild == pytest.approx(hard * SLOWDOWN_MILD / SLOWDOWN, rel=0.05)
    assert hard < load_of(kind, clock, READ, 100, refused_share=0.25) < mild


def test_each_that_is_slow_gives_its_place_to_one_other(clock: Clock) -> None:
    """A worker that hangs keeps nobody out, and a stall does not let in all who wait."""
    kind = AtWork(LEAST, PRIOR_S, clock)
    assert not kind.fill(3)
    for request in ("a", "b", "c"):
        kind.begin(request, READ, is_alone=False)
    assert kind.fill(3)
    clock.now += PLACE_S
    for request in ("d", "e", "f"):
        assert not kind.fill(3)
        kind.begin(request, READ, is_alone=False)
    assert kind.fill(3)
    kind.end("a")
    assert kind.fill(3)
    kind.end("d")
    assert not kind.fill(3)
