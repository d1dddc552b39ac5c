"""The OpenAPI document, made of the tables beside this module (https://spec.openapis.org/oas/v3.1.0).

A table has for each path its methods, and for each of these: `summary`; `query`, its parameters, or `parameters`, which
a POST may have in a form as well; `body`, its media types; `proto`, a message that is its body as JSON or binary;
`request-encoding`; and what it answers: `data` in the envelope of the metrics, an `answer` as it is, other `media`, or
only a `status`. The role that an operation needs comes from the table of roles.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from coordinator.access.roles import HEALTH, PAGE, need_of
from coordinator.headers.negotiation import FORM, JSON, PROTOBUF
from coordinator.openapi.shapes import (
    SCHEMAS,
    Schema,
    names_required,
    object_of,
    schema_of,
    schemas_of_messages,
)
from proto import vector_pb2

TABLES = {"metrics": "Metrics", "log": "Log", "vectors": "Vectors", "service": "Service"}
"""Name of a table: the name of its area."""
MESSAGE_AREAS = ("log", "vectors")
PREFIX = "Vector"
"""Of the schemas made of messages of the vectors."""
VERSION = "1.0.0"
"""Of the interface, whose paths begin with /api/v1. The release is told only to clients that get in: the document is
open to everybody."""
_DIRECTORY = Path(__file__).parent
_PATH_NAME = re.compile(r"\{(\w+)\}")
_INTRODUCTION = (
    "Metrics (PromQL, Prometheus remote write and remote read), a log and vectors. Errors of the metrics have "
    "Prometheus's envelope; those of the log and of the vectors have a status and a message."
)
_WARNINGS: Mapping[str, Schema] = {"warnings": schema_of(["string"]), "infos": schema_of(["string"])}


@cache
def document() -> dict[str, Any]:
    """Made once in a process, in some 50 ms: not for the event loop."""
    named = _table("parameters")
    schemas = {name: schema_of(shape) for name, shape in _table("schemas").items()}
    schemas["Error"] = schema_of({"status!": "string", "errorType!": "string", "error!": "string"})
    schemas["Message"] = schema_of({"status!": "string", "message!": "string"})
    paths: dict[str, Any] = {}
    for area in TABLES:
        parameters = {**named.get(area, named["metrics"]), **named["all"]}
        for path, methods in _table(area).items():
            operations = paths.setdefault(path, {})
            for method, told in _by_method(methods):
                operations[method] = _operation(area, path, method, told, parameters)
                for name in filter(None, (told.get("proto"), _answered(told))):
                    schemas |= schemas_of_messages(getattr(vector_pb2, name).DESCRIPTOR, PREFIX)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Triptych", "version": VERSION, "description": _INTRODUCTION},
        "servers": [{"url": "/"}],
        "tags": [{"name": name} for name in TABLES.values()],
        "security": [{"basic": []}, {"token": []}, {}],
        "paths": paths,
        "components": {
            "securitySchemes": {
                "basic": {"type": "http", "scheme": "basic"},
                "token": {"type": "http", "scheme": "bearer"},
            },
            "schemas": schemas,
        },
    }


@cache
def text() -> bytes:
    """The document as YAML. Made once in a process, in some 0.1 s: not for the event loop."""
    return yaml.dump(document(), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120).encode()


class _Dumper(yaml.CSafeDumper):
    """Writes equal parts in full: an alias is hard to read."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _answered(told: Mapping[str, Any]) -> str:
    """The name of the message of the vectors that an operation answers; empty if it answers anything else."""
    answer = told.get("answer", "")
    return answer.removeprefix(PREFIX) if isinstance(answer, str) and answer.startswith(PREFIX) else ""


def _table(name: str) -> dict[str, Any]:
    table: dict[str, Any] = yaml.safe_load((_DIRECTORY / f"{name}.yaml").read_text())
    return table


def _by_method(methods: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for names, told in methods.items():
        for method in names.split():
            yield method, told


def _operation(area: str, path: str, method: str, told: dict[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    query = [*told.get("query", ()), *told.get("parameters", ())]
    operation: dict[str, Any] = {
        "tags": [TABLES[area]],
        "summary": told["summary"],
        "description": _need(method, path),
        "operationId": _identifier(method, path),
    }
    has_form = method == "post" and "parameters" in told and "body" not in told
    parameters = [_path_parameter(name) for name in _PATH_NAME.findall(path)]
    parameters += [_parameter(name, known, is_required=name.endswith("!") and not has_form) for name in query]
    if parameters:
        operation["parameters"] = parameters
    content = _content(told, known, query if has_form else [])
    if content:
        operation["requestBody"] = {"content": content, "required": not has_form}
    if "request-encoding" in told:
        operation["requestBody"]["description"] = f"Content-Encoding: {told['request-encoding']}"
    operation["responses"] = _responses(area, told)
    if path in (*HEALTH, *PAGE):
        operation["security"] = [{}]
    return operation


def _need(method: str, path: str) -> str:
    if path in PAGE:
        return "Open to everybody."
    return f"Needs {need_of(method.upper(), path)}." if need_of(method.upper(), path).role else "Needs any credential."


def _identifier(method: str, path: str) -> str:
    words = re.findall(r"\w+", path)
    return "_".join((method, *(words[2:] if words[:2] == ["api", "v1"] else ["root", *words])))


def _path_parameter(name: str) -> Schema:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}


def _parameter(name: str, known: Mapping[str, Any], *, is_required: bool) -> Schema:
    plain = name.rstrip("!")
    kind, meaning = known[plain]
    parameter: Schema = {"name": plain, "in": "query", "description": meaning, "schema": schema_of(kind)}
    return {**parameter, "required": True} if is_required else parameter


def _content(told: Mapping[str, Any], known: Mapping[str, Any], form: list[str]) -> dict[str, Any]:
    """The media types of a request's body."""
    content = {media: {"schema": schema_of(shape)} for media, shape in told.get("body", {}).items()}
    if "proto" in told:
        content[JSON] = {"schema": {"$ref": f"{SCHEMAS}{PREFIX}{told['proto']}"}}
        content[PROTOBUF] = {"schema": schema_of("binary")}
    if form:
        fields = {name.rstrip("!"): schema_of(known[name.rstrip("!")][0]) for name in form}
        content[FORM] = {"schema": object_of(fields, names_required(form))}
    return content


def _responses(area: str, told: Mapping[str, Any]) -> dict[str, Any]:
    error = "Message" if area in MESSAGE_AREAS else "Error"
    failure = {"description": "An error", "content": {JSON: {"schema": {"$ref": SCHEMAS + error}}}}
    status = str(told.get("status", 200))
    answer: dict[str, Any] = {"description": "Success" if status[0] == "2" else "Elsewhere"}
    content = {media: {"schema": schema_of(shape)} for media, shape in told.get("media", {}).items()}
    if "data" in told:
        properties = {"status": schema_of("string"), "data": schema_of(told["data"]), **_WARNINGS}
        content[JSON] = {"schema": object_of(properties, ["status", "data"])}
    if "answer" in told:
        shape = told["answer"]
        content[JSON] = {"schema": schema_of({"status!": "string", **shape} if isinstance(shape, dict) else shape)}
    if _answered(told):
        content[PROTOBUF] = {"schema": schema_of("binary")}
    if content:
        answer["content"] = content
    return {status: answer, "default": failure}
