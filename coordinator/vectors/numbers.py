"""Kernels that read the numbers of vectors in JSON text and check components, without an object a number."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from shared.kernels import kernel, types
from shared.messages.vectors import Floats
from shared.xxh64 import Bytes

Buffer = bytes | bytearray | memoryview | msgspec.Raw

_INTS = types.Array(types.int64, 1, "C", readonly=True)
_TABLE = types.Array(types.float32, 2, "C", readonly=True)

_POWERS = np.array([float(f"1e{n}") for n in range(23)])
COMPONENTS_BYTES_MAX = 1 << 20
"""The longest array that is decoded to objects when the kernels leave it; 16,384 components take some 0.4 MB."""
SIGNIFICANT_MAX = 18  # so many digits are less than 2^63
UNUSUAL = -1
"""What the kernels answer for input they leave to the general parser: anything rare, and anything wrong."""


@kernel(types.UniTuple(types.int64, 2)(Bytes, types.int64, types.int64, types.int64))
def _digits(text, at, end, mantissa):  # type: ignore[no-untyped-def]
    """(`mantissa` with the digits at `at` appended, where they end)."""
    while at < end:
        digit = np.int64(text[at]) - 48
        if digit < 0 or digit > 9:
            break
        mantissa = mantissa * 10 + digit
        at += 1
    return mantissa, at


@kernel(types.Tuple((types.int64, types.int64, types.boolean, types.int64))(Bytes, types.int64, types.int64))
def _long_mantissa(text, at, end):  # type: ignore[no-untyped-def]
    """A mantissa of any length: (its first 18 significant digits, the power of ten they are of, whether no other digit
    follows but zeros, where it ends)."""
    mantissa, digits, power, exact, point = np.int64(0), 0, 0, True, False
    while at < end:
        byte = text[at]
        if byte == 46:
            point = True
        elif byte < 48 or byte > 57:
            break
        elif digits < SIGNIFICANT_MAX:
            mantissa = mantissa * 10 + (byte - 48)
            if mantissa > 0:
                digits += 1
            if point:
                power -= 1
        else:
            exact = exact and byte == 48
            if not point:
                power += 1
        at += 1
    return mantissa, power, exact, at


@kernel(
    types.Tuple((types.float32, types.int64))(Bytes, types.int64, types.int64, types.float64[::1], types.int64[::1]),
    error_model="numpy",
)
def _number(text, at, end, wide, bits):  # type: ignore[no-untyped-def]
    """The JSON number at `at` as float32: (value, where it ends), the end −1 for one left to the general parser.

    That is a number whose rounding to float32 needs more than 64 bits, and what is no number. `wide` float64[1] and
    `bits`, the same memory as int64, are scratch space.
    """
    negative = text[at] == 45
    if negative:
        at += 1
    if text[at] < 48 or text[at] > 57:
        return np.float32(0), -1
    first, power, exact = at, 0, True
    mantissa, at = _digits(text, at, end, np.int64(0))
    if at < end and text[at] == 46:
        point = at
        mantissa, at = _digits(text, at + 1, end, mantissa)
        power = point + 1 - at
    if at - first > SIGNIFICANT_MAX:  # with the point, so of as many digits at least
        mantissa, power, exact, at = _long_mantissa(text, first, end)
    if at < end and (text[at] == 101 or text[at] == 69):
        at += 1
        down = text[at] == 45
        if text[at] == 45 or text[at] == 43:
            at += 1
        exponent = 0
        while at < end and 48 <= text[at] <= 57:
            exponent = min(10_000, exponent * 10 + (text[at] - 48))
            at += 1
        power += -exponent if down else exponent
    if mantissa == 0:
        return np.float32(-0.0 if negative else 0.0), at
    size = abs(power)
    if size > 44:
        return np.float32(0), -1
    value = np.float64(mantissa)
    scale = _POWERS[min(size, 22)]
    value = value / scale if power < 0 else value * scale
    if size > 22:
        scale = _POWERS[size - 22]
        value = value / scale if power < 0 else value * scale
    if not exact or size > 22 or mantissa > 9_007_199_254_740_992:
        # The double is within a few units of the true value; that decides the float32 unless it lies next to the
        # middle between two of them.
        wide[0] = value
        if abs((bits[0] & 0x1FFFFFFF) - 0x10000000) < 16:
            return np.float32(0), -1
    if value < 1.2e-38:
        return np.float32(0), -1
    return np.float32(-value if negative else value), at


@kernel(types.UniTuple(types.int64, 2)(Bytes, _INTS, types.float32[::1], types.int64[::1]))
def _parse(text, lengths, out, counts):  # type: ignore[no-untyped-def]
    """JSON arrays of numbers, `lengths[i]` bytes each, one after the other in `text` → `out` float32, one array after
    the other, `counts` each. Returns (how many numbers, how many arrays are UNUSUAL).

    A count is UNUSUAL where an array is not plain numbers, or has a number `_number` leaves. The text is valid JSON
    already, so a number needs no check of its grammar.
    """
    wide = np.empty(1, dtype=np.float64)
    bits = wide.view(np.int64)
    at_out = 0
    rare = 0
    end = 0
    for i in range(len(lengths)):
        at, end = end, end + lengths[i]
        first = at_out
        usual = at < end and text[at] == 91
        at += 1
        while usual:
            while at < end and (text[at] == 32 or text[at] == 44 or text[at] == 10 or text[at] == 13 or text[at] == 9):
                at += 1
            if at >= end or text[at] == 93:
                break
            out[at_out], at = _number(text, at, end, wide, bits)
            at_out += 1
            usual = at >= 0
        counts[i] = at_out - first if usual else -1
        if not usual:
            at_out = first
            rare += 1
    return at_out, rare


def parse_arrays(arrays: Sequence[Buffer]) -> tuple[Floats, NDArray[np.int64]]:
    """JSON texts of arrays of numbers → (their numbers one after the other, float32[n]; how many each has).

    Raises msgspec.ValidationError or OverflowError for one that is not such an array, or too long to tell. Numbers past
    float32 become infinite.
    """
    text = np.frombuffer(b"".join(arrays), dtype=np.uint8)
    lengths = np.array([len(memoryview(array)) for array in arrays], dtype=np.int64)
    out = np.empty(len(text) // 2 + 1, dtype=np.float32)
    counts = np.empty(len(arrays), dtype=np.int64)
    total, rare = _parse(text, lengths, out, counts)
    if not rare:
        out.resize(total, refcheck=False)  # a view would keep the memory of all of it
        return out, counts
    return _with_unusual(arrays, out[:total], counts, np.flatnonzero(counts == UNUSUAL))


def _with_unusual(
    arrays: Sequence[Buffer], parsed: Floats, counts: NDArray[np.int64], unusual: NDArray[np.int64]
) -> tuple[Floats, NDArray[np.int64]]:
    """Put in the arrays the kernel left out."""
    pieces = []
    at = 0
    rare = set(unusual.tolist())
    for i, array in enumerate(arrays):
        if i in rare:
            if len(memoryview(array)) > COMPONENTS_BYTES_MAX:
                raise OverflowError(i)
            numbers = msgspec.json.decode(array, type=list[float])
            with np.errstate(over="ignore"):
                pieces.append(np.array(numbers, dtype=np.float64).astype(np.float32))
            counts[i] = len(numbers)
        else:
            pieces.append(parsed[at : at + int(counts[i])])
            at += int(counts[i])
    return np.concatenate(pieces), counts


def joined(pieces: list[Floats]) -> Floats:
    """The pieces one after the other. Each is taken from the list and let go once it is copied."""
    out = np.empty(sum(map(len, pieces)), np.float32)
    at = len(out)
    while pieces:
        piece = pieces.pop()
        at -= len(piece)
        out[at : at + len(piece)] = piece
    return out


@kernel(types.UniTuple(types.int64, 2)(_TABLE, types.boolean), error_model="numpy")
def _unusable(table, lengths_matter):  # type: ignore[no-untyped-def]
    """(row, component) of the first number of `table` that is not finite; if `lengths_matter`, of the first row of
    zeros (and then component −1) should it come before; (−1, −1) if there is neither."""
    for row in range(table.shape[0]):
        vector = table[row]
        finite, zero = True, True
        for d in range(vector.shape[0]):
            finite &= abs(vector[d]) < np.inf
            zero &= vector[d] == 0
        if not finite:
            for d in range(vector.shape[0]):
                if not abs(vector[d]) < np.inf:
                    return row, d
        if zero and lengths_matter:
            return row, -1
    return -1, -1


def find_unusable(table: Floats, *, lengths_matter: bool) -> tuple[int, int] | None:
    """The first vector of float32[n, dimension] that nothing can be compared with, or None: (its row, the component
    that is not finite), the component −1 for one of all zeros, which counts if `lengths_matter`."""
    row, component = _unusable(np.ascontiguousarray(table), lengths_matter)
    return None if row < 0 else (row, component)
