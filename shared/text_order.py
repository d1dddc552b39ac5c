"""The order of many texts, found without the interpreter lock: Python's `sorted` keeps other threads waiting until it
is done, for a second with a million texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shared.kernels import inlined, kernel, types

SORTED_AT_ONCE = 1 << 12
"""Texts that are left to `sorted`, which takes some 2 ms for as many."""
ENCODED_AT_ONCE = 1 << 12
"""Texts that become bytes in one step, during which other threads wait."""
RUN = 8
"""Texts that are sorted by insertion before runs of them are merged."""

_BYTES = types.Array(types.uint8, 1, "C", readonly=True)
_INTS = types.Array(types.int64, 1, "C", readonly=True)
_INTS_OUT = types.int64[::1]


def ascending(texts: Sequence[str]) -> NDArray[np.int64]:
    """int64[n]: the places of the texts in ascending order of their code points, which UTF-8 keeps; equal texts in the
    order in which they come. As `sorted` does, it takes texts with halves of surrogate pairs."""
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
    """How many bytes all texts begin with."""
    same = offsets[1] - offsets[0]
    for i in range(1, len(offsets) - 1):
        begin, length = offsets[i], min(same, offsets[i + 1] - offsets[i])
        same = 0
        while same < length and data[begin + same] == data[offsets[0] + same]:
            same += 1
    return same


@inlined
def _is_after(data: Any, offsets: Any, keys: Any, skipped: Any, one: Any, other: Any) -> Any:
    """Whether text `one` comes after text `other`; `keys`: the first eight bytes of each behind those `skipped`."""
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
    """Sorts `order`, the numbers of texts data[offsets[i]:offsets[i+1]], by merging; `scratch`: int64[as many]."""
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
