"""The parameters `match[]`, `start` and `end` of the endpoints that are about series."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from multidict import MultiDict

from coordinator.api import parameters
from coordinator.queries.evaluation import is_quickly_parsed
from shared.errors import BadData, NotExecutable
from shared.frames.samples import TIME_MS_MAX, TIME_MS_MIN
from shared.messages.series import Selectors
from shared.promql.parser import parse_selector
from shared.promql.regex import WEIGHT_TOTAL_MAX, weight

SELECTORS_MAX = 1000


async def selectors(fields: MultiDict[str], shown_as: str = "match[]") -> Selectors:
    """All `match[]`, which messages call `shown_as`; empty if there are none. Raises BadData for a selector that is
    malformed or selects everything, NotExecutable for too costly regular expressions."""
    texts = fields.getall("match[]", [])
    if len(texts) > SELECTORS_MAX:
        raise BadData(f"there are {len(texts)} parameters 'match[]'; the limit is {SELECTORS_MAX}")
    return await parsed(texts, shown_as)


async def parsed(texts: Sequence[str], shown_as: str) -> Selectors:
    """As `selectors`, for these texts."""
    if is_quickly_parsed("\n".join(texts)):
        return _parsed(texts, shown_as)
    return await asyncio.to_thread(_parsed, texts, shown_as)


def _parsed(texts: Sequence[str], shown_as: str) -> Selectors:
    selections = []
    pattern_weight = 0
    for text in texts:
        try:
            matchers = parse_selector(text)
        except BadData as error:
            raise BadData(f"parameter {shown_as!r} is {text!r}: {error}") from error
        pattern_weight += sum(weight(matcher.value) for matcher in matchers if matcher.op in ("=~", "!~"))
        if pattern_weight > WEIGHT_TOTAL_MAX:
            raise NotExecutable(
                f"the regular expressions of the parameters {shown_as!r} weigh more than {WEIGHT_TOTAL_MAX} together; "
                "use fewer or shorter ones, with fewer repetitions"
            )
        selections.append(matchers)
    return selections


async def required_selectors(fields: MultiDict[str]) -> Selectors:
    selections = await selectors(fields)
    if not selections:
        raise BadData("parameter 'match[]' is missing; give at least one series selector")
    return selections


def time_range(fields: MultiDict[str]) -> tuple[int, int]:
    """(start, end) in Unix ms; without bounds where they are missing."""
    start_ms = parameters.optional(fields, "start", parameters.timestamp_ms, TIME_MS_MIN)
    end_ms = parameters.optional(fields, "end", parameters.timestamp_ms, TIME_MS_MAX)
    if end_ms < start_ms:
        raise BadData(f"parameter 'end' is {fields.get('end')!r}; it must not be before 'start'")
    return start_ms, end_ms
