"""The parameters `match[]`, `start` and `end` of the endpoints that are about series."""

from __future__ import annotations

from multidict import MultiDict

from coordinator.api import parameters
from shared.errors import BadData
from shared.messages.series import Selectors
from shared.promql.parser import parse_selector
from shared.sample_frames import TIME_MS_MAX, TIME_MS_MIN

SELECTORS_MAX = 1000


def selectors(fields: MultiDict[str]) -> Selectors:
    """Every `match[]`; empty if there is none. Raises BadData for one that is malformed or selects everything."""
    texts = fields.getall("match[]", [])
    if len(texts) > SELECTORS_MAX:
        raise BadData(f"there are {len(texts)} parameters 'match[]'; the limit is {SELECTORS_MAX}")
    parsed = []
    for text in texts:
        try:
            parsed.append(parse_selector(text))
        except BadData as error:
            raise BadData(f"parameter 'match[]' is {text!r}: {error}") from error
    return parsed


def required_selectors(fields: MultiDict[str]) -> Selectors:
    parsed = selectors(fields)
    if not parsed:
        raise BadData("parameter 'match[]' is missing; give at least one series selector")
    return parsed


def time_range(fields: MultiDict[str]) -> tuple[int, int]:
    """(start, end) in Unix ms; all time where they are not given."""
    start_ms = parameters.optional(fields, "start", parameters.timestamp_ms, TIME_MS_MIN)
    end_ms = parameters.optional(fields, "end", parameters.timestamp_ms, TIME_MS_MAX)
    if end_ms < start_ms:
        raise BadData(f"parameter 'end' is {fields.get('end')!r}; it must not be before 'start'")
    return start_ms, end_ms
