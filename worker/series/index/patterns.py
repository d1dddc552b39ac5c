"""The regular expressions of matchers, each evaluated once for each distinct text of a shard."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from shared.errors import BadData
from shared.labels import Symbols
from shared.promql.regex import Regex

PATTERNS_MAX = 32
"""Expressions remembered for one shard; the least recently used is dropped first."""
REMEMBERED_TEXTS_MAX = 1 << 18
"""Texts for which an expression's outcomes are remembered, one byte each: those that were interned first."""
SHOWN_MAX = 200
"""Characters of an expression that an error message repeats."""
TEXTS_AT_ONCE = 1024
"""Texts that are copied out of the symbol table and matched before their outcomes are remembered."""

_UNKNOWN, _NO, _YES = 0, 1, 2


class Pattern:
    """One expression. `literals`: the texts that it matches if it is only `a|b|c`, else None. Raises BadData for an
    expression that RE2 refuses."""

    def __init__(self, expression: str) -> None:
        try:
            self._regex = Regex(expression)
        except ValueError as error:
            raise BadData(f"invalid regular expression {expression[:SHOWN_MAX]!r}: {error}") from error
        self._outcomes = np.zeros(1024, dtype=np.uint8)

    @property
    def literals(self) -> list[str] | None:
        return self._regex.literals

    def matches(self, text: str) -> bool:
        return self._regex.matches(text)

    def matches_codes(self, codes: NDArray[np.int32], symbols: Symbols, check: Callable[[], None]) -> NDArray[np.bool_]:
        """bool[n]: whether the text of each code matches. Safe to call from many threads at once. `check` is called
        repeatedly and may raise; outcomes found before that are remembered. Raises NotExecutable for a text that is too
        long for the expression."""
        wanted = np.asarray(codes, dtype=np.int64)
        outcomes = self._room_for(int(wanted.max(initial=0)))
        known_outcomes = np.where(wanted < len(outcomes), outcomes[np.minimum(wanted, len(outcomes) - 1)], _UNKNOWN)
        unknown = np.flatnonzero(known_outcomes == _UNKNOWN)
        if len(unknown):
            distinct, inverse = np.unique(wanted[unknown], return_inverse=True)
            distinct_outcomes = np.empty(len(distinct), dtype=np.uint8)
            for first in range(0, len(distinct), TEXTS_AT_ONCE):
                check()
                batch = distinct[first : first + TEXTS_AT_ONCE]
                matched = self._regex.matching(symbols.encoded(batch.astype(np.int32)), check)
                batch_outcomes = np.where(matched, np.uint8(_YES), np.uint8(_NO))
                distinct_outcomes[first : first + TEXTS_AT_ONCE] = batch_outcomes
                is_remembered = batch < len(outcomes)
                outcomes[batch[is_remembered]] = batch_outcomes[is_remembered]
            known_outcomes[unknown] = distinct_outcomes[inverse]
        return known_outcomes == _YES

    def _room_for(self, code: int) -> NDArray[np.uint8]:
        """The array of outcomes by code, grown for `code` if that is below REMEMBERED_TEXTS_MAX."""
        # If two threads grow the array at once, each may lose the other's outcomes, but no outcome is ever wrong.
        outcomes = self._outcomes
        if code >= len(outcomes) and len(outcomes) < REMEMBERED_TEXTS_MAX:
            grown = np.zeros(min(max(code + 1, 2 * len(outcomes)), REMEMBERED_TEXTS_MAX), dtype=np.uint8)
            grown[: len(outcomes)] = outcomes
            self._outcomes = outcomes = grown
        return outcomes


class Patterns:
    """The expressions used most recently, compiled, with their outcomes for the codes of one symbol table."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, Pattern] = OrderedDict()
        self._lock = Lock()

    def get(self, expression: str) -> Pattern:
        """The compiled expression. Raises BadData for an expression that RE2 or a bound refuses."""
        with self._lock:
            pattern = self._known.get(expression)
            if pattern is not None:
                self._known.move_to_end(expression)
                return pattern
        compiled = Pattern(expression)
        with self._lock:
            self._known[expression] = compiled
            while len(self._known) > PATTERNS_MAX:
                self._known.popitem(last=False)
        return compiled
