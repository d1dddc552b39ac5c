"""Selects the records that match a search by their values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shared.errors import BadData
from shared.log_search import condition as conditions
from shared.log_search.condition import Test, condition, satisfies
from shared.log_search.pattern import Pattern
from shared.messages.log import Search

CONDITIONS_AT_ONCE = 1024
"""The number of values that are examined between two checks of the deadline."""
FILTERS_CACHED = 16
"""The number of compiled searches in the cache: a scan needs its search for each page. Each takes up to a megabyte."""


class Filter:
    """A compiled search. Thread-safe. Raises BadData, which names the invalid parameter."""

    def __init__(self, search: Search) -> None:
        self._grep = _compile("grep", search.grep, Pattern)
        self._grep_not = _compile("grep_not", search.grep_not, Pattern)
        self._where: Test | None = _compile("where", search.where, condition)

    def matching(self, values: Sequence[bytes], check: Callable[[], None], left_out: set[str]) -> NDArray[np.bool_]:
        """bool[n]: which of these values match. `check` is called regularly and may raise. Values that cannot be
        examined do not match; a text in `left_out` says which these are."""
        matching = np.arange(len(values))
        for name, pattern, wanted in (("grep", self._grep, True), ("grep_not", self._grep_not, False)):
            if pattern is not None and len(matching):
                values_left = [values[at] for at in matching.tolist()] if len(matching) < len(values) else values
                still_matches = pattern.matching(values_left, check) == wanted
                longest = pattern.value_bytes_max
                if max(map(len, values_left)) > longest:
                    left_out.add(f"values above {longest} bytes are not examined by this {name!r}: use a simpler one")
                    still_matches &= np.array([len(value) <= longest for value in values_left])
                matching = matching[still_matches]
        if self._where is not None:
            matching = self._satisfying(values, matching, self._where, check, left_out)
        matches = np.zeros(len(values), np.bool_)
        matches[matching] = True
        return matches

    def _satisfying(
        self,
        values: Sequence[bytes],
        positions: NDArray[np.int64],
        test: Test,
        check: Callable[[], None],
        left_out: set[str],
    ) -> NDArray[np.int64]:
        satisfying: list[int] = []
        for low in range(0, len(positions), CONDITIONS_AT_ONCE):
            check()
            slice_positions = positions[low : low + CONDITIONS_AT_ONCE].tolist()
            satisfying += [at for at in slice_positions if satisfies(values[at], test)]
            if any(len(values[at]) > conditions.VALUE_BYTES_MAX for at in slice_positions):
                left_out.add(f"values above {conditions.VALUE_BYTES_MAX} bytes are not examined by 'where'")
        return np.array(satisfying, np.int64)


@lru_cache(FILTERS_CACHED)
def compiled(search: Search) -> Filter:
    """The compiled search, cached. Raises BadData, which names the invalid parameter."""
    return Filter(search)


def _compile(name: str, text: str | None, compile_text: Callable[[str], object]) -> Any:
    if text is None:
        return None
    try:
        return compile_text(text)
    except ValueError as error:
        raise BadData(f"parameter {name!r} is {text[:100]!r}, which is refused: {error}") from error
