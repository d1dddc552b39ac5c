"""What a credential may do, and which role a route needs.

Each area has three roles, and each role includes the one before it: read, write, admin. The method of a request does
not determine its role, since queries and searches are sent by POST as well. So every route has a line here; a route
without one needs the role admin in all areas.

`python -m coordinator.access.roles` prints the table of docs/security.md.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from dataclasses import dataclass
from enum import IntEnum


class Area(IntEnum):
    METRICS = 0
    LOG = 1
    VECTORS = 2


class Role(IntEnum):
    NONE = 0
    READ = 1
    WRITE = 2
    ADMIN = 3


Roles = tuple[Role, Role, Role]
"""The role in each area, in the order of `Area`."""
EVERYTHING: Roles = (Role.ADMIN, Role.ADMIN, Role.ADMIN)


@dataclass(frozen=True, slots=True)
class Need:
    """A role in one area; `area` None: in all areas."""

    area: Area | None
    role: Role

    def is_met(self, roles: Roles) -> bool:
        return (min(roles) if self.area is None else roles[self.area]) >= self.role

    def __str__(self) -> str:
        where = "all areas" if self.area is None else f"the area {self.area.name.lower()}"
        return f"the role {self.role.name.lower()} in {where}"


ANY_CREDENTIAL = Need(None, Role.NONE)
ALL_ADMIN = Need(None, Role.ADMIN)
HEALTH = ("/-/healthy", "/-/ready")
"""Open to everybody, unless a setting restricts them."""
PAGE = ("/", "/ui/{version}/{path}", "/graph", "/query", "/docs", "/docs.css", "/api/v1/openapi.yaml")
"""Open to everybody: the page asks for a credential itself, and its files are the same everywhere."""

_READ, _WRITE, _ADMIN = ({area: Need(area, role) for area in Area} for role in (Role.READ, Role.WRITE, Role.ADMIN))
_LOG, _VECTOR = "/api/v1/log", "/api/v1/vector"
_LOG_READS = ("scan", "segments", "keys", "offsets", "count", "frontier")
_VECTOR_READS = ("search", "get", "scroll", "count", "facets", "map")
_QUERIES = ("query", "query_range", "query_exemplars", "format_query", "parse_query", "series", "labels")
_LISTS = (
    "rules",
    "alerts",
    "targets",
    "targets/metadata",
    "scrape_pools",
    "alertmanagers",
    "notifications",
    "features",
)

NEEDS: dict[tuple[str, str], Need] = {
    **{("GET", path): ANY_CREDENTIAL for path in (*HEALTH, *PAGE)},
    ("GET", "/metrics"): ANY_CREDENTIAL,
    ("GET", "/api/v1/status/buildinfo"): ANY_CREDENTIAL,
    ("GET", "/api/v1/status/memory"): ANY_CREDENTIAL,
    ("GET", "/api/v1/cluster"): ANY_CREDENTIAL,
    **{(method, f"/api/v1/{name}"): _READ[Area.METRICS] for method in ("GET", "POST") for name in _QUERIES},
    ("GET", "/api/v1/label/{name}/values"): _READ[Area.METRICS],
    ("GET", "/api/v1/metadata"): _READ[Area.METRICS],
    **{("GET", f"/api/v1/status/{name}"): _READ[Area.METRICS] for name in ("tsdb", "runtimeinfo", "walreplay")},
    ("GET", "/federate"): _READ[Area.METRICS],
    ("POST", "/api/v1/read"): _READ[Area.METRICS],
    **{("GET", f"/api/v1/{name}"): _READ[Area.METRICS] for name in _LISTS},
    ("GET", "/api/v1/export"): _READ[Area.METRICS],
    ("POST", "/api/v1/write"): _WRITE[Area.METRICS],
    **{("POST", f"/api/v1/{name}"): _WRITE[Area.METRICS] for name in ("import", "import/csv")},
    **{("POST", f"{prefix}/v1/metrics"): _WRITE[Area.METRICS] for prefix in ("", "/api/v1/otlp")},
    **{("POST", f"{prefix}/v1/logs"): _WRITE[Area.LOG] for prefix in ("", "/api/v1/otlp")},
    ("POST", "/api/v1/admin/tsdb/delete_series"): _ADMIN[Area.METRICS],
    **{(method, "/api/v1/admin/tsdb/clean_tombstones"): _ADMIN[Area.METRICS] for method in ("POST", "PUT")},
    **{(method, "/api/v1/admin/tsdb/snapshot"): ALL_ADMIN for method in ("POST", "PUT")},
    ("POST", "/api/v1/admin/backup"): ALL_ADMIN,
    **{(method, "/api/v1/admin/backup/{view}"): ALL_ADMIN for method in ("POST", "DELETE")},
    **{("GET", f"/api/v1/admin/backup/{{view}}/{name}"): ALL_ADMIN for name in ("files", "content")},
    # Settings reveal the paths of files; other people's queries, in every area, may be secret.
    **{("GET", f"/api/v1/status/{name}"): ALL_ADMIN for name in ("flags", "config", "settings")},
    **{(method, "/-/reload"): ALL_ADMIN for method in ("POST", "PUT")},
    ("GET", "/api/v1/queries"): ALL_ADMIN,
    ("GET", "/api/v1/queries/slow"): ALL_ADMIN,
    ("DELETE", "/api/v1/queries/{id}"): ALL_ADMIN,
    ("GET", "/api/v1/debug/profile"): ALL_ADMIN,
    ("*", "/api/v1/admin/{path}"): ALL_ADMIN,
    **{("GET", f"{_LOG}/{name}"): _READ[Area.LOG] for name in _LOG_READS},
    ("GET", f"{_LOG}/cursors/{{name}}"): _READ[Area.LOG],
    ("PUT", f"{_LOG}/cursors/{{name}}"): _WRITE[Area.LOG],
    ("DELETE", f"{_LOG}/cursors/{{name}}"): _WRITE[Area.LOG],
    ("POST", f"{_LOG}/append"): _WRITE[Area.LOG],
    ("DELETE", f"{_LOG}/keys"): _WRITE[Area.LOG],
    ("GET", f"{_LOG}/policies"): _READ[Area.LOG],
    ("GET", f"{_LOG}/policies/{{name}}"): _READ[Area.LOG],
    ("PUT", f"{_LOG}/policies/{{name}}"): _ADMIN[Area.LOG],
    ("DELETE", f"{_LOG}/policies/{{name}}"): _ADMIN[Area.LOG],
    **{("GET", f"{_LOG}/{name}"): _READ[Area.LOG] for name in ("tail", "cursors", "groups", "groups/{group}")},
    # A poll changes nothing permanently, but a member is of no use without commits, which write.
    **{("POST", f"{_LOG}/groups/{{group}}/{act}"): _WRITE[Area.LOG] for act in ("join", "poll", "commit", "leave")},
    ("DELETE", f"{_LOG}/groups/{{group}}"): _WRITE[Area.LOG],
    **{("POST", f"{_VECTOR}/{name}"): _READ[Area.VECTORS] for name in _VECTOR_READS},
    ("GET", f"{_VECTOR}/vectors/{{id}}"): _READ[Area.VECTORS],
    ("GET", f"{_VECTOR}/stats"): _READ[Area.VECTORS],
    ("GET", f"{_VECTOR}/collections"): _READ[Area.VECTORS],
    ("GET", f"{_VECTOR}/collections/{{name}}"): _READ[Area.VECTORS],
    ("GET", f"{_VECTOR}/collections/{{name}}/attributes"): _READ[Area.VECTORS],
    ("POST", f"{_VECTOR}/write"): _WRITE[Area.VECTORS],
    ("POST", f"{_VECTOR}/delete"): _WRITE[Area.VECTORS],
    ("POST", f"{_VECTOR}/update"): _WRITE[Area.VECTORS],
    ("PUT", f"{_VECTOR}/collections/{{name}}"): _ADMIN[Area.VECTORS],
    ("DELETE", f"{_VECTOR}/collections/{{name}}"): _ADMIN[Area.VECTORS],
}


def need_of(method: str, route: str | None) -> Need:
    """The role that a request with this method to this route needs; `route` None: there is no such route."""
    if route is None:
        return ANY_CREDENTIAL
    return NEEDS.get(("GET" if method == "HEAD" else method, route), ALL_ADMIN)


def table() -> str:
    """The routes by role, as a Markdown table."""
    methods: defaultdict[tuple[Need, str], list[str]] = defaultdict(list)
    for (method, path), need in sorted(NEEDS.items(), key=lambda line: line[0][::-1]):
        methods[need, path].append(method)
    open_routes: list[str] = []
    routes: defaultdict[Need, list[str]] = defaultdict(list)
    for (need, path), names in methods.items():
        group = open_routes if path in PAGE else routes[need]
        group.append(f"`{' '.join(names)} {path}`".replace("* ", ""))
    lines = [f"| none: open to everybody | {', '.join(open_routes)} |"]
    lines += [f"| {_cell(need)} | {', '.join(paths)} |" for need, paths in sorted(routes.items(), key=_order)]
    return "\n".join(["| role | routes |", "|---|---|", *lines, ""])


def _order(group: tuple[Need, list[str]]) -> tuple[bool, int, int]:
    area, role = group[0].area, group[0].role
    return (area is None and role > Role.NONE, -1 if area is None else area, role)


def _cell(need: Need) -> str:
    if need is ANY_CREDENTIAL:
        return "any credential"
    return f"{need.role.name.lower()} in {'all areas' if need.area is None else need.area.name.lower()}"


if __name__ == "__main__":
    sys.stdout.write(table())
