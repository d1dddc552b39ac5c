"""Sorts many texts without the interpreter lock: Python's `sorted` blocks all other threads until it is done, for a
second with a million texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shared.kernels import inlined, kernel, types

SORTED_AT_ONCE = 1 << 12
"""Up to this number of texts, `sorted` is used, which takes some 2 ms."""
ENCODED_AT_ONCE = 1 << 12
"""The number of texts that are encoded in one step, during which other threads wait."""
RUN = 8
"""The length of runs that are sorted by insertion before they are merged."""

_BYTES = types.Array(types.uint8, 1, "C", readonly=True)
_INTS = types.Array(types.int64, 1, "C", readonly=True)
_INTS_OUT = types.int64[::1]


def ascending(texts: Sequence[str]) -> NDArray[np.int64]:
    """int64[n]: the positions of the texts in ascending order of code points, which is the order of their UTF-8 bytes.
    The sort is stable. Like `sorted`, it accepts texts with lone surrogates."""
    if len(texts) <= SORTED_AT_ONCE:
        return np.array(sorted(range(len(texts)), key=texts.__getitem__), dtype=np.int64)
    data = bytearray()
    offsets = np.zeros(len(texts) + 1, dtype=np.int64)
    for first in range(0, len(texts), ENCODED_AT_ONCE):
        encoded = [text.encode(errors="surrogatepass") for text in texts[first : first + ENCODED_AT_ONCE]]
        ends = np.cumsum(np.array(list(map(len, encoded)), dtype=np.int64))
        offsets[first + 1 : first + 1 + len(encoded)] = len(data) + ends
        data += b"".join(encoded)
    order = np.arange(len(texts), dtype=np.int64)
    _sort(np.frombuffer(data, dtype=np.uint8), offsets, order, np.empty_like(order))
    return order


@inlined
def _common_prefix(data: Any, offsets: Any) -> Any:
    """The length of the prefix that all texts share, in bytes."""
    same = offsets[1] - offsets[0]
    for i in range(1, len(offsets) - 1):
        begin, length = offsets[i], min(same, offsets[i + 1] - offsets[i])
        same = 0
        while same < length and data[begin + same] == data[offsets[0] + same]:
            same += 1
    return same


@inlined
def _is_after(data: Any, offsets: Any, keys: Any, skipped: Any, one: Any, other: Any) -> Any:
    """Whether text `one` comes after text `other`. `keys`: the first eight bytes of each text after `skipped` bytes."""
    if keys[one] != keys[other]:
        return keys[one] > keys[other]
    a, b = offsets[one] + skipped, offsets[other] + skipped
    a_end, b_end = offsets[one + 1], offsets[other + 1]
    while a < a_end and b < b_end and data[a] == data[b]:
        a += 1
        b += 1
    if a == a_end or b == b_end:
        return a < a_end
    return data[a] > data[b]


@kernel(types.void(_BYTES, _INTS, _INTS_OUT, _INTS_OUT))
def _sort(data: Any, offsets: Any, order: Any, scratch: Any) -> None:
    """Merge sort of `order`, int64[n] of numbers i of texts data[offsets[i]:offsets[i+1]]; `scratch`: int64[n]."""
    n = len(order)
    skipped = _common_prefix(data, offsets)
    keys = np.zeros(n, np.uint64)
    for i in range(n):
        for at in range(8):
            place = offsets[i] + skipped + at
            byte = data[place] if place < offsets[i + 1] else np.uint8(0)
            keys[i] = (keys[i] << np.uint64(8)) | np.uint64(byte)
    for first in range(0, n, RUN):
        for i in range(first + 1, min(first + RUN, n)):
            text, at = order[i], i
            while at > first and _is_after(data, offsets, keys, skipped, order[at - 1], text):
                order[at] = order[at - 1]
                at -= 1
            order[at] = text
    width = RUN
    while width < n:
        for first in range(0, n - width, 2 * width):
            right, last, at = first + width, min(first + 2 * width, n), first
            if not _is_after(data, offsets, keys, skipped, order[right - 1], order[right]):
                continue
            for i in range(width):
                scratch[i] = order[first + i]
            left = 0
            while left < width:
                if right < last and _is_after(data, offsets, keys, skipped, scratch[left], order[right]):
                    order[at] = order[right]
                    right += 1
                else:
                    order[at] = scratch[left]
                    left += 1
                at += 1
        width *= 2
