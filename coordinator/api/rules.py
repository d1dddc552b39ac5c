"""Rules, alerts and Alertmanagers in Prometheus's formats, which Grafana's alert list and other clients ask for.

Parameters and shapes: https:

prometheus.io/docs/prometheus/latest/querying/api/#rules. Without a configuration file the lists are empty.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from aiohttp import web

from coordinator.api import parameters
from coordinator.api.selectors import selectors
from coordinator.context import CONTEXT
from coordinator.http.responses import made_in_thread, success
from coordinator.rfc_3339 import NEVER, time_text
from coordinator.rules.alerts import Alert
from coordinator.rules.groups import Group, RuleState
from shared.errors import BadData
from shared.promql.ast import Matcher
from shared.promql.label_tests import label_test

RULE_TYPES = ("alert", "record")
_TRUE, _FALSE = ("1", "t", "T", "true", "TRUE", "True"), ("0", "f", "F", "false", "FALSE", "False")


async def rules(request: web.Request) -> web.Response:
    """Raises BadData for malformed filters, and for a page token that does not exist."""
    fields = await parameters.form(request)
    kind = fields.get("type", "").lower()
    if kind and kind not in RULE_TYPES:
        raise BadData(f"parameter 'type' is {fields['type'][:100]!r}; it must be alert or record")
    exclude = fields.get("exclude_alerts", "")
    if exclude and exclude not in (*_TRUE, *_FALSE):
        raise BadData(f"parameter 'exclude_alerts' is {exclude[:100]!r}; it must be true or false")
    label_filter = _label_filter(await selectors(fields))
    limit = fields.get("group_limit", "")
    if limit and not parameters.limit(limit, "group_limit"):
        raise BadData(f"parameter 'group_limit' is {limit!r}; it must be a whole number greater than 0")
    token = fields.get("group_next_token", "")
    if token and not limit:
        raise BadData("parameter 'group_next_token' needs 'group_limit', too")
    names, groups, files = (set(fields.getall(name, [])) for name in ("rule_name[]", "rule_group[]", "file[]"))

    def is_wanted(rule: RuleState) -> bool:
        definition = rule.definition
        has_name = not names or definition.name in names
        return (not kind or definition.kind == kind) and has_name and label_filter(definition.labels)

    chosen: list[tuple[Group, list[RuleState]]] = []
    for group in request.app[CONTEXT].rules.groups.values():
        definition = group.definition
        if (groups and definition.name not in groups) or (files and definition.file not in files):
            continue
        wanted = [rule for rule in group.rules if is_wanted(rule)]
        if wanted or not (kind or names or "match[]" in fields):
            chosen.append((group, wanted))
    page, next_token = _page(chosen, int(limit or 0), token)
    has_alerts = exclude not in _TRUE

    def made() -> web.Response:
        content: dict[str, Any] = {"groups": [_group(*each, has_alerts=has_alerts) for each in page]}
        return success({**content, "groupNextToken": next_token} if next_token else content)

    return await made_in_thread(request, made)


def _page(
    groups: Sequence[tuple[Group, list[RuleState]]], limit: int, token: str
) -> tuple[Sequence[tuple[Group, list[RuleState]]], str]:
    """(the groups of a page, the token of the next page, empty if there is none). Raises BadData."""
    first = 0
    if token:
        tokens = [_token(group) for group, _ in groups]
        if token not in tokens:
            raise BadData(
                f"parameter 'group_next_token' is {token[:100]!r}; no group has this token any more; ask without it"
            )
        first = tokens.index(token)
    if not limit or first + limit >= len(groups):
        return groups[first:], ""
    return groups[first : first + limit], _token(groups[first + limit][0])


def _token(group: Group) -> str:
    return hashlib.sha1(group.key.encode(errors="surrogatepass"), usedforsecurity=False).hexdigest()


def _label_filter(chosen: Sequence[Sequence[Matcher]]) -> Callable[[Mapping[str, str]], bool]:
    """Whether the labels of a rule satisfy one of the selectors. Labels that are templates count as missing."""
    if not chosen:
        return lambda labels: True
    tests = [label_test(matchers) for matchers in chosen]

    def is_chosen(labels: Mapping[str, str]) -> bool:
        fixed = {name: text for name, text in labels.items() if "{{" not in text}
        return any(test(fixed) for test in tests)

    return is_chosen


def _group(group: Group, rules: Sequence[RuleState], *, has_alerts: bool) -> dict[str, Any]:
    definition = group.definition
    return {
        "name": definition.name,
        "file": definition.file,
        "rules": [_rule(rule, has_alerts=has_alerts) for rule in rules],
        "interval": definition.interval_ms / 1000,
        "limit": definition.limit,
        "evaluationTime": round(group.seconds, 9),
        "lastEvaluation": _time(group.evaluated_at_ms),
    }


def _rule(rule: RuleState, *, has_alerts: bool) -> dict[str, Any]:
    definition = rule.definition
    content: dict[str, Any] = {
        "name": definition.name,
        "query": definition.shown,
        "labels": dict(definition.labels),
        "health": rule.health,
    }
    if definition.kind == "alert":
        content |= {
            "state": rule.alerts.state(),
            "duration": definition.for_ms / 1000,
            "keepFiringFor": definition.keep_firing_for_ms / 1000,
            "annotations": dict(definition.annotations),
            "alerts": [_alert(alert) for alert in rule.alerts.active()] if has_alerts else [],
        }
    if rule.error:
        content["lastError"] = rule.error
    return content | {
        "evaluationTime": round(rule.seconds, 9),
        "lastEvaluation": _time(rule.evaluated_at_ms),
        "type": "alerting" if definition.kind == "alert" else "recording",
    }


def _alert(alert: Alert) -> dict[str, Any]:
    content = {
        "labels": dict(alert.labels),
        "annotations": dict(alert.annotations),
        "state": alert.state,
        "activeAt": _time(alert.active_at_ms),
        "value": _value(alert.value),
    }
    if alert.keep_firing_since_ms:
        content["keepFiringSince"] = _time(alert.keep_firing_since_ms)
    return content


def _time(time_ms: int) -> str:
    return time_text(time_ms / 1000) if time_ms else NEVER


def _value(value: float) -> str:
    """As Go's FormatFloat with 'e': 15 → 1.5e+01."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
    return next(text for text in (f"{value:.{n}e}" for n in range(18)) if float(text) == value)


async def alerts(request: web.Request) -> web.Response:
    """All pending and firing alerts."""
    groups = request.app[CONTEXT].rules.groups.values()
    active = [alert for group in groups for rule in group.rules for alert in rule.alerts.active()]
    return await made_in_thread(request, lambda: success({"alerts": [_alert(alert) for alert in active]}))


async def alertmanagers(request: web.Request) -> web.Response:
    alerting = request.app[CONTEXT].rules.notifier.alerting
    return success(
        {
            "activeAlertmanagers": [{"url": one.url} for one in alerting.alertmanagers],
            "droppedAlertmanagers": [{"url": url} for url in alerting.dropped],
        }
    )


async def notifications(request: web.Request) -> web.Response:
    """Notifications that Prometheus shows on its own page; here there are none."""
    return success([])


ROUTES: list[web.RouteDef] = [
    web.get("/api/v1/rules", rules),
    web.get("/api/v1/alerts", alerts),
    web.get("/api/v1/alertmanagers", alertmanagers),
    web.get("/api/v1/notifications", notifications),
]
