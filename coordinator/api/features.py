"""GET /api/v1/features: which of Prometheus's features this service has, by Prometheus's categories and names.

Source: https:

prometheus.io/docs/prometheus/latest/querying/api/#features. A feature whose name is missing is not supported.
"""

from __future__ import annotations

from aiohttp import web

from coordinator.context import CONTEXT
from coordinator.http.responses import success
from shared.promql.functions import AGGREGATORS, FUNCTIONS
from shared.promql.operators import SCALAR_OPERATORS, SET_OPERATORS
from shared.settings import Settings

PROMQL = (
    "anchored",
    "at_modifier",
    "bool",
    "by",
    "duration_expr",
    "experimental_functions",
    "group_left",
    "group_right",
    "ignoring",
    "negative_offset",
    "offset",
    "on",
    "per_query_lookback_delta",
    "per_query_statistics",
    "smoothed",
    "subqueries",
    "without",
)


async def features(request: web.Request) -> web.Response:
    return success(features_of(request.app[CONTEXT].settings))


def features_of(settings: Settings) -> dict[str, dict[str, bool]]:
    return {
        "api": {
            "admin": settings.admin_api,
            "exclude_alerts": True,
            "label_values_match": True,
            "otlp_write_receiver": settings.otlp,
            "query_stats": True,
            "remote_write_receiver": settings.remote_write,
        },
        "promql": dict.fromkeys(PROMQL, True),
        "promql_functions": dict.fromkeys(sorted(FUNCTIONS), True),
        "promql_operators": dict.fromkeys(sorted({*AGGREGATORS, *SCALAR_OPERATORS, *SET_OPERATORS}), True),
        "tsdb": {"exemplar_storage": True, "native_histograms": True},
    }


ROUTES: list[web.RouteDef] = [web.get("/api/v1/features", features)]
