"""The parameters `match[]`, `start` and `end` of the endpoints that are about series."""

from __future__ import annotations

import re2
from multidict import MultiDict

from coordinator.api import parameters
from shared.errors import BadData
from shared.messages.series import Selectors
from shared.promql.ast import Matcher
from shared.promql.parser import parse_selector

SELECTORS_MAX = 1000


def selectors(fields: MultiDict[str]) -> Selectors:
    """Every `match[]`; empty if there is none. Raises BadData for one that is malformed or selects everything."""
    texts = fields.getall("match[]", [])
    if len(texts) > SELECTORS_MAX:
        raise BadData(f"there are {len(texts)} parameters 'match[]'; the limit is {SELECTORS_MAX}")
    found = []
    for text in texts:
        try:
            matchers = parse_selector(text)
        except BadData as error:
            raise BadData(f"parameter 'match[]' is {text!r}: {error}") from error
        if all(_matches_empty(matcher) for matcher in matchers):
            raise BadData(f"parameter 'match[]' is {text!r}; it must contain at least one non-empty matcher")
        found.append(matchers)
    return found


def required_selectors(fields: MultiDict[str]) -> Selectors:
    found = selectors(fields)
    if not found:
        raise BadData("parameter 'match[]' is missing; give at least one series selector")
    return found


def time_range(fields: MultiDict[str]) -> tuple[int, int]:
    """(start, end) in Unix ms; all time where they are not given."""
    start_ms = parameters.optional(fields, "start", parameters.timestamp_ms, parameters.TIME_MS_MIN)
    end_ms = parameters.optional(fields, "end", parameters.timestamp_ms, parameters.TIME_MS_MAX)
    if end_ms < start_ms:
        raise BadData(f"parameter 'end' is {fields.get('end')!r}; it must not be before 'start'")
    return start_ms, end_ms


def _matches_empty(matcher: Matcher) -> bool:
    if matcher.op in ("=", "!="):
        return (matcher.value == "") == (matcher.op == "=")
    options = re2.Options()
    options.log_errors = False
    try:
        found = re2.compile(matcher.value, options).fullmatch("") is not None
    except re2.error as error:
        reason = error.args[0].decode(errors="replace") if error.args else "not RE2"
        raise BadData(f"invalid regular expression {matcher.value!r}: {reason}") from error
    return found == (matcher.op == "=~")
