"""What Prometheus tells of its rules, alerts and Alertmanagers. Grafana's alert list and other clients ask for them.

Parameters and shapes: https://prometheus.io/docs/prometheus/latest/querying/api/.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from aiohttp import web

from coordinator.api import parameters
from coordinator.api.selectors import selectors
from coordinator.responses import success
from shared.errors import BadData

RULE_TYPES = ("alert", "record")
_TRUE, _FALSE = ("1", "t", "T", "true", "TRUE", "True"), ("0", "f", "F", "false", "FALSE", "False")


async def rules(request: web.Request) -> web.Response:
    """Raises BadData for filters that are malformed, and for a token of a page: none is ever given out."""
    fields = await parameters.form(request)
    kind = fields.get("type", "").lower()
    if kind and kind not in RULE_TYPES:
        raise BadData(f"parameter 'type' is {fields['type'][:100]!r}; it must be alert or record")
    exclude = fields.get("exclude_alerts", "")
    if exclude and exclude not in (*_TRUE, *_FALSE):
        raise BadData(f"parameter 'exclude_alerts' is {exclude[:100]!r}; it must be true or false")
    await selectors(fields)
    limit = fields.get("group_limit", "")
    if limit and not parameters.limit(limit, "group_limit"):
        raise BadData(f"parameter 'group_limit' is {limit!r}; it must be a whole number greater than 0")
    token = fields.get("group_next_token", "")
    if token and not limit:
        raise BadData("parameter 'group_next_token' needs 'group_limit', too")
    if token:
        raise BadData(f"parameter 'group_next_token' is {token[:100]!r}; no list of groups has given out such a token")
    return success({"groups": []})


def _always(data: Mapping[str, Any] | list[Any]) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def answer(request: web.Request) -> web.Response:
        return success(data)

    return answer


EMPTY: Mapping[str, Mapping[str, Any] | list[Any]] = {
    "/api/v1/alerts": {"alerts": []},
    "/api/v1/alertmanagers": {"activeAlertmanagers": [], "droppedAlertmanagers": []},
    "/api/v1/notifications": [],
}

ROUTES: list[web.RouteDef] = [
    web.get("/api/v1/rules", rules),
    *(web.get(path, _always(data)) for path, data in EMPTY.items()),
]
