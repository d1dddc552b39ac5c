"""The alerts of one rule: from the series that its expression gives to pending, firing and resolved alerts.

https://prometheus.io/docs/prometheus/latest/configuration/alerting_rules/. Nothing here waits or reads a clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from coordinator.rules.rule_files import RuleDefinition
from coordinator.rules.templates import Surroundings, Template, TemplateError
from shared.errors import NotExecutable
from shared.labels import METRIC_NAME, Labels
from shared.promql import printer
from shared.promql.ast import Matcher, VectorSelector

ALERTS, ALERTS_FOR_STATE = "ALERTS", "ALERTS_FOR_STATE"
ALERT_NAME, ALERT_STATE = "alertname", "alertstate"
RESOLVED_KEPT_MS = 15 * 60_000
"""A resolved alert is sent again for this time, so that an Alertmanager that was down gets it."""
ALERTS_MAX = 10_000
"""The limit on the active alerts of one rule: nobody reads more, and the templates of each are expanded."""
OUTAGE_MAX_MS = 3_600_000
"""The pending time of an alert is continued after an outage that was not longer than this."""
GRACE_MAX_MS = 600_000
"""An alert that would fire soon after a start stays pending for at least this time, so that it can resolve, but not
longer than its `for`."""

State = Literal["pending", "firing", "inactive"]
Vector = Sequence[tuple[Labels, float]]
"""Label sets and values at one moment."""


class TooManyAlerts(NotExecutable):
    """A rule has more alerts than it may have. It keeps none of them."""


@dataclass(frozen=True, slots=True)
class Alert:
    """All times in Unix ms, 0: never. `labels`: with the name of the alert."""

    labels: Labels
    annotations: Mapping[str, str]
    value: float
    state: State
    active_at_ms: int
    fired_at_ms: int = 0
    resolved_at_ms: int = 0
    keep_firing_since_ms: int = 0
    sent_at_ms: int = 0
    valid_until_ms: int = 0

    def needs_sending(self, time_ms: int, resend_ms: int) -> bool:
        if self.state == "pending":
            return False
        return self.resolved_at_ms > self.sent_at_ms or self.sent_at_ms + resend_ms <= time_ms


_MOMENTS = ("active_at_ms", "fired_at_ms", "resolved_at_ms", "keep_firing_since_ms", "sent_at_ms")


@dataclass(frozen=True, slots=True)
class Alerts:
    """Alerts by label set, including resolved ones that are still kept; `series`: the series of each that are
    stored."""

    by_labels: Mapping[Labels, Alert] = field(default_factory=dict)
    series: Vector = ()

    def active(self) -> list[Alert]:
        """Pending and firing alerts."""
        return [alert for alert in self.by_labels.values() if alert.state != "inactive"]

    def state(self) -> State:
        """The state of the rule: that of its most serious alert."""
        states = {alert.state for alert in self.by_labels.values()}
        return "firing" if "firing" in states else "pending" if "pending" in states else "inactive"


def without_name(labels: Labels) -> Labels:
    return tuple(pair for pair in labels if pair[0] != METRIC_NAME)


def updated(
    rule: RuleDefinition,
    before: Alerts,
    vector: Vector,
    time_ms: int,
    limit: int,
    around: Surroundings,
    active_since_ms: Mapping[Labels, int],
) -> Alerts:
    """The alerts after an evaluation at `time_ms` that gave this vector. `active_since_ms`: of alerts that were active
    before the service started. Work for a thread where templates have queries. Raises NotExecutable for alerts with
    equal labels, or too many."""
    current = _of_vector(rule, vector, time_ms, around)
    alerts: dict[Labels, Alert] = {}
    earlier = {labels: _no_later(alert, time_ms) for labels, alert in before.by_labels.items()}
    for labels, new in current.items():
        old = earlier.get(labels)
        if old is not None and old.state != "inactive":
            new = replace(old, value=new.value, annotations=new.annotations, keep_firing_since_ms=0)
        else:
            new = replace(new, active_at_ms=min(active_since_ms.get(labels, time_ms), time_ms))
        alerts[labels] = _fired(new, rule, time_ms)
    for labels, old in earlier.items():
        if labels not in alerts:
            ended = _ended(old, rule, time_ms)
            if ended is not None:
                alerts[labels] = ended
    active = [alert for alert in alerts.values() if alert.state != "inactive"]
    most = min(limit, ALERTS_MAX) if limit else ALERTS_MAX
    if len(active) > most:
        raise TooManyAlerts(f"exceeded limit of {most} with {len(active)} alerts")
    return Alerts(alerts, [pair for alert in active for pair in _series(alert)])


def _no_later(alert: Alert, time_ms: int) -> Alert:
    """The alert with no moment after `time_ms`. After the clock has been set back, an alert that has been pending since
    a future time would not fire before that time."""
    later = {name: time_ms for name in _MOMENTS if getattr(alert, name) > time_ms}
    return replace(alert, **later) if later else alert  # type: ignore[arg-type]


def _of_vector(rule: RuleDefinition, vector: Vector, time_ms: int, around: Surroundings) -> dict[Labels, Alert]:
    if len(vector) > ALERTS_MAX:
        raise TooManyAlerts(f"exceeded limit of {ALERTS_MAX} with {len(vector)} alerts")
    label_templates = {name: _template(text) for name, text in rule.labels.items()}
    annotation_templates = {name: _template(text) for name, text in rule.annotations.items()}
    alerts: dict[Labels, Alert] = {}
    for series, value in vector:
        series_labels = dict(series)
        labels = {name: text for name, text in series_labels.items() if name != METRIC_NAME}
        labels |= {name: expand(series_labels, value, around) for name, expand in label_templates.items()}
        labels[ALERT_NAME] = rule.name
        annotations = {name: expand(series_labels, value, around) for name, expand in annotation_templates.items()}
        key = tuple(sorted((name, text) for name, text in labels.items() if text))
        if key in alerts:
            raise NotExecutable("vector contains metrics with the same labelset after applying alert labels")
        alerts[key] = Alert(key, annotations, value, "pending", time_ms)
    return alerts


def _template(text: str) -> Callable[[Mapping[str, str], float, Surroundings], str]:
    template = Template.of(text)

    def expand(labels: Mapping[str, str], value: float, around: Surroundings) -> str:
        """The text of a template, or a text with the error, because an alert with a broken text is better than none.
        The text is valid UTF-8."""
        try:
            text = template.expand(labels, value, around)
        except TemplateError as error:
            text = f"<error expanding template: {error}>"
        return text.encode(errors="replace").decode()

    return expand


def _fired(alert: Alert, rule: RuleDefinition, time_ms: int) -> Alert:
    if alert.state == "pending" and time_ms - alert.active_at_ms >= rule.for_ms:
        return replace(alert, state="firing", fired_at_ms=time_ms)
    return alert


def _ended(alert: Alert, rule: RuleDefinition, time_ms: int) -> Alert | None:
    """The state of an alert whose series has disappeared; None: the alert is forgotten."""
    if alert.state == "firing" and rule.keep_firing_for_ms:
        since_ms = alert.keep_firing_since_ms or time_ms
        if time_ms - since_ms < rule.keep_firing_for_ms:
            return replace(alert, keep_firing_since_ms=since_ms)
    if alert.state == "pending":
        return None
    if alert.state == "inactive":
        return alert if time_ms - alert.resolved_at_ms <= RESOLVED_KEPT_MS else None
    return replace(alert, state="inactive", resolved_at_ms=time_ms, keep_firing_since_ms=0)


def _series(alert: Alert) -> Iterable[tuple[Labels, float]]:
    yield _named(alert.labels, (METRIC_NAME, ALERTS), (ALERT_STATE, alert.state)), 1.0
    yield _named(alert.labels, (METRIC_NAME, ALERTS_FOR_STATE)), float(alert.active_at_ms // 1000)


def _named(labels: Labels, *pairs: tuple[str, str]) -> Labels:
    return tuple(sorted({**dict(labels), **dict(pairs)}.items()))


# After a restart


def last_seen_query(rule: RuleDefinition) -> str:
    """An expression for the Unix time in seconds at which each alert of this name was last active."""
    return f"timestamp({_states(rule)})"


def states_query(rule: RuleDefinition) -> str:
    """An expression for the Unix time in seconds since when each alert of this name has been active. Any client that
    may write samples may write such series, too. So the comparison leaves out values that are no times, such as NaN and
    native histograms."""
    return f"{_states(rule)} >= 0"


def _states(rule: RuleDefinition) -> str:
    matchers = (Matcher(METRIC_NAME, "=", ALERTS_FOR_STATE), Matcher(ALERT_NAME, "=", rule.name))
    return printer.to_text(VectorSelector(ALERTS_FOR_STATE, matchers))


def restored(
    rule: RuleDefinition, states: Vector, last_seen_ms: Mapping[Labels, int], time_ms: int
) -> dict[Labels, int]:
    """Since when alerts count as active that were active when they were last seen. The time of the outage does not
    count, and an alert that would fire soon after it gets a grace period."""
    grace_ms = min(GRACE_MAX_MS, rule.for_ms)
    since: dict[Labels, int] = {}
    for series, seconds in states:
        labels = without_name(series)
        seen_ms = last_seen_ms.get(labels)
        if seen_ms is None or seconds * 1000 > time_ms:
            continue
        active_ms = int(seconds * 1000)
        left_ms = rule.for_ms - (seen_ms - active_ms)
        if left_ms > 0:
            active_ms = time_ms + grace_ms - rule.for_ms if left_ms < grace_ms else active_ms + time_ms - seen_ms
        since[labels] = active_ms
    return since
