"""Which records a search finds, by their values."""

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
"""Values are examined in slices of so many, between two looks at the deadline."""
FILTERS_CACHED = 16
"""Compiled searches that are remembered: a scan asks for its search page by page. Each takes up to a megabyte."""


class Filter:
    """A search, compiled. Safe for threads. Raises BadData that names the parameter that is wrong."""

    def __init__(self, search: Search) -> None:
        self._grep = _made("grep", search.grep, Pattern)
        self._grep_not = _made("grep_not", search.grep_not, Pattern)
        self._where: Test | None = _made("where", search.where, condition)

    def matching(self, values: Sequence[bytes], check: Callable[[], None], left_out: set[str]) -> NDArray[np.bool_]:
        """bool[n]: which of these values are found. `check` is called again and again, and may raise. Texts in
        `left_out` say which values could not be examined; they are not found."""
        chosen = np.arange(len(values))
        for name, pattern, wanted in (("grep", self._grep, True), ("grep_not", self._grep_not, False)):
            if pattern is not None and len(chosen):
                values_left = [values[at] for at in chosen.tolist()] if len(chosen) < len(values) else values
                is_chosen = pattern.matching(values_left, check) == wanted
                longest = pattern.value_bytes_max
                if max(map(len, values_left)) > longest:
                    left_out.add(f"values above {longest} bytes are not examined by this {name!r}: use a simpler one")
                    is_chosen &= np.array([len(value) <= longest for value in values_left])
                chosen = chosen[is_chosen]
        if self._where is not None:
            chosen = self._satisfying(values, chosen, self._where, check, left_out)
        is_found = np.zeros(len(values), np.bool_)
        is_found[chosen] = True
        return is_found

    def _satisfying(
        self,
        values: Sequence[bytes],
        chosen: NDArray[np.int64],
        test: Test,
        check: Callable[[], None],
        left_out: set[str],
    ) -> NDArray[np.int64]:
        satisfying: list[int] = []
        for low in range(0, len(chosen), CONDITIONS_AT_ONCE):
            check()
            places = chosen[low : low + CONDITIONS_AT_ONCE].tolist()
            satisfying += [at for at in places if satisfies(values[at], test)]
            if any(len(values[at]) > conditions.VALUE_BYTES_MAX for at in places):
                left_out.add(f"values above {conditions.VALUE_BYTES_MAX} bytes are not examined by 'where'")
        return np.array(satisfying, np.int64)


@lru_cache(FILTERS_CACHED)
def compiled(search: Search) -> Filter:
    """Raises BadData that names the parameter that is wrong."""
    return Filter(search)


def _made(name: str, text: str | None, make: Callable[[str], object]) -> Any:
    if text is None:
        return None
    try:
        return make(text)
    except ValueError as error:
        raise BadData(f"parameter {name!r} is {text[:100]!r}, which is refused: {error}") from error
