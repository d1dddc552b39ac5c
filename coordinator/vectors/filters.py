"""Parses filters of a vector search, from JSON or protobuf, into one checked tree.

JSON: `{"eq": {"field": "colour", "value": "red"}}`, likewise neq, lt, lte, gt, gte;
`{"in": {"field": …, "values": […]}}`; `{"exists": {"field": …}}` or `{"exists": "colour"}`;
`{"and": [filter, …]}` or `{"and": {"filters": […]}}`, likewise or; `{"not": filter}`.
"""

from __future__ import annotations

from typing import Any

from coordinator.vectors.values import check_value, from_protobuf, shown
from proto import vector_pb2
from shared.errors import BadData
from shared.messages.vectors import VECTOR_FIELD, Condition, Value

DEPTH_MAX = 32
NODES_MAX = 1024
VALUES_MAX = 10_000
COMPARISONS = ("eq", "neq", "lt", "lte", "gt", "gte")
OPERATORS = (*COMPARISONS, "in", "exists", "and", "or", "not")


class _Limits:
    """Limits the depth and the number of nodes of one filter."""

    def __init__(self) -> None:
        self._nodes = 0

    def enter(self, depth: int) -> None:
        self._nodes += 1
        if depth > DEPTH_MAX:
            raise BadData(f"filter is nested deeper than {DEPTH_MAX}")
        if self._nodes > NODES_MAX:
            raise BadData(f"filter has more than {NODES_MAX} conditions")


def from_json(content: Any) -> Condition:
    """Raises BadData that names the wrong operator or field."""
    return _from_json(content, 1, _Limits())


def _from_json(content: Any, depth: int, limits: _Limits) -> Condition:
    limits.enter(depth)
    if not isinstance(content, dict) or len(content) != 1:
        raise BadData(
            f"filter: {shown(content)} is not an object with one operator; the operators are {', '.join(OPERATORS)}"
        )
    [(op, operand)] = content.items()
    if op not in OPERATORS:
        raise BadData(f"filter: unknown operator {shown(op)}; the operators are {', '.join(OPERATORS)}")
    if op in ("and", "or"):
        entries = operand
        if isinstance(operand, dict):
            entries = _members(op, operand, {"filters"})["filters"]
        if not isinstance(entries, list) or not entries:
            raise BadData(f"filter: {op} is {shown(operand)}; it must be an array of at least one filter")
        return Condition(op, children=tuple(_from_json(entry, depth + 1, limits) for entry in entries))
    if op == "not":
        return Condition(op, children=(_from_json(operand, depth + 1, limits),))
    if op == "exists":
        name = operand if isinstance(operand, str) else _members(op, operand, {"field"})["field"]
        return Condition(op, _field(name, op))
    if op == "in":
        members = _members(op, operand, {"field", "values"})
        values = members["values"]
        if not isinstance(values, list):
            raise BadData(f"filter: in.values is {shown(values)}; it must be an array")
        return _membership(_field(members["field"], op), values)
    members = _members(op, operand, {"field", "value"})
    name = _field(members["field"], op)
    return Condition(op, name, (_value(members["value"], op, name),))


def _members(op: str, operand: Any, names: set[str]) -> dict[str, Any]:
    if not isinstance(operand, dict):
        raise BadData(f"filter: {op} is {shown(operand)}; it must be an object with {' and '.join(sorted(names))}")
    for name in operand:
        if name not in names:
            raise BadData(f"filter: {op} has an unknown field {shown(name)}; it has {' and '.join(sorted(names))}")
    for name in sorted(names):
        if name not in operand:
            raise BadData(f"filter: {op}.{name} is missing")
    return operand


def _field(name: Any, op: str) -> str:
    if not isinstance(name, str) or not name:
        raise BadData(f"filter: {op}.field is {shown(name)}; it must be the name of an attribute")
    if name == VECTOR_FIELD:
        raise BadData(f"filter: {op}.field is {VECTOR_FIELD!r}, which is the vector and cannot be filtered by")
    return name


def _value(value: Any, op: str, name: str) -> Value:
    return check_value(value, f"filter: {op} of field {shown(name)}")


def _membership(name: str, values: list[Any]) -> Condition:
    if not 1 <= len(values) <= VALUES_MAX:
        raise BadData(f"filter: in of field {shown(name)} has {len(values)} values; it must have 1 to {VALUES_MAX}")
    return Condition("in", name, tuple(_value(value, "in", name) for value in values))


def from_protobuf_filter(message: vector_pb2.Filter) -> Condition:
    """Raises BadData as `from_json` does."""
    return _from_protobuf(message, 1, _Limits())


def _from_protobuf(message: vector_pb2.Filter, depth: int, limits: _Limits) -> Condition:
    limits.enter(depth)
    op = message.WhichOneof("condition")
    if op is None:
        raise BadData(f"filter: a filter has no known operator; the operators are {', '.join(OPERATORS)}")
    operand = getattr(message, op)
    if op in ("and", "or"):
        if not operand.filters:
            raise BadData(f"filter: {op} has no filters")
        return Condition(op, children=tuple(_from_protobuf(child, depth + 1, limits) for child in operand.filters))
    if op == "not":
        return Condition(op, children=(_from_protobuf(operand, depth + 1, limits),))
    name = _field(operand.field, op)
    if op == "exists":
        return Condition(op, name)
    where = f"filter: {op} of field {shown(name)}"
    if op == "in":
        return _membership(name, [from_protobuf(value, where) for value in operand.values])
    return Condition(op, name, (from_protobuf(operand.value, where),))
