"""When groups are evaluated, what a new configuration changes, and what is told of rules."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from coordinator.prometheus_config.config_file import ConfigFile, Configuration
from coordinator.rules.notifying import Notifier
from coordinator.rules.schedule import Rules
from shared.errors import ConfigError
from shared.measurements import Values
from tests.unit.rule_storage import FakeStorage, labels_of, series

START_S = 1_700_000_000.0


class Clock:
    """Time that goes on when a test says so."""

    def __init__(self) -> None:
        self.now_s = START_S
        self._end_s = START_S
        self._sleepers: list[tuple[float, asyncio.Event]] = []

    def now(self) -> float:
        return self.now_s

    async def sleep(self, seconds: float) -> None:
        event = asyncio.Event()
        self._sleepers.append((self.now_s + seconds, event))
        await event.wait()

    async def go_on(self, seconds: float) -> None:
        self._end_s = self.now_s + seconds
        while True:
            await settle()
            due = min((at for at, event in self._sleepers if not event.is_set()), default=self._end_s + 1)
            if due > self._end_s:
                break
            self.now_s = max(self.now_s, due)
            for at, event in self._sleepers:
                if at <= self.now_s:
                    event.set()
        self.now_s = self._end_s

    def set_back(self, seconds: float) -> None:
        """Sleepers sleep as long as they would have."""
        self.now_s -= seconds
        self._end_s -= seconds
        self._sleepers = [(at - seconds, event) for at, event in self._sleepers]


async def settle() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


class Place:
    def __init__(self, directory: Path) -> None:
        self.path = directory / "prometheus.yml"
        self.directory = directory
        self.storage, self.clock = FakeStorage(), Clock()
        self.rules = Rules(self.storage, Notifier(), "http://here:9090", now=self.clock.now, sleep=self.clock.sleep)
        self.file = ConfigFile(self.path)
        self.file.parts.append(self.rules)

    async def use(self, rules: str, more: str = "") -> None:
        (self.directory / "rules.yml").write_text(rules)
        self.path.write_text(f"global: {{evaluation_interval: 10s}}\nrule_files: [rules.yml]\n{more}")
        await self.file.load()

    def times_s(self, expr: str) -> list[float]:
        return [time_ms / 1000 for asked, time_ms in self.storage.asked if asked == expr]


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    own = Place(tmp_path)
    yield own
    await own.rules.stop()


A = "{name: a, rules: [{record: r, expr: m}]}"
B = "{name: b, interval: 20s, rules: [{record: s, expr: n}, {alert: Up, expr: n}]}"


async def test_groups_are_evaluated_at_their_times(place: Place) -> None:
    await place.use(f"groups: [{A}, {B}]")
    place.rules.start()
    await place.clock.go_on(60)
    assert len(place.times_s("m")) == 6 and len(place.times_s("n")) == 2 * 3
    first = place.times_s("m")[0]
    assert place.times_s("m") == [first + 10 * n for n in range(6)]


async def test_evaluations_that_take_too_long_are_counted_as_missed(place: Place) -> None:
    await place.use(f"groups: [{A}]")
    place.rules.start()
    await place.clock.go_on(10)

    def slow(time_ms: int) -> list[object]:
        place.clock.now_s = time_ms / 1000 + 25
        return []

    place.storage.answers["m"] = slow  # type: ignore[assignment]
    await place.clock.go_on(10)
    place.storage.answers["m"] = []
    await place.clock.go_on(30)
    (group,) = place.rules.groups.values()
    assert group.missed == 2
    times = place.times_s("m")
    assert [round(b - a) for a, b in pairwise(times)] == [10, 30]


async def test_after_the_clock_was_set_back_groups_go_on_at_once(place: Place) -> None:
    await place.use(f"groups: [{A}]")
    place.rules.start()
    await place.clock.go_on(20)
    place.clock.set_back(3600)
    before = place.times_s("m")
    await place.clock.go_on(30)
    times = place.times_s("m")[len(before) :]
    assert times == [before[0] - 3600 + 10 * n for n in (2, 3, 4)]


async def test_after_the_clock_was_set_back_during_an_evaluation_groups_go_on_at_once(place: Place) -> None:
    await place.use(f"groups: [{A}]")
    place.rules.start()
    await place.clock.go_on(10)

    def set_back(time_ms: int) -> list[object]:
        place.clock.set_back(86_395)
        place.storage.answers["m"] = []
        return []

    place.storage.answers["m"] = set_back  # type: ignore[assignment]
    await place.clock.go_on(50)  # there may be one more: when groups are due depends on their files' names
    times = place.times_s("m")[:6]
    assert [round(b - a) for a, b in pairwise(times)] == [10, 10 - 86_400, 10, 10, 10]


async def test_an_unforeseen_failure_does_not_end_a_group(place: Place) -> None:
    await place.use(f"groups: [{A}]")
    place.rules.start()
    place.storage.answers["m"] = lambda time_ms: 1 // 0  # type: ignore[assignment, return-value]
    await place.clock.go_on(30)
    place.storage.answers["m"] = [series(1.0)]
    await place.clock.go_on(10)
    assert place.storage.written


async def test_a_new_configuration_ends_what_is_gone_and_keeps_the_rest(place: Place) -> None:
    place.storage.answers |= {"m": [series(1.0)], "n": [series(1.0)]}
    await place.use(f"groups: [{A}, {B}]")
    place.rules.start()
    await place.clock.go_on(20)
    kept = place.rules.groups[str(place.directory / "rules.yml"), "a"]
    await place.use(f"groups: [{A}]")
    await settle()
    assert list(place.rules.groups.values()) == [kept]
    names = {dict(labels)["__name__"] for labels in place.storage.written[-1][2]}
    assert names == {"s", "ALERTS", "ALERTS_FOR_STATE"}
    before = len(place.times_s("n"))
    await place.clock.go_on(40)
    assert len(place.times_s("n")) == before and kept.iterations == 6


@pytest.mark.parametrize("rules", ["[{record: kept, expr: m}]", ""])
async def test_series_that_are_being_stored_when_their_rule_goes_are_ended(
    place: Place, rules: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.storage.answers["m"] = [series(1.0)]
    write, stored = place.storage.write, asyncio.Event()

    async def write_slowly(*arguments: Any) -> None:
        await write(*arguments)
        stored.set()
        await asyncio.sleep(60)

    monkeypatch.setattr(place.storage, "write", write_slowly)
    await place.use("groups: [{name: a, rules: [{record: kept, expr: m}, {record: gone, expr: m}]}]")
    place.rules.start()
    await place.clock.go_on(10)
    await stored.wait()
    await place.use(f"groups: [{{name: a, rules: {rules}}}]" if rules else "groups: []")
    monkeypatch.setattr(place.storage, "write", write)
    await place.clock.go_on(10)
    ended = {dict(labels)["__name__"] for _, _, own in place.storage.written for labels in own}
    assert ended == ({"gone"} if rules else {"kept", "gone"})


async def test_a_changed_group_goes_on_with_its_alerts(place: Place) -> None:
    place.storage.answers["n"] = [series(1.0)]
    await place.use(f"groups: [{B}]")
    place.rules.start()
    await place.clock.go_on(20)
    since = [rule.alerts.active()[0].active_at_ms for rule in next(iter(place.rules.groups.values())).rules[1:]]
    await place.use(f"groups: [{B.replace('20s', '5s')}]")
    await place.clock.go_on(10)
    (group,) = place.rules.groups.values()
    assert [group.rules[1].alerts.active()[0].active_at_ms] == since and group.iterations == 3


async def test_pending_alerts_are_taken_over_as_they_were_before_the_start(place: Place) -> None:
    await place.use("groups: [{name: a, rules: [{alert: Up, expr: m, for: 5m}]}]")
    place.storage.answers["m"] = [series(1.0)]
    place.rules.start()
    await place.clock.go_on(10)
    ((time_ms,),) = [[time for expr, time in place.storage.asked if "timestamp(" in expr]]
    assert time_ms < START_S * 1000


async def test_a_wrong_file_changes_nothing(place: Place) -> None:
    await place.use(f"groups: [{A}]")
    groups = dict(place.rules.groups)
    for rules, more in (
        ("groups: [{name: a, rules: [{record: r, expr: m +}]}]", ""),
        (f"groups: [{A}]", "alerting: {alertmanagers: [{static_configs: [{targets: ['http://x']}]}]}"),
    ):
        with pytest.raises(ConfigError):
            await place.use(rules, more)
        assert place.rules.groups == groups and not place.file.is_current


async def test_metrics_tell_of_each_group(place: Place) -> None:
    place.storage.answers["m"] = [series(1.0)]
    await place.use(f"groups: [{A}]")
    place.rules.start()
    await place.clock.go_on(10)
    values = Values()
    place.rules.put(values)
    ((labels, count),) = values.by_name["triptych_rule_evaluations_total"]
    assert count == 1 and list(labels) == [f"{place.directory}/rules.yml;a"]
    assert values.by_name["triptych_rule_group_last_evaluation_samples"][0][1] == 1


async def test_an_empty_configuration_has_no_rules(place: Place) -> None:
    place.rules.use(place.rules.prepare(Configuration()))
    assert not place.rules.groups and labels_of({}) == ()
