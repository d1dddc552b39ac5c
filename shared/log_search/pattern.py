"""A pattern that values of the log are searched for: RE2, line by line, as `grep` does.

`^` and `$` are the beginning and the end of a line, and nothing matches across a line break. So many values are
searched at once, joined by line breaks, and a match lies within one of them.

The binding searches without the interpreter lock and cannot be interrupted: the bounds keep one search at some 0.2 s,
and at some 0.8 s in one value of the largest size. Source: https://github.com/google/re2/wiki/Syntax.
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
"""Values are searched together up to about this size, between two looks at the deadline."""
WORK_MAX: Final = 1 << 26
"""Bytes × instructions of one search. If the automaton outgrows its memory, RE2 follows every instruction at every
byte, which takes 1 to 3 ns each."""
VALUE_WORK_MAX: Final = 1 << 28
"""The same for a value that is searched alone: 32 instructions for one of 8 MB."""

_LITERAL: Final = re.compile(r"[^\\.+*?()|\[\]{}^$]+")
_WHOLE_TEXT: Final = re.compile(r"\\[Az]|\(\?[a-zA-Z]*-[a-zA-Z]*m")
"""What looks at the beginning and the end of the whole value instead of a line."""
_ANY_BYTE: Final = re.compile(r"(?<!\\)(?:\\\\)*\\C")
"""Matches a line break whatever the options are."""


class Pattern:
    """One pattern. Raises ValueError with the reason if RE2 or a bound refuses it. Safe for threads."""

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
        self._alone = _WHOLE_TEXT.search(text) is not None
        self._compiled: Any = None
        self._instructions = 1
        if self._literal is None:
            self._compiled = regex.compiled(f"(?m){text}", dot_nl=False, never_nl=True, never_capture=True)
            self._instructions = max(1, self._compiled.programsize)

    @property
    def value_bytes_max(self) -> int:
        """A longer value is not searched: it is taken as one without a match."""
        return (1 << 62) if self._literal is not None else VALUE_WORK_MAX // self._instructions

    def matching(self, values: Sequence[bytes], check: Callable[[], None]) -> NDArray[np.bool_]:
        """bool[n]: in which of these values the pattern is found. `check` is called again and again, and may raise."""
        is_found = np.zeros(len(values), np.bool_)
        for low, high in self._together(values):
            check()
            is_found[[low + at for at in self._places(values[low:high])]] = True
        return is_found

    def _together(self, values: Sequence[bytes]) -> Iterator[tuple[int, int]]:
        """(first, last) of values that are searched at once."""
        joined_max = 0 if self._alone else min(JOINED_BYTES_MAX, WORK_MAX // self._instructions)
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

    def _places(self, values: Sequence[bytes]) -> Iterator[int]:
        """Which of the values have a match, ascending."""
        text = b"\n".join(values)
        starts: list[int] = []
        at = 0
        while at <= len(text) and (found := self._find(text, at)) >= 0:
            starts = starts or [0, *accumulate(len(value) + 1 for value in values)]  # the last one is past the text
            place = bisect_right(starts, found) - 1
            yield place
            at = starts[place + 1]

    def _find(self, text: bytes, at: int) -> int:
        """Where the first match from `at` on begins; -1 without one."""
        if self._literal is not None:
            return text.find(self._literal, at)
        match = self._compiled.search(text, at)
        return -1 if match is None else int(match.start())
