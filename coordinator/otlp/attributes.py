"""OpenTelemetry attributes as labels, whose values are texts, and as JSON.

Values as text: https://opentelemetry.io/docs/specs/otel/common/#anyvalue-representation-for-non-otlp-protocols.
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
    """An AnyValue as a JSON value: bytes as base64, NaN and infinities as text. Its depth is bounded, since the
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
    """An AnyValue as a label value."""
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
    """The labels of attributes. If several have the same name after translation, their values are joined with
    semicolons, in the order of the attributes' own names."""
    pairs = sorted((attribute.key, text_of(attribute.value)) for attribute in attributes)
    return joined(((names.label(key), text) for key, text in pairs))


def joined(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    texts_by_name: dict[str, list[str]] = {}
    for name, text in pairs:
        texts_by_name.setdefault(name, []).append(text)
    return {name: ";".join(texts) for name, texts in texts_by_name.items()}


def plain(attributes: Iterable[Any]) -> Mapping[str, str]:
    """The attributes' values as texts, by the attributes' own names."""
    return {attribute.key: text_of(attribute.value) for attribute in attributes}
