"""When the wall clock is trusted with what is dropped by age."""

from __future__ import annotations

from shared.wall_clock import SETTLE_MS, Ages, WallClock

DAY_MS = 86_400_000


def test_a_clock_that_jumps_is_not_believed_before_two_readings_a_period_apart_agree() -> None:
    clock = WallClock()
    assert not clock.believed(1_000_000, 0)
    assert not clock.believed(1_000_000 + SETTLE_MS - 1, SETTLE_MS - 1)
    assert clock.believed(1_000_000 + SETTLE_MS, SETTLE_MS)
    year_ms = 365 * 86_400_000
    for later_ms in (1_000, 60_000, SETTLE_MS // 2):
        assert not clock.believed(1_000_000 + SETTLE_MS + year_ms + later_ms, SETTLE_MS + later_ms)
    assert clock.believed(1_000_000 + 3 * SETTLE_MS + year_ms, 3 * SETTLE_MS)
    assert not clock.believed(1_000_000 + 3 * SETTLE_MS + 1_000, 3 * SETTLE_MS + 1_000)


def test_a_clock_that_runs_ten_times_too_fast_is_never_believed() -> None:
    clock = WallClock()
    assert not any(clock.believed(10 * ms, ms) for ms in range(0, 3 * SETTLE_MS, 1000))


def test_a_clock_that_is_slewed_is_believed() -> None:
    clock = WallClock()
    readings = [clock.believed(int(1.0005 * ms), ms) for ms in range(0, 3 * SETTLE_MS, 1000)]
    assert all(readings[SETTLE_MS // 1000 :])


def test_ages_are_known_when_the_clock_was_steady_for_ten_minutes_or_as_long_as_the_age() -> None:
    wall_ms, monotonic_ms = [100 * DAY_MS], [0]
    ages = Ages(lambda: wall_ms[0], lambda: monotonic_ms[0])

    def later(by_ms: int, jump_ms: int = 0) -> tuple[int | None, int | None]:
        monotonic_ms[0] += by_ms
        wall_ms[0] += by_ms + jump_ms
        known = (None if at is None else wall_ms[0] - at for at in (ages.before_ms(2_000), ages.before_ms(DAY_MS)))
        return next(known), next(known)

    assert later(0) == (None, None)
    assert later(1_999) == (None, None)
    assert later(1) == (2_000, None)
    assert later(SETTLE_MS - 2_001) == (2_000, None)
    assert later(1) == (2_000, DAY_MS)
    assert later(SETTLE_MS, jump_ms=365 * DAY_MS) == (None, None)
    assert later(2_000) == (2_000, None)
    assert later(SETTLE_MS) == (2_000, DAY_MS)
    assert later(1_000, jump_ms=-365 * DAY_MS) == (None, None)
