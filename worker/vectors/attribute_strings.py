"""The distinct strings of an attribute's column, by their codes, and which of them satisfy a comparison.

Strings are ordered by their code points. A comparison with an RFC 3339 datetime compares instants instead: only strings
that are datetimes satisfy it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from shared.messages.vectors import Value
from worker.vectors.instants import NOT_A_NUMBER, Instants, parsed

Mask = NDArray[np.bool_]

EQUALITY = ("eq", "in")
STRING_BYTES = 168
"""Bytes of a distinct string: the object, without its text, and its entries in the dictionary, the list and the
order."""


class AttributeStrings:
    """Safe for one writer at a time beside readers: a string keeps its code, and codes are given in ascending order."""

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self._codes: dict[str, int] = {text: code for code, text in enumerate(texts)}
        self._texts = list(self._codes)
        self._ordered: tuple[list[str], NDArray[np.int64]] = ([], np.zeros(0, dtype=np.int64))
        self._instants: Instants = np.broadcast_to(NOT_A_NUMBER, 0)

    def __len__(self) -> int:
        return len(self._codes)

    @property
    def memory_bytes(self) -> int:
        return STRING_BYTES * len(self._codes) + (self._instants.nbytes if self._has_datetimes() else 0)

    def texts(self) -> list[str]:
        """The strings in the order of their codes."""
        return list(self._texts)

    def take(self, codes: NDArray[np.int64]) -> list[str]:
        """The strings with these codes, int64[n]."""
        texts = self._texts
        return [texts[code] for code in codes.tolist()]

    def code(self, text: str) -> int:
        """The code of a string; −1 if the column never had it."""
        return self._codes.get(text, -1)

    def add(self, texts: Sequence[str]) -> NDArray[np.int64]:
        """The codes of these strings, int64[n], new ones for those that have none yet."""
        codes, known = self._codes, len(self._codes)
        added = np.array([codes.setdefault(text, len(codes)) for text in texts], dtype=np.int64)
        if len(codes) > known:
            self._texts += [text for text in dict.fromkeys(texts) if codes[text] >= known]
        return added

    def instants(self) -> Instants:
        """The instant of each string, complex128[codes]; NaN for those that are no datetimes."""
        known = self._instants
        if len(known) < len(self._texts):
            new = parsed(self._texts[len(known) :])
            is_datetime = not np.isnan(new).all() or self._has_datetimes()
            # Most columns have no datetimes: then one NaN is the entry of all strings.
            known = (
                np.concatenate([known, new]) if is_datetime else np.broadcast_to(NOT_A_NUMBER, len(known) + len(new))
            )
            self._instants = known
        return known

    def _has_datetimes(self) -> bool:
        return self._instants.strides != (0,)

    def compare(self, op: str, text: str) -> Mask:
        """Which strings are lt, lte, gt or gte `text` in the order of code points, bool[codes]."""
        texts, ranks = self.order()
        edge = bisect_left(texts, text) if op in ("lt", "gte") else bisect_right(texts, text)
        return ranks < edge if op in ("lt", "lte") else ranks >= edge

    def order(self) -> tuple[list[str], NDArray[np.int64]]:
        """(the strings in ascending order, the rank of each code in this order, int64[codes])."""
        texts, ranks = self._ordered
        if len(ranks) != len(self._texts):
            # Sorting the ordered strings and the new ones together only merges them.
            texts = sorted([*texts, *self._texts[len(texts) :]])
            codes = np.fromiter(map(self._codes.__getitem__, texts), dtype=np.int64, count=len(texts))
            ranks = np.empty_like(codes)
            ranks[codes] = np.arange(len(texts))
            self._ordered = texts, ranks
        return texts, ranks


def divided(op: str, values: Sequence[Value]) -> tuple[Sequence[Value], Instants, str | None]:
    """The values of a comparison, by how they are compared: (the values that are compared as they are, the instants of
    datetimes, the text that is compared by the order of strings)."""
    texts = [value for value in values if isinstance(value, str)]
    instants = parsed(texts)
    is_datetime = ~np.isnan(instants)
    if not is_datetime.any():
        return ([], instants[:0], texts[0]) if texts and op not in EQUALITY else (values, instants[:0], None)
    datetimes = {text for text, is_one in zip(texts, is_datetime.tolist(), strict=True) if is_one}
    others = [value for value in values if not isinstance(value, str) or value not in datetimes]
    return others, instants[is_datetime], None


def ordered(op: str, values: NDArray, edge: float | complex) -> Mask:
    """Which of `values` are lt, lte, gt or gte `edge`: bool[n]. NaN is none of them."""
    with np.errstate(invalid="ignore"):
        if op == "lt":
            return values < edge
        if op == "lte":
            return values <= edge
        return values > edge if op == "gt" else values >= edge
