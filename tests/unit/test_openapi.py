"""The OpenAPI document describes the routes that are there, and the page shows it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import pytest
import yaml
from aiohttp import web
from openapi_spec_validator import validate

from coordinator.api import lists, parameters, selectors
from coordinator.api.strict import known_to
from coordinator.app import build
from coordinator.context import Context
from coordinator.openapi import document, reading
from shared.settings import Settings
from shared.version import version

FIELD = re.compile(r'(?:\((?:fields|request\.query), |(?:fields|request\.query)\.get(?:all)?\()"([^"]+)"')
READERS = (lists, parameters, selectors)
"""Modules that read parameters for several endpoints."""


class _Context:
    settings = Settings(admin_api=True)


@pytest.fixture(scope="module")
def routes() -> list[web.AbstractRoute]:
    app = build(cast(Context, cast(Any, _Context())))
    return [route for route in app.router.routes() if route.method != "HEAD"]


def path_of(route: web.AbstractRoute) -> str:
    assert route.resource is not None
    return route.resource.canonical


def operation_of(route: web.AbstractRoute) -> dict[str, Any]:
    return document.document()["paths"][path_of(route)][route.method.lower()]


def documented(route: web.AbstractRoute) -> set[str]:
    """Names of the query parameters of an operation."""
    return {own["name"] for own in operation_of(route).get("parameters", ()) if own["in"] == "query"}


def test_every_route_is_in_the_document_and_the_other_way_round(routes: list[web.AbstractRoute]) -> None:
    described = {
        (method.upper(), path)
        for path, operations in document.document()["paths"].items()
        for method in operations
    }  # fmt: skip
    assert {(route.method, path_of(route)) for route in routes} == described


def test_operations_have_the_parameters_that_strict_endpoints_know(routes: list[web.AbstractRoute]) -> None:
    aliases = document._table("parameters")["aliases"]
    known = {route: known_to(route.handler) for route in routes}
    strict = {route: names for route, names in known.items() if names is not None}
    assert len(strict) > 30
    for route, names in strict.items():
        assert documented(route) == names - aliases.keys(), f"{route.method} {path_of(route)}"


def by_module(routes: list[web.AbstractRoute]) -> Iterator[tuple[str, set[str]]]:
    """(source, documented parameters) of the modules of endpoints that are not strict."""
    found: dict[str, set[str]] = {}
    for route in routes:
        if known_to(route.handler) is None:
            found.setdefault(route.handler.__module__, set()).update(documented(route))
    for name, names in found.items():
        yield _source(name), names


def _source(module: str | ModuleType) -> str:
    name = module if isinstance(module, str) else module.__name__
    return Path(f"{name.replace('.', '/')}.py").read_text()


def test_operations_have_the_parameters_that_other_endpoints_read(
    routes: list[web.AbstractRoute], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(__file__).resolve().parents[2])
    shared = "".join(_source(module) for module in READERS)
    for source, names in by_module(routes):
        assert set(FIELD.findall(source)) - names == set(), "parameters that are read and not described"
        unread = {name for name in names if f'"{name}"' not in source and f'"{name}"' not in shared}
        assert unread == set(), "parameters that are described and not read"


def test_every_parameter_of_the_tables_is_one_of_some_operation(routes: list[web.AbstractRoute]) -> None:
    used = {name for route in routes for name in documented(route)}
    table = document._table("parameters")
    assert {name for area in ("metrics", "log", "vectors", "all") for name in table[area]} == used
    assert set(table["aliases"].values()) <= used


def test_the_document_is_valid_and_its_text_says_the_same() -> None:
    validate(document.document())
    assert yaml.load(document.text(), yaml.CSafeLoader) == document.document()


def test_the_release_is_not_told_to_everybody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "version", lambda _: "9.8.7")  # of the release
    document.document.cache_clear(), version.cache_clear()
    try:
        assert version() == "9.8.7"
        assert document.document()["info"]["version"] == "1.0.0"
        assert "9.8.7" not in str(document.document())
        assert re.findall("<h1>(.*)</h1>", "".join(reading._page(document.document()))) == ["Triptych"]
    finally:
        document.document.cache_clear(), version.cache_clear()


def test_an_operation_says_which_role_it_needs() -> None:
    paths = document.document()["paths"]
    assert paths["/api/v1/write"]["post"]["description"] == "Needs the role write in the area metrics."
    assert paths["/metrics"]["get"]["description"] == "Needs any credential."
    assert paths["/docs"]["get"]["security"] == [{}]


def test_a_form_has_the_parameters_of_a_query_and_the_message_of_a_search_its_fields() -> None:
    paths, schemas = document.document()["paths"], document.document()["components"]["schemas"]
    form = paths["/api/v1/query_range"]["post"]["requestBody"]["content"]["application/x-www-form-urlencoded"]["schema"]
    assert form["required"] == ["query", "start", "end", "step"]
    body = paths["/api/v1/vector/search"]["post"]["requestBody"]["content"]
    assert body["application/json"]["schema"] == {"$ref": "#/components/schemas/VectorSearchRequest"}
    fields = schemas["VectorSearchRequest"]["properties"]
    assert fields["includeFields"] == {"type": "array", "items": {"type": "string"}}
    assert schemas["VectorVector"]["properties"]["attributes"] == {
        "type": "object",
        "additionalProperties": {"$ref": "#/components/schemas/VectorAttributeValue"},
    }


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: set[str] = set()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag not in ("script", "style")
        for name, value in attrs:
            assert name in ("id", "href", "lang", "charset", "name", "content", "rel"), "nothing that a policy forbids"
            if name == "id":
                assert value not in self.ids
                self.ids.add(str(value))
            if name == "href":
                self.links.add(str(value))
        if tag not in ("meta", "link"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_shows_every_operation_and_links_to_what_is_there() -> None:
    text = reading.page().decode().removeprefix("<!doctype html>")
    page = _Page()
    page.feed(text)
    assert page.open == []
    for path, operations in document.document()["paths"].items():
        for operation in operations.values():
            assert operation["operationId"] in page.ids, path
    within = {link for link in page.links if link.startswith("#")}
    assert {link.removeprefix("#") for link in within} <= page.ids
    assert page.links - within == {"docs.css", "api/v1/openapi.yaml", "./"}
