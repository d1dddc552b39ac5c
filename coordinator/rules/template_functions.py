"""The functions of templates: those of Go's text/template, and Prometheus's.

https://pkg.go.dev/text/template#hdr-Functions and
https://prometheus.io/docs/prometheus/latest/configuration/template_reference/#functions. All raise ValueError or
TypeError for what they cannot take.
"""

from __future__ import annotations

import html
import ipaddress
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from urllib.parse import quote, quote_plus, urlsplit

import re2

from coordinator import letter_case
from coordinator.rules import go_text
from coordinator.rules.go_text import GoDuration, GoTime, printf, text_of
from shared.durations import parse_duration_ms

ARGUMENT_CHARS_MAX = 64 << 10
"""The limit on all arguments of a call together. No call makes much more text than it gets."""
ARGUMENTS_MAX = 100
PATTERN_CHARS_MAX = 1_000
REPLACEMENT_CHARS_MAX = 256
PATTERN_BYTES_MAX = 1 << 20
LAZY = frozenset(("and", "or"))


@dataclass(frozen=True, slots=True)
class Sample:
    """A sample of a query's result."""

    labels: dict[str, str]
    value: float

    def __str__(self) -> str:
        return f"{{{text_of(self.labels)} {text_of(self.value)}}}"


@dataclass(frozen=True, slots=True)
class Call:
    """What a function may use beside its arguments."""

    query: Callable[[str], list[Sample]]
    external_url: str
    now_s: float


@dataclass(frozen=True, slots=True)
class Function:
    call: Callable[..., Any]
    least: int
    most: int


def require_size(arguments: Sequence[Any]) -> None:
    size = sum(len(argument) for argument in arguments if isinstance(argument, str))
    if size > ARGUMENT_CHARS_MAX:
        raise ValueError(f"the arguments have {size} characters; the limit is {ARGUMENT_CHARS_MAX}")


