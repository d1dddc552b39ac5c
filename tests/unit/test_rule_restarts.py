"""Alerts after a restart: what the series that are stored say of them."""

from __future__ import annotations

import asyncio
import math

import pytest

from coordinator.rules.alerts import Alert
from coordinator.rules.groups import Group
from coordinator.rules.memory_storage import MemoryStorage
from coordinator.rules.rule_files import RuleDefinition, parse
from tests.unit.rule_storage import labels_of

MINUTE = 60_000
T = 1_700_000_100_000
"""A multiple of 15 minutes."""
UP = labels_of({"__name__": "up", "job": "a"})


class Service:
    """A group with one alert, and the storage, which outlives restarts. Times are in ms after T."""

    def __init__(self, held: str, interval: str, lookback_ms: int = 5 * MINUTE) -> None:
        text = f"groups: [{{name: g, interval: {interval}, rules: [{{alert: Down, expr: up == 0, for: {held}}}]}}]"
        (self.definition,) = parse(text.encode(), "r.yml")
        self.storage = MemoryStorage(lookback_ms)
        self.sent: list[Alert] = []
        self.restart(0)

    def restart(self, time_ms: int) -> None:
        self.sent.clear()
        self.group = Group(self.definition, self.storage, self._send, asyncio.Semaphore(1), began_ms=T + time_ms)

    def _send(self, rule: RuleDefinition, alerts: list[Alert]) -> None:
        self.sent += alerts

    async def evaluate(self, time_ms: int, up: float) -> None:
        self.storage.add(UP, T + time_ms, up)
        await self.group.evaluate(T + time_ms)

    def alerts(self) -> list[tuple[str, int]]:
        """State, and since when it is active."""
        return [(one.state, one.active_at_ms - T) for one in self.group.rules[0].alerts.by_labels.values()]


@pytest.mark.parametrize("healthy_minutes", [2, 31])
async def test_an_alert_that_was_resolved_before_the_restart_begins_anew(healthy_minutes: int) -> None:
    service = Service("10m", "1m")
    for minute in range(14):
        await service.evaluate(minute * MINUTE, up=0.0)
    assert service.alerts() == [("firing", 0)]
    end = 14 + healthy_minutes
    for minute in range(14, end):
        await service.evaluate(minute * MINUTE, up=1.0)
    service.restart(end * MINUTE)
    await service.evaluate(end * MINUTE + 20_000, up=0.0)
    assert service.alerts() == [("pending", end * MINUTE + 20_000)] and not service.sent


@pytest.mark.parametrize("offset_ms", [0, 8_000])
@pytest.mark.parametrize("outage_ms", [5_000, 30_000, 20 * MINUTE])
async def test_an_alert_that_was_firing_fires_at_once_wherever_its_evaluations_lie(
    offset_ms: int, outage_ms: int
) -> None:
    service = Service("1m", "1m")
    for minute in (0, 1):
        await service.evaluate(offset_ms + minute * MINUTE, up=0.0)
    assert service.alerts() == [("firing", offset_ms)]
    begin_ms = offset_ms + MINUTE + outage_ms
    service.restart(begin_ms)
    await service.evaluate(begin_ms + 1_000, up=0.0)
    assert [state for state, _ in service.alerts()] == ["firing"] and len(service.sent) == 1


@pytest.mark.parametrize("lookback_ms", [MINUTE, 5 * MINUTE])
@pytest.mark.parametrize("offset_ms", [0, 8_000])
async def test_a_pending_alert_goes_on_with_an_interval_longer_than_the_lookback(
    offset_ms: int, lookback_ms: int
) -> None:
    service = Service("1h", "20m", lookback_ms)
    for turn in range(3):
        await service.evaluate(offset_ms + turn * 20 * MINUTE, up=0.0)
    service.restart(offset_ms + 40 * MINUTE + 5_000)
    await service.evaluate(offset_ms + 60 * MINUTE, up=0.0)
    # Pending for 40 minutes before the outage, which does not count.
    assert service.alerts() == [("pending", offset_ms + 20 * MINUTE)]


@pytest.mark.parametrize("outage_ms", [MINUTE, 20 * MINUTE])
async def test_alerts_of_the_same_name_in_several_groups_all_go_on(outage_ms: int) -> None:
    storage = MemoryStorage()
    definitions = parse(
        b"""groups:
- {name: a, interval: 1m, rules: [{alert: Down, expr: 'up{job="a"} == 0', for: 1h, labels: {severity: warning}}]}
- {name: b, interval: 1m, rules: [{alert: Down, expr: 'up{job="b"} == 0', for: 1h, labels: {severity: critical}}]}
- {name: c, interval: 20m, rules: [{alert: Down, expr: 'up{job="c"} == 0', for: 1h}]}
""",
        "r.yml",
    )

    async def run(begin_ms: int, end_ms: int) -> list[list[int]]:
        """Each group is evaluated 20 s behind the one before it; returns since when each alert is active."""
        groups = [
            Group(one, storage, lambda rule, alerts: None, asyncio.Semaphore(1), began_ms=T + begin_ms)
            for one in definitions
        ]
        for time_ms in range(begin_ms, end_ms, 20_000):
            for number, group in enumerate(groups):
                storage.add(labels_of({"__name__": "up", "job": "abc"[number]}), T + time_ms, 0.0)
                if (time_ms - number * 20_000) % group.definition.interval_ms == 0:
                    await group.evaluate(T + time_ms)
        return [[one.active_at_ms - T for one in group.rules[0].alerts.active()] for group in groups]

    assert await run(0, 25 * MINUTE) == [[0], [20_000], [40_000]]
    began_ms = 25 * MINUTE + outage_ms
    since = await run(began_ms, began_ms + 20 * MINUTE)
    # The outage does not count: it is from the last evaluation of each group to its first one after the restart.
    assert [own[0] for own in since[:2]] == [MINUTE + outage_ms, MINUTE + outage_ms + 20_000]
    assert since[2][0] == 40_000 + (20 if outage_ms == MINUTE else 40) * MINUTE


