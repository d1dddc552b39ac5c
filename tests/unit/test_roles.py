"""Which role a route needs."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from coordinator.access.roles import (
    ALL_ADMIN,
    ANY_CREDENTIAL,
    EVERYTHING,
    NEEDS,
    PAGE,
    Area,
    Need,
    Role,
    need_of,
    table,
)
from coordinator.app import build
from coordinator.context import Context
from shared.settings import Settings


class _Settings:
    settings = Settings()


def test_every_route_has_its_line() -> None:
    app = build(cast(Context, cast(Any, _Settings())))
    routes = {(route.method, route.resource.canonical) for route in app.router.routes() if route.resource is not None}
    routes = {(method, path) for method, path in routes if method != "HEAD"}
    assert len(routes) > 30
    assert routes - NEEDS.keys() == set()


def test_the_page_has_the_table_of_all_routes() -> None:
    text = "run `python -m coordinator.access.roles` and put its table into docs/security.md"
    assert f"\n{table()}\n" in (Path(__file__).resolve().parents[2] / "docs" / "security.md").read_text(), text


def test_the_table_has_what_is_open_to_everybody_in_a_row_of_its_own() -> None:
    rows = dict(line.strip("| ").split(" | ") for line in table().splitlines()[2:])
    assert {path.removeprefix("`GET ").rstrip("`") for path in rows["none: open to everybody"].split(", ")} == set(PAGE)
    assert not any(f" {path}`" in rows["any credential"] for path in PAGE)


@pytest.mark.parametrize(
    ("method", "route", "need"),
    [
        ("POST", "/api/v1/query", Need(Area.METRICS, Role.READ)),
        ("HEAD", "/api/v1/query", Need(Area.METRICS, Role.READ)),
        ("POST", "/api/v1/write", Need(Area.METRICS, Role.WRITE)),
        ("POST", "/api/v1/vector/search", Need(Area.VECTORS, Role.READ)),
        ("DELETE", "/api/v1/vector/collections/{name}", Need(Area.VECTORS, Role.ADMIN)),
        ("POST", "/api/v1/log/append", Need(Area.LOG, Role.WRITE)),
        ("POST", "/api/v1/admin/tsdb/delete_series", Need(Area.METRICS, Role.ADMIN)),
        ("GET", "/metrics", ANY_CREDENTIAL),
        ("GET", None, ANY_CREDENTIAL),
        ("GET", "/a/route/without/a/line", ALL_ADMIN),
    ],
)
def test_what_a_request_needs(method: str, route: str | None, need: Need) -> None:
    assert need_of(method, route) == need


def test_a_role_includes_those_before_it_and_counts_in_its_area_only() -> None:
    roles = (Role.WRITE, Role.NONE, Role.ADMIN)
    assert [Need(Area.METRICS, role).is_met(roles) for role in Role] == [True, True, True, False]
    assert [Need(Area.LOG, role).is_met(roles) for role in Role] == [True, False, False, False]
    assert ANY_CREDENTIAL.is_met(roles)
    assert not ALL_ADMIN.is_met((Role.ADMIN, Role.ADMIN, Role.WRITE))
    assert ALL_ADMIN.is_met(EVERYTHING)


def test_a_need_names_its_role() -> None:
    assert str(Need(Area.LOG, Role.WRITE)) == "the role write in the area log"
    assert str(ALL_ADMIN) == "the role admin in all areas"
