"""Parameters of the time-series endpoints: where requests have them, and how timestamps, durations and limits are read
from text.

Formats: the interface's "Common conventions". A parameter that cannot be read raises BadData that names the parameter,
the value seen and what would be right.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta, timezone
from functools import partial

from aiohttp import web
from multidict import MultiDict

from coordinator.context import CONTEXT
from coordinator.headers.negotiation import FORM, boolean, content_type
from coordinator.http.bodies import check_escapes, read_body, unquoted
from shared.durations import parse_duration_ms
from shared.errors import BadData
from shared.frames.samples import TIME_MS_MAX, TIME_MS_MIN

FORM_FIELDS_MAX = 10_000
FORM_BYTES_MAX = 2 << 20
INLINE_BYTES_MAX = 64 << 10
"""A form of at most this many bytes is read on the event loop, which takes 1 ms at the worst; a larger one in a
thread."""

# The earliest and latest time of a Go program, which Prometheus's clients send for "no bound".
_UNBOUNDED = {"-292273086-05-16T16:47:06Z": TIME_MS_MIN, "292277025-08-18T07:12:54.999999999Z": TIME_MS_MAX}
_RFC_3339 = re.compile(
    r"(\d{4})-(\d{2})-(\d{2})[Tt](\d{2}):(\d{2}):(\d{2})(?:\.(\d+))?(?:[Zz]|([+-])(\d{2}):(\d{2}))", re.ASCII
)
_FLOAT = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_WHOLE = re.compile(r"\d{1,18}", re.ASCII)


async def form(request: web.Request) -> MultiDict[str]:
    """The request's parameters: those of an urlencoded body, then those of the query string.

    Raises BadData for a body of another type or that is not UTF-8, TooLarge past the body limit.
    """
    fields: MultiDict[str] = MultiDict()
    if request.method == "POST" and request.can_read_body:
        context = request.app[CONTEXT]
        body = await read_body(request, min(FORM_BYTES_MAX, context.settings.body_bytes_max))
        if body and content_type(request) != FORM:
            raise BadData(f"Content-Type is {content_type(request)!r}; a body of parameters must be {FORM}")
        if len(body) <= INLINE_BYTES_MAX:
            fields.extend(pairs(body))
        else:
            fields.extend(await context.decodings.run(len(body), partial(pairs, body)))
    fields.extend(request.query)
    return fields


def pairs(body: bytes) -> list[tuple[str, str]]:
    """The fields of a form (the WHATWG's URL standard, section 5.1). Raises BadData."""
    count = body.count(b"&") + 1
    if count > FORM_FIELDS_MAX:
        raise BadData(f"the body has {count} fields; it may have at most {FORM_FIELDS_MAX}")
    try:
        text = body.decode()
        check_escapes(text, "the body")
        fields = [field.partition("=") for field in text.split("&") if field]
        return [(unquoted_text(name), unquoted_text(value)) for name, _, value in fields]
    except ValueError as error:
        raise BadData(f"the body is not {FORM} with UTF-8 text: {error}") from error


def first_of_each(*forms: bytes) -> dict[str, str]:
    """For each parameter, the first value in these forms and query strings. Raises BadData, Malformed."""
    fields: dict[str, str] = {}
    for form in forms:
        for name, value in pairs(form):
            fields.setdefault(name, value)
    return fields


def unquoted_text(text: str) -> str:
    return unquoted(text.replace("+", " ")).decode()


def timestamp_ms(text: str, name: str) -> int:
    """Unix milliseconds of RFC 3339 text or of Unix seconds as a float, within the years 1 to 9999."""
    if text in _UNBOUNDED:
        return _UNBOUNDED[text]
    if _FLOAT.fullmatch(text):
        milliseconds = float(text) * 1000
        if not TIME_MS_MIN <= milliseconds <= TIME_MS_MAX:
            raise BadData(f"parameter {name!r} is {text!r}; it must lie within the years 1 to 9999")
        return round(milliseconds)
    match = _RFC_3339.fullmatch(text)
    if match is not None:
        try:
            return _rfc_3339_ms(match)
        except (ValueError, OverflowError):
            pass
    raise BadData(f"parameter {name!r} is {text!r}; it must be Unix seconds such as 1735689600.5 or RFC 3339 text")


def _rfc_3339_ms(match: re.Match[str]) -> int:
    year, month, day, hour, minute, second = (int(part) for part in match.groups()[:6])
    fraction, sign, zone_hours, zone_minutes = match.groups()[6:]
    zone: timezone = UTC
    if sign:
        if int(zone_hours) > 23 or int(zone_minutes) > 59:
            raise ValueError(match.group())
        offset = timedelta(hours=int(zone_hours), minutes=int(zone_minutes))
        zone = timezone(-offset if sign == "-" else offset)
    moment = datetime(year, month, day, hour, minute, second, tzinfo=zone)
    whole_ms = (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
    milliseconds = whole_ms + int(((fraction or "0") + "00")[:3])
    if not TIME_MS_MIN <= milliseconds <= TIME_MS_MAX:
        raise ValueError(match.group())
    return milliseconds


def duration_ms(text: str, name: str) -> int:
    """Milliseconds of duration text such as `1h30m`, or of float seconds (which may be negative or 0)."""
    try:
        milliseconds = float(text) * 1000 if _FLOAT.fullmatch(text) else float(parse_duration_ms(text))
    except ValueError:
        raise BadData(f"parameter {name!r} is {text!r}; it must be a duration such as 1h30m, or seconds") from None
    if not abs(milliseconds) <= TIME_MS_MAX:
        raise BadData(f"parameter {name!r} is {text!r}; it must be shorter than 8000 years")
    return round(milliseconds)


def positive_duration_ms(text: str, name: str) -> int:
    milliseconds = duration_ms(text, name)
    if milliseconds <= 0:
        raise BadData(f"parameter {name!r} is {text!r}; it must be longer than 0")
    return milliseconds


def seconds(query: Mapping[str, str], name: str, default_s: float, most_s: float) -> float:
    """A duration such as `30s`, or seconds; capped at `most_s`."""
    text = query.get(name)
    if text is None:
        return default_s
    value_ms = duration_ms(text, name)
    if value_ms < 0:
        raise BadData(f"parameter {name!r} is {text!r}; it must not be negative")
    return min(value_ms / 1000, most_s)


def limit(text: str, name: str = "limit") -> int:
    """A whole number ≥ 0, where 0 means no limit."""
    if not _WHOLE.fullmatch(text):
        raise BadData(f"parameter {name!r} is {text!r}; it must be a whole number, 0 for no limit")
    return int(text)


def optional(fields: Mapping[str, str], name: str, read: Callable[[str, str], int], default: int) -> int:
    """The first `name` of the fields, read by one of the functions above; `default` when absent or empty."""
    text = fields.get(name, "")
    return read(text, name) if text else default


def required(fields: Mapping[str, str], name: str) -> str:
    """The first `name` of the fields. Raises BadData when it is missing or empty."""
    text = fields.get(name, "")
    if not text:
        raise BadData(f"parameter {name!r} is missing")
    return text


def partial_response(fields: Mapping[str, str]) -> bool:
    """Whether the answer may lack missing shards, with a warning for each. It may by default."""
    return boolean(fields, "partial_response", True)