async def test_an_alert_whose_end_was_stored_after_the_lookback_begins_anew() -> None:
    service = Service("1h", "20m")
    for minute, up in ((0, 0.0), (20, 0.0), (40, 1.0)):
        await service.evaluate(minute * MINUTE, up)
    service.restart(41 * MINUTE)
    await service.evaluate(60 * MINUTE, up=0.0)
    assert service.alerts() == [("pending", 60 * MINUTE)]


@pytest.mark.parametrize(("interval", "late_ms"), [("1m", 30_000), ("5s", 90_000)])
async def test_an_alert_whose_series_comes_after_the_first_evaluations_goes_on(interval: str, late_ms: int) -> None:
    service = Service("1h", interval)
    for minute in range(10):
        await service.evaluate(minute * MINUTE, up=0.0)
    begin_ms = 30 * MINUTE
    service.restart(begin_ms)
    step_ms = service.definition.interval_ms
    for time_ms in range(begin_ms, begin_ms + late_ms, step_ms):
        await service.group.evaluate(T + time_ms)
        assert service.alerts() == []
    await service.evaluate(begin_ms + 2 * MINUTE, up=0.0)
    # Pending for 9 minutes before the outage, which lasts until the series is there.
    assert service.alerts() == [("pending", begin_ms + (2 - 9) * MINUTE)]


async def test_an_alert_that_appears_later_than_first_scrapes_do_begins_anew() -> None:
    service = Service("1h", "1m")
    for minute in range(10):
        await service.evaluate(minute * MINUTE, up=0.0)
    service.restart(30 * MINUTE)
    for minute in range(30, 34):
        await service.evaluate(minute * MINUTE, up=1.0)
    await service.evaluate(34 * MINUTE, up=0.0)
    assert service.alerts() == [("pending", 34 * MINUTE)]


async def test_an_alert_that_goes_and_comes_back_soon_after_the_restart_begins_anew() -> None:
    service = Service("1m", "20s")
    for second in range(0, 121, 20):
        await service.evaluate(second * 1000, up=0.0)
    service.restart(10 * MINUTE)
    await service.evaluate(10 * MINUTE, up=0.0)
    assert [state for state, _ in service.alerts()] == ["firing"]
    await service.evaluate(10 * MINUTE + 20_000, up=1.0)
    await service.evaluate(10 * MINUTE + 40_000, up=0.0)
    assert service.alerts() == [("pending", 10 * MINUTE + 40_000)]


async def test_an_alert_that_comes_back_together_with_another_one_begins_anew() -> None:
    """The other one is looked up, and the states from before the start have both."""
    service, other = Service("1m", "20s"), labels_of({"__name__": "up", "job": "b"})
    for second in range(0, 121, 20):
        await service.evaluate(second * 1000, up=0.0)
    begin_ms = 10 * MINUTE
    service.restart(begin_ms)
    for second, up, up_b in ((0, 0.0, 1.0), (20, 1.0, 1.0), (40, 0.0, 0.0)):
        service.storage.add(other, T + begin_ms + second * 1000, up_b)
        await service.evaluate(begin_ms + second * 1000, up=up)
    assert service.alerts() == [("pending", begin_ms + 40_000)] * 2


async def test_alerts_are_looked_up_no_longer_when_the_clock_was_set_back_by_long() -> None:
    service = Service("1h", "1m")
    service.restart(1000 * MINUTE)
    for minute in range(2):
        await service.evaluate(minute * MINUTE, up=0.0)
    (rule,) = service.group.rules
    assert rule.is_restored and not rule.known


@pytest.mark.parametrize("seconds", [math.nan, math.inf, -math.inf, -1e300, 1e300, T / 1000 + 1e6])
async def test_a_stored_state_that_is_no_time_of_an_alert_is_left_out(seconds: float) -> None:
    service = Service("1h", "1m")
    state = labels_of({"__name__": "ALERTS_FOR_STATE", "alertname": "Down", "job": "a"})
    service.storage.add(state, T - 1, seconds)
    await service.evaluate(MINUTE, up=0.0)
    assert (service.group.rules[0].error, service.alerts()) == ("", [("pending", MINUTE)])
