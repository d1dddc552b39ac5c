"""Attributes of OpenTelemetry as labels, which are texts, and as JSON.

How a value is written as text: https://opentelemetry.io/docs/specs/otel/common/#anyvalue-representation-for-non-otlp-protocols.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

import orjson

from coordinator.otlp.names import Names


def json_value(value: Any) -> Any:
    """An AnyValue as what JSON has: bytes as base64, and NaN and infinities as text. Its depth is bounded, since the
    protobuf library reads no message deeper than 100."""
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [json_value(item) for item in value.array_value.values]
    if kind == "kvlist_value":
        return json_object(value.kvlist_value.values)
    if kind is None:
        return None
    plain = getattr(value, kind)
    if kind == "bytes_value":
        return base64.b64encode(plain).decode()
    if kind == "double_value" and not math.isfinite(plain):
        return number_text(plain)
    return plain


def json_object(attributes: Iterable[Any]) -> dict[str, Any]:
    return {attribute.key: json_value(attribute.value) for attribute in attributes}


def text_of(value: Any) -> str:
    """An AnyValue as the value of a label."""
    kind = value.WhichOneof("value")
    if kind == "string_value":
        return str(value.string_value)
    if kind == "int_value":
        return str(value.int_value)
    if kind == "bool_value":
        return "true" if value.bool_value else "false"
    if kind == "double_value":
        return number_text(value.double_value)
    if kind is None:
        return ""
    plain = json_value(value)
    return plain if isinstance(plain, str) else orjson.dumps(plain, option=orjson.OPT_SORT_KEYS).decode()


def number_text(number: float) -> str:
    """The shortest text of a number, without an exponent: `0.5`, `10`, `NaN`, `+Inf`."""
    if math.isnan(number):
        return "NaN"
    if math.isinf(number):
        return "+Inf" if number > 0 else "-Inf"
    text = repr(number)
    if "e" in text:
        text = format(Decimal(text), "f")
    return text.removesuffix(".0")


def labels(attributes: Iterable[Any], names: Names) -> dict[str, str]:
    """The labels of attributes. Where several have the same name after its translation, their values are joined by
    semicolons, in the order of the attributes' own names."""
    pairs = sorted((attribute.key, text_of(attribute.value)) for attribute in attributes)
    return joined(((names.label(key), text) for key, text in pairs))


def joined(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, text in pairs:
        found[name] = f"{found[name]};{text}" if name in found else text
    return found


def plain(attributes: Iterable[Any]) -> Mapping[str, str]:
    """The attributes as texts, by their own names."""
    return {attribute.key: text_of(attribute.value) for attribute in attributes}
