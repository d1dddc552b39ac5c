"""Query parameters of the log endpoints."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping

from aiohttp import web

from coordinator.api.parameters import timestamp_ms
from coordinator.log.reads import KeySelection
from shared.errors import BadData
from shared.log_search.filter import compiled
from shared.messages.log import KEY_BYTES_MAX, SEQUENCE_MAX, Search

SELECTION = ("key", "key_base64", "prefix", "prefix_base64")
SEQUENCES = ("start_seq", "startSeq", "end_seq", "endSeq")
TIMES = ("start_time", "startTime", "end_time", "endTime")
SEARCH = ("grep", "grep_not", "where")
RECORD_FORM = ("encoding", "value_bytes")


def search(query: Mapping[str, str]) -> Search | None:
    """The search in values that the parameters SEARCH describe; None without one. Raises BadData."""
    asked = Search(*(query.get(name) for name in SEARCH))
    if asked == Search():
        return None
    compiled(asked)
    return asked


def resumed(request: web.Request, start: int) -> int:
    """Where an event stream begins: after the last event that the reader has had, which a browser names when it
    reconnects; otherwise at `start`. The id -1 stands for the place before the first record. Raises BadData."""
    text = request.headers.get("Last-Event-ID", "")
    if not text:
        return start
    if text == "-1":
        return 0
    if not (text.isascii() and text.isdigit() and len(text) <= 20 and int(text) < SEQUENCE_MAX):
        raise BadData(f"Last-Event-ID is {text!r}; it must be a sequence number")
    return int(text) + 1


def whole(query: Mapping[str, str], names: tuple[str, ...], default: int, least: int, most: int) -> int:
    """The first of these parameters that is present. Raises BadData unless it is a whole number within the bounds."""
    for name in names:
        text = query.get(name)
        if text is not None:
            if not (text.isascii() and text.isdigit() and len(text) <= 20 and least <= int(text) <= most):
                raise BadData(f"parameter {name!r} is {text!r}; it must be a whole number from {least} to {most}")
            return int(text)
    return default


def sequences(query: Mapping[str, str]) -> tuple[int, int]:
    """(start, inclusive; end, exclusive) of `start_seq` and `end_seq`; by default everything."""
    start = whole(query, ("start_seq", "startSeq"), 0, 0, SEQUENCE_MAX)
    return start, whole(query, ("end_seq", "endSeq"), SEQUENCE_MAX, 0, SEQUENCE_MAX)


def times_ms(query: Mapping[str, str]) -> tuple[int | None, int | None]:
    """(start, inclusive; end, exclusive) of `start_time` and `end_time` in Unix ms; None for a missing one."""
    return _time_ms(query, ("start_time", "startTime")), _time_ms(query, ("end_time", "endTime"))


def required(query: Mapping[str, str], name: str) -> str:
    """Raises BadData when the parameter is missing or empty."""
    if not (text := query.get(name, "")):
        raise BadData(f"parameter {name!r} is missing")
    return text


def _time_ms(query: Mapping[str, str], names: tuple[str, ...]) -> int | None:
    for name in names:
        text = query.get(name)
        if text is not None:
            return timestamp_ms(text, name)
    return None


def octets(query: Mapping[str, str], name: str) -> bytes | None:
    """Bytes given as text (`name`) or as base64 (`name_base64`), but not as both; None without either."""
    text, encoded = query.get(name), query.get(f"{name}_base64")
    if text is not None and encoded is not None:
        raise BadData(f"parameters {name!r} and '{name}_base64' exclude each other")
    if encoded is not None:
        value = from_base64(encoded, f"parameter '{name}_base64'")
    elif text is not None:
        value = text.encode("utf-8", "surrogateescape")
    else:
        return None
    if len(value) > KEY_BYTES_MAX:
        raise BadData(f"parameter {name!r} has {len(value)} bytes; it may have at most {KEY_BYTES_MAX}")
    return value


def from_base64(text: str, where: str) -> bytes:
    # In a URL that was not escaped, a plus has become a space. Both alphabets of base64 are accepted.
    standard = text.replace(" ", "+").replace("-", "+").replace("_", "/").rstrip("=")
    try:
        return base64.b64decode(standard + "=" * (-len(standard) % 4), validate=True)
    except (binascii.Error, ValueError) as error:
        raise BadData(f"{where} is {text!r}, which is not base64: {error}") from error


def selection_or_all(query: Mapping[str, str]) -> KeySelection:
    """As `selection`; the whole log if neither key nor prefix is given."""
    named = any(name in query for name in SELECTION)
    return selection(query) if named else KeySelection(None, search=search(query))


def selection(query: Mapping[str, str]) -> KeySelection:
    """The selection that SELECTION and SEARCH describe. Raises BadData unless exactly one of key and prefix is
    given."""
    key, prefix = octets(query, "key"), octets(query, "prefix")
    if key is not None and prefix is not None:
        raise BadData("parameters 'key' and 'prefix' exclude each other")
    if key is not None:
        return KeySelection(key, search=search(query))
    if prefix is not None:
        return KeySelection(None, prefix, search(query))
    raise BadData("parameter 'key' is missing; give 'key', 'key_base64', 'prefix' or 'prefix_base64'")
