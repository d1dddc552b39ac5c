"""Groups of rules: what an evaluation stores, which series it ends, what alerts become, and what is sent."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from coordinator.rules import groups
from coordinator.rules.alerts import Alert, last_seen_query, states_query
from coordinator.rules.groups import Group
from coordinator.rules.rule_files import RuleDefinition, parse
from coordinator.rules.templates import Template
from shared import labels as label_sets
from shared.errors import NotExecutable, Unavailable
from tests.unit.rule_storage import FakeStorage, labels_of, series

MINUTE = 60_000
T = 1_700_000_040_000


class Rig:
    """A group over a fake storage; `sent`: alerts that were handed over."""

    def __init__(self, rules: str, head: str = "") -> None:
        self.storage = FakeStorage()
        self.sent: list[Alert] = []
        text = f"groups:\n- name: g\n  interval: 1m\n  {head}\n  rules:\n" + "\n".join(
            f"  - {{{r}}}" for r in rules.split("\n")
        )
        self.definition = parse(text.encode(), "r.yml")[0]
        self.group = self.made()

    def made(self, began_ms: int | None = None) -> Group:
        labels = {"region": "eu"}
        return Group(
            self.definition, self.storage, self._send, asyncio.Semaphore(8), external_labels=labels, began_ms=began_ms
        )

    def _send(self, rule: RuleDefinition, alerts: list[Alert]) -> None:
        self.sent += alerts

    async def at(self, minute: float, **answers: Any) -> dict[Any, float]:
        """Evaluate; returns the samples that were written."""
        self.storage.answers.update(answers)
        before = len(self.storage.written)
        await self.group.evaluate(T + int(minute * MINUTE))
        return {labels: value for _, own, _ in self.storage.written[before:] for labels, value in own.items()}

    def ended(self) -> set[Any]:
        return self.storage.written[-1][2]

    def states(self) -> list[str]:
        return sorted(alert.state for alert in self.group.rules[-1].alerts.by_labels.values())


async def test_a_recording_rule_stores_its_result_under_its_name() -> None:
    rig = Rig("record: r, expr: m, labels: {a: x, gone: ''}")
    written = await rig.at(0, m=[series(2.0, name="m", a="old", b="y", gone="z"), series(3.0, b="w")])
    assert written == {
        labels_of({"__name__": "r", "a": "x", "b": "y"}): 2.0,
        labels_of({"__name__": "r", "a": "x", "b": "w"}): 3.0,
    }
    assert rig.group.rules[0].health == "ok" and rig.group.samples == 2


async def test_a_series_that_vanishes_is_ended_once() -> None:
    rig = Rig("record: r, expr: m")
    await rig.at(0, m=[series(1.0, a="x"), series(1.0, a="y")])
    await rig.at(1, m=[series(1.0, a="y")])
    assert rig.ended() == {labels_of({"__name__": "r", "a": "x"})}
    await rig.at(2)
    assert rig.ended() == set()


async def test_a_series_that_an_earlier_rule_gives_now_is_not_ended_by_a_later_one() -> None:
    rig = Rig("record: r, expr: m\nrecord: count, expr: count(r)\nrecord: r, expr: n")
    r = labels_of({"__name__": "r", "i": "a"})
    await rig.at(0, m=[], n=[series(5.0, i="a")])
    written = await rig.at(1, m=[series(7.0, i="a")], n=[])
    assert written[r] == 7.0 and not any(r in ended for _, _, ended in rig.storage.written)
    await rig.at(2, m=[])
    assert rig.storage.written[-1][2] == {r}  # by the rule that gave it last


async def test_a_query_offset_moves_the_query_and_the_samples() -> None:
    rig = Rig("record: r, expr: m", "query_offset: 30s")
    await rig.at(0, m=[series(1.0)])
    assert rig.storage.asked == [("m", T - 30_000)] and rig.storage.written[0][0] == T - 30_000


async def test_a_rule_that_fails_is_shown_and_harms_no_other() -> None:
    rig = Rig("record: a, expr: m\nrecord: b, expr: n\nrecord: c, expr: o")
    failing = {"m": NotExecutable("too much"), "n": [series(1.0, x="1"), series(2.0, name="n", x="1")]}
    written = await rig.at(0, **failing, o=[series(5.0)])
    assert written == {labels_of({"__name__": "c"}): 5.0}
    assert [rule.health for rule in rig.group.rules] == ["err", "err", "ok"]
    assert rig.group.rules[0].error == "too much"
    assert "same labelset after applying rule labels" in rig.group.rules[1].error
    assert (rig.group.evaluations, rig.group.failures) == (3, 2)
    await rig.at(1, m=[series(1.0)])
    assert rig.group.rules[0].health == "ok" and not rig.group.rules[0].error


async def test_more_series_than_the_limit_are_an_error() -> None:
    rig = Rig("record: a, expr: m\nalert: b, expr: m", "limit: 1")
    assert not await rig.at(0, m=[series(1.0, x="1"), series(1.0, x="2")])
    assert [rule.error for rule in rig.group.rules] == [
        "exceeded limit of 1 with 2 series",
        "exceeded limit of 1 with 2 alerts",
    ]


async def test_results_are_written_before_a_rule_reads_them_and_else_together() -> None:
    rig = Rig("record: a, expr: m\nrecord: b, expr: n\nrecord: c, expr: a + 1\nrecord: d, expr: n")
    await rig.at(0, **{"m": [series(1.0)], "n": [series(1.0)], "a + 1": [series(2.0)]})
    assert rig.storage.order == ["query m", "query n", "write", "query a + 1", "query n", "write"]


async def test_a_write_that_fails_is_an_error_of_its_rules_and_ends_are_written_later() -> None:
    rig = Rig("record: a, expr: m")
    await rig.at(0, m=[series(1.0, x="1")])
    rig.storage.refuses = Unavailable("shard 1 is away")
    await rig.at(1, m=[series(1.0, x="2")])
    assert rig.group.rules[0].error == "shard 1 is away"
    rig.storage.refuses = None
    await rig.at(2)
    assert rig.ended() == {labels_of({"__name__": "a", "x": "1"})}


async def test_series_that_a_failed_write_may_have_stored_are_ended() -> None:
    rig = Rig("record: a, expr: m")
    rig.storage.refuses = Unavailable("shard 1 is away")
    await rig.at(0, m=[series(1.0, x="1")])
    rig.storage.refuses = None
    await rig.at(1, m=[])
    assert rig.ended() == {labels_of({"__name__": "a", "x": "1"})}


async def test_a_rule_whose_series_are_refused_harms_no_other() -> None:
    rig = Rig("record: long, expr: m\nrecord: b, expr: n")
    rig.storage.invalid = {labels_of({"__name__": "long", "x": "1"})}
    await rig.at(0, m=[series(1.0, x="1"), series(1.0, x="2")], n=[series(2.0, y="1")])
    assert [rule.health for rule in rig.group.rules] == ["err", "ok"] and rig.group.failures == 1
    await rig.at(1, m=[], n=[])
    assert rig.storage.written[-1][2] == {
        labels_of({"__name__": "long", "x": "2"}),
        labels_of({"__name__": "b", "y": "1"}),
    }
    await rig.at(2)
    assert [rule.health for rule in rig.group.rules] == ["ok", "ok"]


async def test_what_could_not_be_foreseen_in_one_rule_harms_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: object, *_: object) -> str:
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr(Template, "expand", fails)
    rig = Rig("alert: A, expr: m, labels: {x: '{{ $value }}'}\nrecord: b, expr: n\nrecord: c, expr: b")
    written = await rig.at(0, m=[series(1.0)], n=[series(2.0)], b=[series(3.0)])
    assert written == {labels_of({"__name__": "b"}): 2.0, labels_of({"__name__": "c"}): 3.0}
    assert [rule.error for rule in rig.group.rules] == ["a defect", "", ""]


ALERT = "alert: Down, expr: m, for: 2m, labels: {severity: page}, annotations: {s: '{{ $labels.i }} {{ $value }}'}"
DOWN = {"alertname": "Down", "severity": "page", "i": "a"}


async def test_an_alert_is_pending_then_firing_then_resolved() -> None:
    rig = Rig(ALERT)
    present = [series(7.0, name="m", i="a")]
    written = await rig.at(0, m=present)
    assert written == {
        labels_of({**DOWN, "__name__": "ALERTS", "alertstate": "pending"}): 1.0,
        labels_of({**DOWN, "__name__": "ALERTS_FOR_STATE"}): T / 1000,
    }
    assert rig.states() == ["pending"] and not rig.sent
    await rig.at(1)
    assert rig.states() == ["pending"]
    written = await rig.at(2)
    assert labels_of({**DOWN, "__name__": "ALERTS", "alertstate": "firing"}) in written
    assert rig.ended() == {labels_of({**DOWN, "__name__": "ALERTS", "alertstate": "pending"})}
    assert [(dict(one.labels), one.annotations, one.state) for one in rig.sent] == [(DOWN, {"s": "a 7"}, "firing")]
    assert rig.sent[0].valid_until_ms == T + 2 * MINUTE + 4 * MINUTE
    await rig.at(3, m=[])
    assert rig.states() == ["inactive"] and not rig.group.rules[0].alerts.active()
    assert (rig.sent[-1].state, rig.sent[-1].resolved_at_ms) == ("inactive", T + 3 * MINUTE)
    assert len(rig.ended()) == 2
    for minute in range(4, 20):
        await rig.at(minute)
    assert rig.states() == []
    resolved = [one for one in rig.sent if one.state == "inactive"]
    assert len(resolved) == 16  # again and again for 15 minutes: an Alertmanager may have been away


async def test_a_clock_that_is_set_back_delays_no_alert() -> None:
    rig = Rig(ALERT)
    present = [series(7.0, name="m", i="a")]
    await rig.at(60, m=present)
    await rig.at(0)
    assert rig.states() == ["pending"]
    await rig.at(2)
    assert rig.states() == ["firing"]
    sent = len(rig.sent)
    await rig.at(-60)
    await rig.at(-59)
    assert len(rig.sent) == sent + 1, "it is sent again after the delay, not an hour later"


async def test_an_alert_that_comes_back_begins_anew() -> None:
    rig = Rig(ALERT)
    for minute in range(3):
        await rig.at(minute, m=[series(1.0, i="a")])
    await rig.at(3, m=[])
    await rig.at(4, m=[series(1.0, i="a")])
    alert = rig.group.rules[0].alerts.active()[0]
    assert (alert.state, alert.active_at_ms, alert.resolved_at_ms) == ("pending", T + 4 * MINUTE, 0)


async def test_a_pending_alert_that_goes_is_forgotten() -> None:
    rig = Rig(ALERT)
    await rig.at(0, m=[series(1.0, i="a")])
    await rig.at(1, m=[])
    assert rig.states() == [] and not rig.sent


async def test_an_alert_keeps_firing_as_long_as_the_rule_says() -> None:
    rig = Rig("alert: A, expr: m, keep_firing_for: 2m")
    await rig.at(0, m=[series(1.0)])
    states = []
    for minute in range(1, 5):
        await rig.at(minute, m=[])
        states += rig.states()
    assert states == ["firing", "firing", "inactive", "inactive"]


async def test_firing_alerts_are_sent_again_after_the_resend_delay() -> None:
    rig = Rig("alert: A, expr: m")
    for minute in (0, 0.5, 1, 1.5, 2):
        await rig.at(minute, m=[series(1.0)])
    assert [one.sent_at_ms for one in rig.sent] == [T, T + MINUTE, T + 2 * MINUTE]


async def test_equal_labels_of_alerts_are_an_error_and_leave_alerts_as_they_are() -> None:
    rig = Rig("alert: A, expr: m, for: 2m, labels: {i: same}")
    assert not await rig.at(0, m=[series(1.0, i="a"), series(1.0, i="b")])
    assert "same labelset after applying alert labels" in rig.group.rules[0].error
    await rig.at(1, m=[series(1.0, i="a")])
    assert not await rig.at(2, m=[series(1.0, i="a"), series(1.0, i="b")])
    assert rig.states() == ["pending"]
    await rig.at(3, m=[series(1.0, i="b")])
    assert rig.states() == ["firing"]


async def test_more_alerts_than_the_limit_end_all() -> None:
    rig = Rig("alert: A, expr: m", "limit: 1")
    await rig.at(0, m=[series(1.0, i="a")])
    await rig.at(1, m=[series(1.0, i="a"), series(1.0, i="b")])
    assert rig.states() == []


async def test_a_template_that_fails_does_not_keep_the_alert() -> None:
    rig = Rig("alert: A, expr: m, annotations: {s: '{{ query `n` | first }}', e: '{{ $externalLabels.region }}'}")
    await rig.at(0, m=[series(1.0)])
    annotations = rig.group.rules[0].alerts.active()[0].annotations
    assert annotations["s"].startswith("<error expanding template: error calling first") and annotations["e"] == "eu"
    await rig.at(1, n=[series(4.0, i="x")])
    assert rig.group.rules[0].alerts.active()[0].annotations["s"] == "{map[i:x] 4}"
    await rig.at(2, n=Unavailable("away"))
    assert "error calling query: away" in rig.group.rules[0].alerts.active()[0].annotations["s"]


async def test_an_error_leaves_alerts_as_they_are() -> None:
    rig = Rig(ALERT)
    for minute in range(3):
        await rig.at(minute, m=[series(1.0, i="a")])
    await rig.at(3, m=Unavailable("shard 0 is away"))
    assert rig.states() == ["firing"] and rig.group.rules[0].health == "err"


@pytest.mark.parametrize(
    ("held", "active_before", "outage", "expected"),
    [
        (30, 40, 10, -40 - 10),  # it was firing: it goes on
        (30, 5, 10, -5),  # the outage does not count
        (30, 25, 10, 10 - 30),  # it would fire soon: a period of grace
        (2, 1, 3, 0),  # the grace is no longer than `for`
    ],
)
async def test_pending_time_is_taken_over_after_a_restart(
    held: int, active_before: int, outage: int, expected: int
) -> None:
    rig = Rig(f"alert: Down, expr: m, for: {held}m")
    rule = rig.definition.rules[0]
    seen_s = T / 1000 - outage * 60
    state = series(seen_s - active_before * 60, name="ALERTS_FOR_STATE", alertname="Down", i="a")
    rig.storage.answers[last_seen_query(rule)] = [series(seen_s, alertname="Down", i="a")]
    rig.storage.answers[states_query(rule)] = [state]
    await rig.at(0, m=[series(1.0, i="a"), series(1.0, i="b")])
    since = {dict(one.labels)["i"]: one.active_at_ms for one in rig.group.rules[0].alerts.active()}
    assert since == {"a": T + expected * MINUTE, "b": T}
    await rig.at(1)
    assert sum(expr == last_seen_query(rule) for expr, _ in rig.storage.asked) == 1


async def test_alerts_of_this_name_that_other_groups_have_stored_since_the_restart_do_not_count() -> None:
    rig = Rig(ALERT)
    rig.group = rig.made(began_ms=T)
    query = last_seen_query(rig.definition.rules[0])
    for minute in (0, 1):
        await rig.at(minute, m=[series(1.0, i="a")], **{query: Unavailable("away")})
    assert [time_ms for expr, time_ms in rig.storage.asked if expr == query] == [T - 1, T - 1]


async def test_a_restart_while_a_shard_is_away_is_taken_over_later() -> None:
    rig = Rig(ALERT)
    query = last_seen_query(rig.definition.rules[0])
    await rig.at(0, m=[series(1.0, i="a")], **{query: Unavailable("away")})
    assert rig.group.rules[0].error == "away" and not rig.storage.written
    await rig.at(1, **{query: []})
    assert rig.states() == ["pending"]


async def test_a_changed_group_takes_over_alerts_and_ends_what_is_gone() -> None:
    rig = Rig("record: a, expr: m\nrecord: b, expr: m\n" + ALERT)
    for minute in range(3):
        await rig.at(minute, m=[series(1.0, i="a")])
    before = rig.group
    rig.definition = parse(
        b"groups: [{name: g, rules: [{record: b, expr: n}, "
        b"{alert: Down, expr: m, for: 5m, labels: {severity: page}}]}]",
        "r.yml",
    )[0]
    rig.group = rig.made()
    rig.group.take_over(before)
    await rig.at(3, n=[series(1.0, i="a")])
    assert rig.states() == ["firing"] and rig.group.iterations == 4
    assert rig.ended() == {labels_of({"__name__": "a", "i": "a"})}
    await rig.at(4)
    assert rig.ended() == set()


def test_groups_are_spread_over_their_interval() -> None:
    firsts = set()
    for number in range(50):
        definition = parse(f"groups: [{{name: g{number}, interval: 10s}}]".encode(), "r.yml")[0]
        group = Group(definition, FakeStorage(), lambda rule, alerts: None, asyncio.Semaphore(1))
        first = group.first_at_ms(T)
        assert T <= first < T + 10_000
        assert group.first_at_ms(T + 10_000) == first + 10_000
        firsts.add(first)
    assert len(firsts) > 40


async def test_templates_that_ask_too_long_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "TEMPLATES_S_MAX", 0.05)
    rig = Rig("alert: A, expr: m, annotations: {s: '{{ query `slow` | first }}'}")
    answered = rig.storage.query

    async def query(expr: str, time_ms: int, lookback_ms: int | None = None) -> Any:
        if expr == "slow":
            await asyncio.sleep(10)
        return await answered(expr, time_ms)

    monkeypatch.setattr(rig.storage, "query", query)
    await rig.at(0, m=[series(1.0, i="a"), series(1.0, i="b")])
    texts = [alert.annotations["s"] for alert in rig.group.rules[0].alerts.active()]
    assert "did not answer within" in texts[0] and "take too long" in texts[1]


async def test_a_text_that_is_no_unicode_harms_no_other_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Template, "expand", lambda self, labels, value, around: "a\ud800")
    rig = Rig("record: r, expr: m\nalert: Down, expr: m, labels: {half: x}, annotations: {text: y}")
    written = await rig.at(0, m=[series(1.0, i="a")])
    (alert,) = rig.sent
    assert (dict(alert.labels)["half"], alert.annotations) == ("a?", {"text": "a?"})
    assert b"a?" in b"".join(map(label_sets.encode, written))
