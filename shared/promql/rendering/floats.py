"""The shortest decimal text of float64 values, written by kernels directly into a byte buffer.

The digits are those of the Schubfach algorithm (Raffaello Giulietti, "The Schubfach way to render doubles", 2020): the
shortest decimal that reads back as the same float, and the closest one if there are several. The notation is that of
the Prometheus HTTP API: positional, but below 1e-6 and from 1e21 on with an exponent of at least two digits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from shared.kernels import inlined

FLOAT_BYTES_MAX = 26
"""The longest text: a sign, `0.00000` and 17 digits, or 17 digits with point, sign and exponent."""
TIME_BYTES_MAX = 24
"""A sign, 17 digits of seconds, a point and three decimals."""

_POWER_MIN = -292
_POWER_MAX = 324

_U0, _U1, _U2, _U4, _U10, _U100 = (np.uint64(n) for n in (0, 1, 2, 4, 10, 100))
_E15 = np.uint64(10**15)
_U32, _U52, _LOW32 = np.uint64(32), np.uint64(52), np.uint64(0xFFFFFFFF)
_FRACTION = np.uint64((1 << 52) - 1)
_HIDDEN = np.uint64(1 << 52)
_EXPONENT = np.uint64(0x7FF)
_WHOLE_MAX = 9007199254740992.0  # 2**53: below it, the shortest text of a whole number is its digits
_ZERO = np.uint8(ord("0"))
_MINUS = np.uint8(ord("-"))
_PLUS = np.uint8(ord("+"))
_POINT = np.uint8(ord("."))
_E = np.uint8(ord("e"))
_INF = np.frombuffer(b"+Inf", dtype=np.uint8)
_NAN = np.frombuffer(b"NaN", dtype=np.uint8)
_PAIRS = np.frombuffer("".join(f"{n:02d}" for n in range(100)).encode(), dtype=np.uint8)

Bytes = NDArray[np.uint8]


def _powers_of_ten() -> NDArray[np.uint64]:
    """uint64[powers, 2]: the high and the low half of 10^k, scaled to 128 bits with the top bit set, and rounded up."""
    table = np.empty((_POWER_MAX - _POWER_MIN + 1, 2), dtype=np.uint64)
    for k in range(_POWER_MIN, _POWER_MAX + 1):
        shift = 127 - ((k * 1741647) >> 19)
        numerator = (10 ** max(k, 0)) << max(shift, 0)
        denominator = (10 ** max(-k, 0)) << max(-shift, 0)
        scaled = -(-numerator // denominator)
        table[k - _POWER_MIN] = (scaled >> 64, scaled & 0xFFFFFFFFFFFFFFFF)
    return table


POWERS = _powers_of_ten()


@inlined
def _multiply(a: Any, b: Any) -> Any:
    """(high, low) of the 128-bit product of two uint64."""
    a_low, a_high = a & _LOW32, a >> _U32
    b_low, b_high = b & _LOW32, b >> _U32
    low = a_low * b_low
    middle = a_high * b_low + (low >> _U32)
    other = a_low * b_high + (middle & _LOW32)
    return a_high * b_high + (middle >> _U32) + (other >> _U32), (other << _U32) | (low & _LOW32)


@inlined
def _scaled_odd(high: Any, low: Any, c: Any) -> Any:
    """The product of a 128-bit power and `c`, without the low 128 bits, rounded to odd."""
    carry_in, _ = _multiply(low, c)
    top, bottom = _multiply(high, c)
    total = bottom + carry_in
    if total < bottom:
        top += _U1
    return top | (_U1 if total > _U1 else _U0)


@inlined
def _shortest(bits: Any, powers: Any) -> Any:
    """(digits: uint64, exponent: int64) with digits × 10^exponent the shortest decimal of a finite non-zero float."""
    fraction = bits & _FRACTION
    exponent = np.int64((bits >> _U52) & _EXPONENT)
    if exponent:
        c = fraction | _HIDDEN
        q = exponent - 1075
    else:
        c = fraction
        q = np.int64(-1074)
    out = c & _U1
    middle = c * _U4
    upper = middle + _U2
    if fraction == _U0 and exponent > 1:
        lower = middle - _U1
        k = (q * 1262611 - 524031) >> 22
    else:
        lower = middle - _U2
        k = (q * 1262611) >> 22
    h = np.uint64(q + ((-k * 1741647) >> 19) + 1)
    high = powers[-k - _POWER_MIN, 0]
    low = powers[-k - _POWER_MIN, 1]
    scaled_lower = _scaled_odd(high, low, lower << h) + out
    scaled = _scaled_odd(high, low, middle << h)
    scaled_upper = _scaled_odd(high, low, upper << h) - out
    s = scaled // _U4
    if s >= _U10:
        tens = s // _U10
        forty = tens * np.uint64(40)
        below = scaled_lower <= forty
        above = forty + np.uint64(40) <= scaled_upper
        if below != above:
            return tens + (_U1 if above else _U0), k + 1
    four = s * _U4
    below = scaled_lower <= four
    above = four + _U4 <= scaled_upper
    if below != above:
        return s + (_U1 if above else _U0), k
    half = four + _U2
    up = scaled > half or (scaled == half and (s & _U1) == _U1)
    return s + (_U1 if up else _U0), k


@inlined
def _write_digits(out: Any, at: Any, digits: Any, count: Any) -> Any:
    """Write the last `count` decimal digits of `digits`, the last one to `at + count - 1`. They are written in pairs,
    because a division costs more than a lookup in the table of pairs. Returns the position after them."""
    i = np.uint64(at + count)  # an unsigned index needs no check for negative values
    for _ in range(count >> 1):
        quotient = digits // _U100
        pair = (digits - quotient * _U100) << _U1
        i -= _U2
        out[i] = _PAIRS[pair]
        out[i + _U1] = _PAIRS[pair + _U1]
        digits = quotient
    if count & 1:
        out[at] = _ZERO + np.uint8(digits - digits // _U10 * _U10)
    return at + count


@inlined
def _count_digits(digits: Any) -> Any:
    if digits >= _E15:  # many floats have 16 or 17 digits
        count = 16
        limit = _E15 * _U10
    else:
        count = 1
        limit = _U10
    while count < 20 and digits >= limit:
        count += 1
        if count == 20:
            break
        limit *= _U10
    return count


@inlined
def write_time(out: Any, at: Any, time_ms: Any) -> Any:
    """Write a time as Unix seconds, with three decimals if they are not whole. Returns the position after the text."""
    if time_ms < 0:
        out[at] = _MINUS
        at += 1
        time_ms = -time_ms
    seconds = np.uint64(time_ms // 1000)
    milliseconds = np.uint64(time_ms % 1000)
    at = _write_digits(out, at, seconds, _count_digits(seconds))
    if milliseconds:
        out[at] = _POINT
        at = _write_digits(out, at + 1, milliseconds, 3)
    return at


@inlined
def write_integer(out: Any, at: Any, number: Any) -> Any:
    """Write an int64 other than the lowest one. Returns the position after the text."""
    if number < 0:
        out[at] = _MINUS
        at += 1
        number = -number
    digits = np.uint64(number)
    return _write_digits(out, at, digits, _count_digits(digits))


@inlined
def write_float(out: Any, at: Any, value: Any, bits: Any, powers: Any) -> Any:
    """Write the text of `value`, whose IEEE bits are `bits`. Returns the position after the text."""
    if value != value:
        for i in range(3):
            out[at + i] = _NAN[i]
        return at + 3
    negative = False
    if bits >> np.uint64(63):
        out[at] = _MINUS
        at += 1
        value = -value
        negative = True
    if value == np.inf:
        for i in range(1 if negative else 0, 4):  # the sign of -Inf has been written
            out[at] = _INF[i]
            at += 1
        return at
    if value < _WHOLE_MAX and value == np.floor(value):
        whole = np.uint64(value)
        return _write_digits(out, at, whole, _count_digits(whole))
    digits, exponent = _shortest(bits & np.uint64(0x7FFFFFFFFFFFFFFF), powers)
    quotient = digits // _U10
    while quotient * _U10 == digits:
        digits = quotient
        exponent += 1
        quotient = digits // _U10
    count = _count_digits(digits)
    if value < 1e-6 or value >= 1e21:
        return _write_scientific(out, at, digits, count, exponent + count - 1)
    return _write_positional(out, at, digits, count, exponent)


@inlined
def _write_positional(out: Any, at: Any, digits: Any, count: Any, exponent: Any) -> Any:
    point = count + exponent  # digits before the point
    if point <= 0:
        out[at] = _ZERO
        out[at + 1] = _POINT
        at += 2
        for _ in range(-point):
            out[at] = _ZERO
            at += 1
        return _write_digits(out, at, digits, count)
    if exponent >= 0:
        at = _write_digits(out, at, digits, count)
        for _ in range(exponent):
            out[at] = _ZERO
            at += 1
        return at
    _write_digits(out, at + 1, digits, count)
    for i in range(at, at + point):
        out[i] = out[i + 1]
    out[at + point] = _POINT
    return at + count + 1


@inlined
def _write_scientific(out: Any, at: Any, digits: Any, count: Any, exponent: Any) -> Any:
    if count > 1:
        _write_digits(out, at + 1, digits, count)
        out[at] = out[at + 1]
        out[at + 1] = _POINT
        at += count + 1
    else:
        at = _write_digits(out, at, digits, 1)
    out[at] = _E
    out[at + 1] = _MINUS if exponent < 0 else _PLUS
    size = np.uint64(abs(exponent))
    return _write_digits(out, at + 2, size, max(2, _count_digits(size)))
