"""Parses filters of a vector search, from JSON or protobuf, into one checked tree.

JSON: `{"eq": {"field": "colour", "value": "red"}}`, likewise neq, lt, lte, gt, gte;
`{"in": {"field": …, "values": […]}}`; `{"exists": {"field": …}}` or `{"exists": "colour"}`;
`{"and": [filter, …]}` or `{"and": {"filters": […]}}`, likewise or; `{"not": filter}`.

Every comparison is true of an array if it is true of one of its elements. So `contains` is `eq`, `containsAny` is `in`,
and `containsAll` is an `and` of `eq`. A comparison with null asks whether the field is absent. The workers know the
operators of `Condition` only.
"""

from __future__ import annotations

from typing import Any

from coordinator.vectors.values import check_value, from_protobuf, shown
from proto import vector_pb2
from shared.errors import BadData
from shared.messages.vectors import VECTOR_FIELD, Condition

DEPTH_MAX = 32
NODES_MAX = 1024
VALUES_MAX = 10_000
COMPARISONS = ("eq", "neq", "lt", "lte", "gt", "gte")
MEMBERSHIPS = ("in", "containsAny", "containsAll")
OPERATORS = (*COMPARISONS, "contains", *MEMBERSHIPS, "exists", "and", "or", "not")
_CAMEL_CASE = {"contains_any": "containsAny", "contains_all": "containsAll"}


class _Limits:
    """Limits the depth and the number of nodes of one filter."""

    def __init__(self) -> None:
        self._nodes = 0

    def enter(self, depth: int, nodes: int = 1) -> None:
        self._nodes += nodes
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
    [(name, operand)] = content.items()
    op = _CAMEL_CASE.get(name, name)
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
        field = operand if isinstance(operand, str) else _members(op, operand, {"field"})["field"]
        return Condition(op, _field(field, op))
    if op in MEMBERSHIPS:
        members = _members(op, operand, {"field", "values"})
        values = members["values"]
        if not isinstance(values, list):
            raise BadData(f"filter: {op}.values is {shown(values)}; it must be an array")
        return _membership(op, _field(members["field"], op), values, depth, limits)
    members = _members(op, operand, {"field", "value"})
    return _comparison(op, _field(members["field"], op), members["value"])


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


def _comparison(op: str, name: str, value: Any) -> Condition:
    is_present = Condition("exists", name)
    if value is None and op == "neq":
        return is_present
    if value is None and op == "eq":
        return Condition("not", children=(is_present,))
    value = check_value(value, f"filter: {op} of field {shown(name)}")
    return Condition("eq" if op == "contains" else op, name, (value,))


def _membership(op: str, name: str, values: list[Any], depth: int, limits: _Limits) -> Condition:
    where = f"filter: {op} of field {shown(name)}"
    if not 1 <= len(values) <= VALUES_MAX:
        raise BadData(f"{where} has {len(values)} values; it must have 1 to {VALUES_MAX}")
    if op == "containsAll":
        limits.enter(depth, len(values))
        return Condition("and", children=tuple(Condition("eq", name, (check_value(v, where),)) for v in values))
    checked = tuple(check_value(value, where) for value in values if value is not None or op != "in")
    membership = Condition("in", name, checked)
    if len(checked) == len(values):
        return membership
    limits.enter(depth, 3)
    is_absent = _comparison("eq", name, None)
    return Condition("or", children=(is_absent, membership)) if checked else is_absent


def from_protobuf_filter(message: vector_pb2.Filter) -> Condition:
    """Raises BadData as `from_json` does."""
    return _from_protobuf(message, 1, _Limits())


def _from_protobuf(message: vector_pb2.Filter, depth: int, limits: _Limits) -> Condition:
    limits.enter(depth)
    oneof = message.WhichOneof("condition")
    if oneof is None:
        raise BadData(f"filter: a filter has no known operator; the operators are {', '.join(OPERATORS)}")
    op, operand = _CAMEL_CASE.get(oneof, oneof), getattr(message, oneof)
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
    if op in MEMBERSHIPS:
        return _membership(op, name, [from_protobuf(value, where) for value in operand.values], depth, limits)
    return _comparison(op, name, from_protobuf(operand.value, where))
