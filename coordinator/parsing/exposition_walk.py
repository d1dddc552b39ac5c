"""Kernels that parse lines of a text exposition: a series, its labels, numbers.

Grammar: https://prometheus.io/docs/instrumenting/exposition_formats/ and the OpenMetrics 1.0 specification.
"""

# In a kernel's types a numpy integer and an int are one.
# mypy: disable-error-code="assignment, return-value"

from __future__ import annotations

import numpy as np

from coordinator.parsing.decimals import DIGITS_MAX, nearest
from shared.kernels import inlined, kernel, types
from shared.xxh64 import Bytes

TAB, LINE_FEED, SPACE, HASH, OPEN, CLOSE = (ord(c) for c in "\t\n #{}")
_QUOTE, _BACKSLASH, _ZERO, _NINE, _PLUS, _MINUS, _POINT, _E, _SMALL_E = (ord(c) for c in '"\\09+-.Ee')
_SMALL = 32
"""The bit in which a lower-case letter differs from the upper-case one."""
_NAN, _INF = (tuple(ord(c) for c in word) for word in ("nan", "inf"))
_POWER_DIGITS_MAX = 3


@inlined(allocates=False)
def past_blanks(text: np.ndarray, at: int) -> int:
    while at < len(text) and (text[at] == SPACE or text[at] == TAB):
        at += 1
    return at


@inlined(allocates=False)
def token_end(text: np.ndarray, at: int) -> int:
    """Where the token at `at`, which has no blanks, ends."""
    while at < len(text) and text[at] != SPACE and text[at] != TAB and text[at] != LINE_FEED:
        at += 1
    return at


@inlined(allocates=False)
def line_end(text: np.ndarray, at: int) -> int:
    while at < len(text) and text[at] != LINE_FEED:
        at += 1
    return at


@kernel(types.int64(Bytes, types.int64), allocates=False)
def labels_end(text: np.ndarray, at: int) -> int:
    """The position after the `}` that ends the labels at text[at]; -1 if the line ends before."""
    is_quoted = False
    at += 1
    while at < len(text) and text[at] != LINE_FEED:
        if is_quoted and text[at] == _BACKSLASH:
            at += 1
            if at < len(text) and text[at] == LINE_FEED:
                return -1
        elif text[at] == _QUOTE:
            is_quoted = not is_quoted
        elif text[at] == CLOSE and not is_quoted:
            return at + 1
        at += 1
    return -1


@inlined(allocates=False)
def _is_word(text: np.ndarray, at: int, end: int, word: tuple[int, int, int]) -> bool:
    return (
        end - at == 3
        and text[at] | _SMALL == word[0]
        and text[at + 1] | _SMALL == word[1]
        and text[at + 2] | _SMALL == word[2]
    )


@kernel(
    types.Tuple((types.boolean, types.float64))(Bytes, types.int64, types.int64), allocates=False, error_model="numpy"
)
def number(text: np.ndarray, at: int, end: int) -> tuple[bool, float]:
    """(True, the number text[at:end]), or (False, …) if it must be parsed in another way or is not a number."""
    begin = at
    is_negative = at < end and text[at] == _MINUS
    if at < end and (text[at] == _MINUS or text[at] == _PLUS):
        at += 1
    mantissa, digits, places, significant = np.uint64(0), 0, 0, 0
    has_point = False
    while at < end:
        byte = np.int64(text[at])
        if _ZERO <= byte <= _NINE:
            digits += 1
            significant += np.int64(significant > 0 or byte != _ZERO)
            if significant > DIGITS_MAX:
                return False, 0.0
            mantissa = mantissa * np.uint64(10) + np.uint64(byte - _ZERO)
            places += np.int64(has_point)
        elif byte == _POINT and not has_point:
            has_point = True
        else:
            break
        at += 1
    if digits == 0:
        if at == begin and _is_word(text, at, end, _NAN):
            return True, np.nan
        if not has_point and _is_word(text, at, end, _INF):
            return True, -np.inf if is_negative else np.inf
        return False, 0.0
    power = np.int64(0)
    if at < end and (text[at] == _E or text[at] == _SMALL_E):
        at += 1
        is_small = at < end and text[at] == _MINUS
        if at < end and (text[at] == _MINUS or text[at] == _PLUS):
            at += 1
        if at == end or end - at > _POWER_DIGITS_MAX:
            return False, 0.0
        while at < end and _ZERO <= text[at] <= _NINE:
            power = power * 10 + (np.int64(text[at]) - _ZERO)
            at += 1
        power = -power if is_small else power
    if at != end:
        return False, 0.0
    is_near, value = nearest(mantissa, significant, power - places)
    return is_near, -value if is_negative else value
