"""Kernels that convert the digits of a decimal number to the nearest float."""

# In a kernel's types a numpy integer and an int are one.
# mypy: disable-error-code="assignment, return-value"

from __future__ import annotations

import numpy as np

from shared.kernels import inlined, kernel, types

DIGITS_MAX = 18
"""Significant digits that are kept: 10^18 fits into 63 bits."""

_EXACT_MAX = np.uint64(1 << 53)
_EXPONENT_MAX = 22
_POWERS = 10.0 ** np.arange(_EXPONENT_MAX + 1)
_TENS = np.array([10**e for e in range(DIGITS_MAX + 1)], dtype=np.uint64)
_SHIFTS_MAX = 128
_HALVES = 2.0 ** (2 - np.arange(-8, _SHIFTS_MAX))
_TWO_54, _TWO_55 = np.uint64(1 << 54), np.uint64(1 << 55)
_U0, _U1, _U2, _U3 = (np.uint64(n) for n in range(4))


@kernel(types.float64(types.uint64, types.int64), allocates=False)
def _quotient(mantissa: int, digits: int) -> float:
    """The float nearest to mantissa / 10^digits, for 0 < mantissa < 10^18 and digits ≤ 18. Divides bit by bit to 55
    bits and notes whether there is a remainder, which is enough for rounding half to even."""
    divisor = _TENS[digits]
    quotient = mantissa // divisor
    remainder = mantissa - quotient * divisor
    shifts, is_inexact = 0, False
    while quotient >= _TWO_55:
        is_inexact |= quotient & _U1 != _U0
        quotient >>= _U1
        shifts -= 1
    while quotient < _TWO_54:
        remainder <<= _U1
        quotient <<= _U1
        if remainder >= divisor:
            remainder -= divisor
            quotient |= _U1
        shifts += 1
    is_inexact |= remainder != _U0
    low_bits, significand = quotient & _U3, quotient >> _U2
    if low_bits == _U3 or (low_bits == _U2 and (is_inexact or significand & _U1 != _U0)):
        significand += _U1
    return float(significand) * _HALVES[shifts + 8]


@inlined(allocates=False)
def nearest(mantissa: np.uint64, digits: int, exponent: int) -> tuple[bool, float]:
    """(True, the float nearest to mantissa · 10^exponent), or (False, …) if it must be computed in another way.
    `digits`: the number of significant digits; the mantissa has at most the first DIGITS_MAX of them."""
    is_near, value = False, 0.0
    if digits <= DIGITS_MAX:
        if mantissa <= _EXACT_MAX and -_EXPONENT_MAX <= exponent <= _EXPONENT_MAX:
            is_near, value = True, float(mantissa)
            value = value / _POWERS[-exponent] if exponent < 0 else value * _POWERS[exponent]
        elif -DIGITS_MAX <= exponent <= 0:
            is_near, value = True, _quotient(mantissa, -exponent)
    return is_near, value