def _number(value: Any) -> float:
    """A number, or a text that is one."""
    if isinstance(value, GoDuration | GoTime):
        return value.seconds
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            raise ValueError(f"{value[:100]!r} is not a number") from None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"can't convert {text_of(value)[:100]} to float")
    return float(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{text_of(value)[:100]} is not a text")
    return value


def _vector(value: Any) -> list[Sample]:
    if not isinstance(value, list):
        raise ValueError(f"{text_of(value)[:100]} is not a vector")
    return value


def _sample(value: Any) -> Sample:
    if not isinstance(value, Sample):
        raise ValueError(f"{text_of(value)[:100]} is not a sample")
    return value


def _first(vector: list[Sample]) -> Sample:
    if not vector:
        raise ValueError("first() called on vector with no elements")
    return vector[0]


@lru_cache(256)
def _pattern(text: str) -> Any:
    if len(text) > PATTERN_CHARS_MAX:
        raise ValueError(f"the pattern has {len(text)} characters; the limit is {PATTERN_CHARS_MAX}")
    options = re2.Options()
    options.max_mem = PATTERN_BYTES_MAX
    options.log_errors = False
    try:
        return re2.compile(text, options)
    except re2.error as error:
        raise ValueError(f"{text[:100]!r} is not a regular expression: {error}") from None


_REFERENCE = re.compile(r"\$(?:\$|([A-Za-z0-9_]+)|\{([A-Za-z0-9_]+)\})")
_NUMBER = re.compile(r"0|[1-9][0-9]{0,8}")
"""The number or name of a group. As in Go's `Regexp.Expand`, digits after a zero, or more digits, are a name."""


def _replaced(pattern: str, replacement: str, text: str) -> str:
    """As Go's ReplaceAllString: `$1`, `${name}` and `$$`. An empty match directly after another match is left out."""
    if len(replacement) > REPLACEMENT_CHARS_MAX:
        raise ValueError(f"the replacement has {len(replacement)} characters; the limit is {REPLACEMENT_CHARS_MAX}")
    compiled = _pattern(pattern)
    names = dict(compiled.groupindex)
    size, last_end = 0, -1

    def one(match: Any) -> str:
        nonlocal size, last_end
        is_left_out = match.start() == match.end() == last_end
        last_end = match.end()
        if is_left_out:
            return ""

        def group(reference: re.Match[str]) -> str:
            name = reference[1] or reference[2]
            if name is None:
                return "$"
            number = int(name) if _NUMBER.fullmatch(name) else names.get(name, -1)
            return (match[number] or "") if 0 <= number <= compiled.groups else ""

        replaced = _REFERENCE.sub(group, replacement)
        size += len(replaced)
        if size > ARGUMENT_CHARS_MAX:
            raise ValueError(f"the result has more than {ARGUMENT_CHARS_MAX} characters")
        return replaced

    return str(compiled.sub(one, text))


def _without_port(text: str) -> str:
    host, colon, port = text.rpartition(":")
    if not colon or (":" in host and not (host.startswith("[") and host.endswith("]"))):
        return text
    return host.strip("[]") if port.isdigit() or not port else text


def _without_domain(text: str) -> str:
    host, colon, port = text.rpartition(":") if text.count(":") == 1 else (text, "", "")
    try:
        ipaddress.ip_address(host)
    except ValueError:
        host = host.partition(".")[0]
    return host + colon + port


def _sorted_by(label: str, vector: list[Sample]) -> list[Sample]:
    return sorted(vector, key=lambda sample: sample.labels.get(label, ""))


def _graph_link(expr: str, tab: int) -> str:
    return f"/graph?g0.expr={quote_plus(expr)}&g0.tab={tab}"


def _same(first: Any, *others: Any) -> bool:
    return any(_order(first, other) == 0 for other in others)


def _order(first: Any, second: Any) -> int:
    """-1, 0 or 1."""
    numbers = [isinstance(value, int | float) and not isinstance(value, bool) for value in (first, second)]
    if not all(numbers) and type(first) is not type(second):
        raise ValueError("incompatible types for comparison")
    if isinstance(first, dict | list):
        raise ValueError("non-comparable type")
    if first == second:
        return 0
    return -1 if first is not None and first < second else 1


def _less(first: Any, second: Any) -> bool:
    return bool(first == first and second == second) and _order(first, second) < 0


def _length(value: Any) -> int:
    if not isinstance(value, str | list | dict):
        raise ValueError(f"len of {text_of(value)[:100]}")
    return len(value.encode()) if isinstance(value, str) else len(value)


def _item(value: Any, *keys: Any) -> Any:
    for key in keys:
        if isinstance(value, dict):
            value = value.get(_text(key), "")
        elif isinstance(value, list | str) and isinstance(key, int) and 0 <= key < len(value):
            value = value[key] if isinstance(value, list) else ord(value[key])
        else:
            raise ValueError(f"{text_of(key)[:100]} is not an index of it")
    return value


def _slice(value: Any, *bounds: Any) -> Any:
    if not isinstance(value, list | str) or not all(isinstance(bound, int) for bound in bounds):
        raise ValueError(f"can't slice {text_of(value)[:100]}")
    first, last = (*bounds, *(0, len(value))[len(bounds) :]) if len(bounds) < 2 else bounds[:2]
    if not 0 <= first <= last <= len(value):
        raise ValueError(f"index out of range: {first}:{last}")
    return value[first:last]


def _print(*values: Any) -> str:
    """As Go's Sprint: a space between two values of which neither is a text."""
    parts: list[str] = []
    for number, value in enumerate(values):
        if number and not isinstance(value, str) and not isinstance(values[number - 1], str):
            parts.append(" ")
        parts.append(text_of(value))
    return "".join(parts)


def _title(text: str) -> str:
    return re.sub(r"\w+", lambda match: match[0][0].upper() + match[0][1:], text)


def _path_prefix(url: str) -> str:
    return urlsplit(url).path.rstrip("/")


def _timestamp(value: float) -> str:
    return go_text.humanize_timestamp(value)


def _of_number(function: Callable[[float], Any]) -> Callable[..., Any]:
    return lambda call, value: function(_number(value))


def _of_text(function: Callable[[str], Any]) -> Callable[..., Any]:
    return lambda call, value: function(_text(value))


def _plain(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda call, *values: function(*values)


def _joined(function: Callable[[str], str]) -> Callable[..., Any]:
    return lambda call, *values: function(_print(*values))


FUNCTIONS: dict[str, Function] = {
    "not": Function(_plain(lambda value: not value), 1, 1),
    "eq": Function(_plain(_same), 2, ARGUMENTS_MAX),
    "ne": Function(_plain(lambda first, second: _order(first, second) != 0), 2, 2),
    "lt": Function(_plain(_less), 2, 2),
    "le": Function(_plain(lambda first, second: _less(first, second) or _order(first, second) == 0), 2, 2),
    "gt": Function(_plain(lambda first, second: _less(second, first)), 2, 2),
    "ge": Function(_plain(lambda first, second: _less(second, first) or _order(first, second) == 0), 2, 2),
    "len": Function(_plain(_length), 1, 1),
    "index": Function(_plain(_item), 1, ARGUMENTS_MAX),
    "slice": Function(_plain(_slice), 1, 3),
    "print": Function(_plain(_print), 0, ARGUMENTS_MAX),
    "println": Function(_plain(lambda *values: " ".join(map(text_of, values)) + "\n"), 0, ARGUMENTS_MAX),
    "printf": Function(_plain(lambda layout, *values: printf(_text(layout), list(values))), 1, ARGUMENTS_MAX),
    "html": Function(_joined(html.escape), 1, ARGUMENTS_MAX),
    "js": Function(_joined(lambda text: json.dumps(text)[1:-1]), 1, ARGUMENTS_MAX),
    "urlquery": Function(_joined(quote_plus), 1, ARGUMENTS_MAX),
    "query": Function(lambda call, expr: call.query(_text(expr)), 1, 1),
    "first": Function(_plain(lambda vector: _first(_vector(vector))), 1, 1),
    "label": Function(_plain(lambda name, sample: _sample(sample).labels.get(_text(name), "")), 2, 2),
    "value": Function(_plain(lambda sample: _sample(sample).value), 1, 1),
    "strvalue": Function(_plain(lambda sample: _sample(sample).labels.get("__value__", "")), 1, 1),
    "args": Function(_plain(lambda *values: {f"arg{n}": value for n, value in enumerate(values)}), 0, ARGUMENTS_MAX),
    "sortByLabel": Function(_plain(lambda label, vector: _sorted_by(_text(label), _vector(vector))), 2, 2),
    "match": Function(_plain(lambda regex, text: _pattern(_text(regex)).search(_text(text)) is not None), 2, 2),
    "reReplaceAll": Function(_plain(lambda *texts: _replaced(*map(_text, texts))), 3, 3),
    "safeHtml": Function(_of_text(str), 1, 1),
    "title": Function(_of_text(_title), 1, 1),
    "toUpper": Function(_of_text(letter_case.upper), 1, 1),
    "toLower": Function(_of_text(letter_case.lower), 1, 1),
    "stripPort": Function(_of_text(_without_port), 1, 1),
    "stripDomain": Function(_of_text(_without_domain), 1, 1),
    "urlQueryEscape": Function(_of_text(quote_plus), 1, 1),
    "urlPathEscape": Function(_of_text(lambda text: quote(text, safe="")), 1, 1),
    "graphLink": Function(_of_text(lambda expr: _graph_link(expr, 0)), 1, 1),
    "tableLink": Function(_of_text(lambda expr: _graph_link(expr, 1)), 1, 1),
    "humanize": Function(_of_number(go_text.humanize), 1, 1),
    "humanize1024": Function(_of_number(go_text.humanize_1024), 1, 1),
    "humanizeDuration": Function(_of_number(go_text.humanize_duration), 1, 1),
    "humanizePercentage": Function(_of_number(lambda value: f"{go_text.significant(value * 100)}%"), 1, 1),
    "humanizeTimestamp": Function(_of_number(_timestamp), 1, 1),
    "toTime": Function(_of_number(GoTime), 1, 1),
    "toDuration": Function(_of_number(GoDuration), 1, 1),
    "parseDuration": Function(_of_text(lambda text: parse_duration_ms(text) / 1000), 1, 1),
    "now": Function(lambda call: call.now_s, 0, 0),
    "externalURL": Function(lambda call: call.external_url, 0, 0),
    "pathPrefix": Function(lambda call: _path_prefix(call.external_url), 0, 0),
}
