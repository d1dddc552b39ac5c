"""Redirects links to Prometheus's own page, `/graph?g0.expr=…` and `/query?g0.expr=…`, to the same queries on our page.

Alerts, Grafana and people's notes contain many such links. The parameters of a link are those of Prometheus's page. All
of them are text that our page reads again, and ignores where it makes no sense.
"""

from __future__ import annotations

import re
from urllib.parse import urlencode

from aiohttp import hdrs, web
from multidict import MultiMapping

from coordinator.http.responses import PAGE_HEADERS

PATHS = ("/graph", "/query")
QUERIES_MAX = 20
"""As many queries as the page shows."""
_TABS = {"0": "graph", "graph": "graph", "1": "table", "table": "table", "explain": "explain"}
_CLOCK = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d(:\d\d(\.\d+)?)?")
"""A time without a zone, which these links mean in UTC."""


async def moved(request: web.Request) -> web.Response:
    """The address is relative, so that it works behind a proxy that serves this under a prefix."""
    headers = {hdrs.LOCATION: f"./#{fragment(request.query)}", **PAGE_HEADERS}
    return web.Response(status=302, headers=headers)


def fragment(fields: MultiMapping[str]) -> str:
    """The part after the `#` of our link: the queries g0, g1, … in order, with the times of the first query that has
    some."""
    numbers = [number for number in range(QUERIES_MAX) if f"g{number}.expr" in fields]
    pairs: list[tuple[str, str]] = []
    for number in numbers:
        pairs += [("expr", fields[f"g{number}.expr"].strip() or " "), ("view", _view(fields, f"g{number}"))]
    for name, key in (("range", "range_input"), ("end", "end_input"), ("end", "moment_input"), ("step", "step_input")):
        texts = (fields.get(f"g{number}.{key}", "") for number in numbers)
        text = next((text for text in texts if text), "")
        if text and name not in dict(pairs):
            pairs.append((name, f"{text}Z" if _CLOCK.fullmatch(text) else text))
    return f"metrics?{urlencode(pairs)}" if pairs else "metrics"


def _view(fields: MultiMapping[str], name: str) -> str:
    """The tab, and how the graph is drawn. Prometheus shows the table unless a link asks for the graph."""
    tab = _TABS.get(fields.get(f"{name}.tab", ""), "table")
    mode = fields.get(f"{name}.display_mode", "")
    is_stacked = mode == "stacked" or fields.get(f"{name}.stacked", "") in ("1", "true")
    return " ".join([tab, *(["stacked"] if is_stacked else []), *(["heat"] if mode == "heatmap" else [])])


ROUTES = [web.get(path, moved) for path in PATHS]
"""A redirect needs no credential: it contains nothing but what the request did."""
