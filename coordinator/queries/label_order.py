"""The order of series by label set, found by comparing the text of their labels, so that merging sorted answers decodes
none of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from shared.kernels import inlined, kernel, types
from shared.promql.model import Int
from shared.promql.rendering.labels import Bytes

_BYTES = types.Array(types.uint8, 1, "C", readonly=True)
_INTS = types.Array(types.int64, 1, "C", readonly=True)

_QUOTE, _BACKSLASH = np.uint8(ord('"')), np.uint8(ord("\\"))
_END = -1
"""The end of a name or value sorts before any character."""


@inlined
def _hexadecimal(digit: Any) -> Any:
    return np.int64(digit) - 48 if digit < 58 else (np.int64(digit) & 0xDF) - 55


@inlined
def _escaped(keys: Any, at: Any) -> Any:
    """The character whose escape's letter is at `at`: JSON escapes the quote, the backslash and control characters."""
    letter = keys[at]
    if letter == ord("u"):
        return _hexadecimal(keys[at + 3]) * 16 + _hexadecimal(keys[at + 4])
    if letter == ord("b"):
        return 8
    if letter == ord("t"):
        return 9
    if letter == ord("n"):
        return 10
    if letter == ord("f"):
        return 12
    if letter == ord("r"):
        return 13
    return np.int64(letter)


@inlined
def _character(keys: Any, at: Any, escape: Any) -> Any:
    """The byte of a name or value at `at`, which is behind a backslash if `escape`; _END where the string ends."""
    if escape:
        return _escaped(keys, at)
    if keys[at] == _BACKSLASH:
        return _escaped(keys, at + 1)
    return _END if keys[at] == _QUOTE else np.int64(keys[at])


@inlined
def _compare(keys: Any, one: Any, one_end: Any, other: Any, other_end: Any) -> Any:
    """Negative, zero or positive as keys[one:one_end], the text of a series up to the end of its labels, is of a label
    set before, equal to or after that of keys[other:other_end].

    Names come in ascending order and UTF-8 orders like its code points, so that the first difference decides.
    """
    shorter = min(one_end - one, other_end - other)
    same = 0
    while same < shorter and keys[one + same] == keys[other + same]:
        same += 1
    if same == shorter:
        return (one_end - one) - (other_end - other)  # one set has the other's labels and more
    backslashes = 0
    while backslashes < same and keys[one + same - 1 - backslashes] == _BACKSLASH:
        backslashes += 1
    escape = backslashes % 2 == 1
    return _character(keys, one + same, escape) - _character(keys, other + same, escape)


@kernel(types.boolean(_BYTES, _INTS, _INTS, _INTS, types.int64[::1]))
def _merge_two(keys: Any, offsets: Any, one: Any, other: Any, out: Any) -> Any:
    """Two ascending lists of series as one; False if they have a label set in common."""
    i = j = 0
    for at in range(len(out)):
        if i == len(one):
            out[at] = other[j]
            j += 1
            continue
        if j == len(other):
            out[at] = one[i]
            i += 1
            continue
        a, b = one[i], other[j]
        order = _compare(keys, offsets[a], offsets[a + 1], offsets[b], offsets[b + 1])
        if order == 0:
            return False
        if order < 0:
            out[at] = a
            i += 1
        else:
            out[at] = b
            j += 1
    return True


def merged(keys: Bytes, offsets: Int, runs: Sequence[Int]) -> Int | None:
    """All series in ascending order of their label sets; None if two runs have a label set in common.

    `keys`: uint8[m], the text of series i up to the end of its labels is keys[offsets[i]:offsets[i+1]]; `runs`: lists
    of series, each already in ascending order.
    """
    left = list(runs)
    while len(left) > 1:
        one, other, *left = left
        out = np.empty(len(one) + len(other), dtype=np.int64)
        if not _merge_two(keys, offsets, one, other, out):
            return None
        left.append(out)
    return left[0]
