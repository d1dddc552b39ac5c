"""A pattern for searches in values of the log: RE2 syntax, line by line as in `grep`.

`^` and `$` match at the beginning and end of a line, and nothing matches across a line break. Many values can therefore
be joined by line breaks and searched at once: every match lies within one value.

The binding searches without the interpreter lock and cannot be interrupted. The bounds limit one search to some 0.2 s,
or some 0.8 s in one value of the largest size. Source: https://github.com/google/re2/wiki/Syntax.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shared.promql import regex

WEIGHT_MAX: Final = regex.WEIGHT_INSTANT
"""A pattern up to this weight compiles within a millisecond."""
JOINED_BYTES_MAX: Final = 1 << 20
"""Values are searched together up to about this size, between two checks of the deadline."""
WORK_MAX: Final = 1 << 26
"""Bytes × instructions of one search. If the automaton outgrows its memory, RE2 follows every instruction at every
byte, which takes 1 to 3 ns each."""
VALUE_WORK_MAX: Final = 1 << 28
"""The same for a value that is searched alone: 32 instructions for one of 8 MB."""

_LITERAL: Final = re.compile(r"[^\\.+*?()|\[\]{}^$]+")
_WHOLE_TEXT: Final = re.compile(r"\\[Az]|\(\?[a-zA-Z]*-[a-zA-Z]*m")
"""Syntax that refers to the beginning or end of the whole value instead of a line."""
_ANY_BYTE: Final = re.compile(r"(?<!\\)(?:\\\\)*\\C")
"""`\\C`, which matches a line break whatever the options are."""


class Pattern:
    """One pattern. Thread-safe. Raises ValueError with the reason if RE2 or a bound refuses it."""

    def __init__(self, text: str) -> None:
        if not text:
            raise ValueError("the pattern is empty")
        if "\n" in text:
            raise ValueError("the pattern has a line break, but values are searched line by line")
        if _ANY_BYTE.search(text):
            raise ValueError(r"the pattern has \C, but values are searched line by line")
        weight = regex.weight(text)
        if weight > WEIGHT_MAX:
            raise ValueError(f"the pattern weighs {weight}, at most {WEIGHT_MAX} is allowed: use fewer repetitions")
        self._literal = text.encode() if _LITERAL.fullmatch(text) else None
        self._is_whole_text = _WHOLE_TEXT.search(text) is not None
        self._compiled: Any = None
        self._instructions = 1
        if self._literal is None:
            self._compiled = regex.compiled(f"(?m){text}", dot_nl=False, never_nl=True, never_capture=True)
            self._instructions = max(1, self._compiled.programsize)

    @property
    def value_bytes_max(self) -> int:
        """Longer values are not searched and count as values without a match."""
        return (1 << 62) if self._literal is not None else VALUE_WORK_MAX // self._instructions

    def matching(self, values: Sequence[bytes], check: Callable[[], None]) -> NDArray[np.bool_]:
        """bool[n]: which of these values match the pattern. `check` is called regularly and may raise."""
        matches = np.zeros(len(values), np.bool_)
        for low, high in self._slices(values):
            check()
            matches[[low + at for at in self._positions(values[low:high])]] = True
        return matches

    def _slices(self, values: Sequence[bytes]) -> Iterator[tuple[int, int]]:
        """(begin, end) of each slice of values that are searched together."""
        joined_max = 0 if self._is_whole_text else min(JOINED_BYTES_MAX, WORK_MAX // self._instructions)
        value_max = self.value_bytes_max
        if sum(map(len, values)) + len(values) <= min(joined_max, value_max):
            if values:
                yield 0, len(values)
            return
        low = size = 0
        for at, value in enumerate(values):
            if at > low and (size + len(value) > joined_max or len(value) > value_max):
                yield low, at
                low, size = at, 0
            if len(value) > value_max:
                low = at + 1
            else:
                size += len(value) + 1
        if low < len(values):
            yield low, len(values)

    def _positions(self, values: Sequence[bytes]) -> Iterator[int]:
        """The positions of the values with a match, ascending."""
        text = b"\n".join(values)
        starts: list[int] = []
        at = 0
        while at <= len(text) and (match_at := self._find(text, at)) >= 0:
            starts = starts or [0, *accumulate(len(value) + 1 for value in values)]  # the last one is past the text
            position = bisect_right(starts, match_at) - 1
            yield position
            at = starts[position + 1]

    def _find(self, text: bytes, at: int) -> int:
        """The offset of the first match at or after `at`; -1 if there is none."""
        if self._literal is not None:
            return text.find(self._literal, at)
        match = self._compiled.search(text, at)
        return -1 if match is None else int(match.start())
