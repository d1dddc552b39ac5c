"""Explains to clients why msgspec could not decode their body."""

from __future__ import annotations

import re
from difflib import get_close_matches
from functools import lru_cache
from typing import Any

import msgspec

ERROR_CHARS_MAX = 300
NAME_CHARS_MAX = 100
"""The most characters of a field's name in an error: a client may send a name as long as a body."""
KINDS_CACHED = 64

_UNKNOWN_FIELD = re.compile(r"Object contains unknown field `(.*?)`(?: - at `\$(.*)`)?", re.DOTALL)
_STEP = re.compile(r"\.(\w+)|(\[)[^]]*\]")


def explained(error: Exception, kind: Any) -> str:
    """The text of an error of decoding a body as a `kind`, with bounded length. For an unknown field, it adds the known
    field with the most similar name, or else all known fields."""
    match = _UNKNOWN_FIELD.fullmatch(str(error))
    if match is None:
        return str(error)[:ERROR_CHARS_MAX]
    name, path = match[1][:NAME_CHARS_MAX], (match[2] or "")[:NAME_CHARS_MAX]
    known_fields = _fields_at(kind, path)
    similar = get_close_matches(name.lower(), [field.lower() for field in known_fields], 1)
    by_lower = {field.lower(): field for field in known_fields}
    all_known = f"; known are {', '.join(known_fields)}" if known_fields else ""
    hint = f"; did you mean `{by_lower[similar[0]]}`?" if similar else all_known
    return f"Object contains unknown field `{name}`{f' - at `${path}`' if path else ''}{hint}"


def explained_in_quotes(error: Exception, kind: Any, at: str = "") -> str:
    """As `explained`, for endpoints that put names in quotes. `at`: the path of the object in the body."""
    text = explained(error, kind).replace("`", "'")
    return text.replace(" - at '$.", f" - at '{at}." if at else " - at '").replace(" - at '$'", "")


@lru_cache(KINDS_CACHED)
def _described(kind: Any) -> msgspec.inspect.Type:
    return msgspec.inspect.type_info(kind)


def _fields_at(kind: Any, path: str) -> list[str]:
    """The field names of the object at `path` in a `kind`; empty if they are not known."""
    types = _alternatives(_described(kind))
    for name, index in _STEP.findall(path):
        types = [inner for outer in types for inner in _alternatives(_inner(outer, name, is_index=bool(index)))]
    return sorted(
        {field.encode_name for one in types if isinstance(one, msgspec.inspect.StructType) for field in one.fields}
    )


def _inner(outer: msgspec.inspect.Type, name: str, *, is_index: bool) -> msgspec.inspect.Type | None:
    match outer:
        case msgspec.inspect.StructType() if not is_index:
            return next((field.type for field in outer.fields if field.encode_name == name), None)
        case msgspec.inspect.ListType() if is_index:
            return outer.item_type
        case msgspec.inspect.DictType() if is_index:
            return outer.value_type
    return None


def _alternatives(one: msgspec.inspect.Type | None) -> list[msgspec.inspect.Type]:
    if isinstance(one, msgspec.inspect.UnionType):
        return list(one.types)
    return [] if one is None else [one]
