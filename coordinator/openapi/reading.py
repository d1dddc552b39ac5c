"""The document as a page to read: HTML without scripts, which a browser searches and prints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

from coordinator.openapi.document import document
from coordinator.openapi.shapes import SCHEMAS

STYLES = (Path(__file__).parent / "docs.css").read_bytes()


@cache
def page() -> bytes:
    """Made once in a process: not for the event loop."""
    return "".join(_page(document())).encode()


def _page(told: Mapping[str, Any]) -> Iterator[str]:
    info = told["info"]
    yield '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Triptych: endpoints</title>'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield '<link rel="stylesheet" href="docs.css"></head><body>'
    yield f"<header><h1>{escape(info['title'])}</h1><p>{escape(info['description'])}</p>"
    yield '<p><a href="api/v1/openapi.yaml">OpenAPI document</a> · <a href="./">Page</a></p><nav>'
    areas = [tag["name"] for tag in told["tags"]]
    yield from (f'<a href="#{area}">{area}</a> ' for area in areas)
    yield '<a href="#schemas">Schemas</a></nav></header><main>'
    for area in areas:
        yield f'<section id="{area}"><h2>{area}</h2>'
        for path, operations in told["paths"].items():
            for method, operation in operations.items():
                if area in operation["tags"]:
                    yield from _operation(path, method, operation)
        yield "</section>"
    yield '<section id="schemas"><h2>Schemas</h2>'
    for name, schema in told["components"]["schemas"].items():
        yield f'<details id="{name}"><summary><code>{name}</code></summary>{_members(schema)}</details>'
    yield "</section></main></body></html>\n"


def _operation(path: str, method: str, operation: Mapping[str, Any]) -> Iterator[str]:
    yield f'<details id="{operation["operationId"]}"><summary><b>{method.upper()}</b> <code>{escape(path)}</code> '
    yield f"<span>{escape(operation['summary'])}</span></summary><p>{escape(operation['description'])}</p>"
    if "parameters" in operation:
        yield "<table><tr><th>parameter</th><th>type</th><th>meaning</th></tr>"
        for own in operation["parameters"]:
            required = "" if not own.get("required") else " (required)"
            kind = _type(own["schema"])
            yield f"<tr><td><code>{escape(own['name'])}</code>{required}</td><td>{kind}</td>"
            yield f"<td>{escape(own.get('description', ''))}</td></tr>"
        yield "</table>"
    if "requestBody" in operation:
        yield f"<h3>Body</h3>{_media(operation['requestBody']['content'])}"
        yield f"<p>{escape(operation['requestBody'].get('description', ''))}</p>"
    for status, answer in operation["responses"].items():
        if status != "default":
            yield f"<h3>Answer {status}</h3>{_media(answer.get('content', {}))}"
    yield "</details>"


def _media(content: Mapping[str, Any]) -> str:
    rows = [
        f"<tr><td><code>{escape(name)}</code></td><td>{_shape(own['schema'])}</td></tr>"
        for name, own in content.items()
    ]
    return f"<table>{''.join(rows)}</table>" if rows else ""


def _shape(schema: Mapping[str, Any]) -> str:
    return _members(schema) if "properties" in schema else _type(schema)


def _members(schema: Mapping[str, Any]) -> str:
    required = schema.get("required", ())
    rows = [
        f"<li><code>{escape(name)}</code>{'' if name in required else '?'}: {_shape(own)}</li>"
        for name, own in schema.get("properties", {}).items()
    ]
    return f"<ul>{''.join(rows)}</ul>" if rows else _type(schema)


def _type(schema: Mapping[str, Any]) -> str:
    """A type in words, where a schema of the document is a link."""
    if "$ref" in schema:
        name = schema["$ref"].removeprefix(SCHEMAS)
        return f'<a href="#{name}">{name}</a>'
    if schema.get("type") == "array":
        return f"list of {_shape(schema['items'])}"
    if "additionalProperties" in schema:
        return f"any names: {_shape(schema['additionalProperties'])}"
    return escape(schema.get("description") or schema.get("format") or schema.get("type", "any value"))
