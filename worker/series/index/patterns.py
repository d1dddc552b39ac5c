"""Label-matching regular expressions: RE2, anchored at both ends, evaluated once for each distinct text."""

from __future__ import annotations

import re
from collections import OrderedDict
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from shared.errors import BadData
from shared.labels import Symbols
from shared.promql.regex import compile_pattern

PATTERNS_MAX = 32
"""Expressions remembered for one shard; the least recently used is dropped first."""
REMEMBERED_TEXTS_MAX = 1 << 18
"""Texts for which an expression's outcomes are remembered, one byte each: those that were interned first."""
SHOWN_MAX = 200
"""Characters of an expression that an error message repeats."""

_LITERALS = re.compile(r"[^\\.+*?()|\[\]{}^$]*(?:\|[^\\.+*?()|\[\]{}^$]*)*")
_UNKNOWN, _NO, _YES = 0, 1, 2


class Pattern:
    """One expression. `literals`: the texts that it matches if it is only `a|b|c`, else None. Raises BadData for an
    expression that RE2 refuses."""

    def __init__(self, expression: str) -> None:
        try:
            self._compiled = compile_pattern(expression)
        except ValueError as error:
            raise BadData(f"invalid regular expression {expression[:SHOWN_MAX]!r}: {error}") from error
        self.literals = expression.split("|") if _LITERALS.fullmatch(expression) else None
        self._outcomes = np.zeros(1024, dtype=np.uint8)

    def matches(self, text: str) -> bool:
        return self._compiled.fullmatch(text) is not None

    def matches_codes(self, codes: NDArray[np.int32], symbols: Symbols) -> NDArray[np.bool_]:
        """bool[n]: whether the text of each code matches. Safe to call from many threads at once."""
        wanted = np.asarray(codes, dtype=np.int64)
        outcomes = self._room_for(int(wanted.max(initial=0)))
        known = np.where(wanted < len(outcomes), outcomes[np.minimum(wanted, len(outcomes) - 1)], _UNKNOWN)
        unknown = np.flatnonzero(known == _UNKNOWN)
        if len(unknown):
            distinct, inverse = np.unique(wanted[unknown], return_inverse=True)
            texts = symbols.texts(distinct.astype(np.int32))
            outcome = np.array([_YES if self.matches(text) else _NO for text in texts], dtype=np.uint8)
            known[unknown] = outcome[inverse]
            remembered = distinct < len(outcomes)
            outcomes[distinct[remembered]] = outcome[remembered]
        return known == _YES

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
        """The compiled expression. Raises BadData for an expression that RE2 refuses."""
        with self._lock:
            known = self._known.get(expression)
            if known is not None:
                self._known.move_to_end(expression)
                return known
        compiled = Pattern(expression)
        with self._lock:
            self._known[expression] = compiled
            while len(self._known) > PATTERNS_MAX:
                self._known.popitem(last=False)
        return compiled
