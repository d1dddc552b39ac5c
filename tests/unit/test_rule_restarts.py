"""Alerts after a restart: what the series that are stored say of them."""

from __future__ import annotations

import asyncio

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
