"""Instants of RFC 3339 texts such as `2026-01-01T00:00:00.5+02:00`, which order by time whatever their offsets are.

An instant is one complex number, since no 64-bit integer has the nanoseconds of all years from 0 to 9999: its real part
is the seconds since 1970, its imaginary part the nanoseconds within the second. numpy orders complex numbers by their
real parts, and those with equal real parts by their imaginary parts. What is no datetime is NaN.
"""

# In a kernel's types a numpy integer and an int are one.
# mypy: disable-error-code="assignment, return-value"

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from shared.kernels import kernel, types
from shared.xxh64 import Bytes

Instants = NDArray[np.complex128]

TEXT_CHARS_MIN, TEXT_CHARS_MAX = len("2026-01-01T00:00:00Z"), 64
"""No datetime is shorter. A longer text is taken for none, so that long texts are not copied to be parsed."""
PARSED_TEXTS = 65_536
"""Texts that are parsed at a time, which bounds the memory for their copies."""
NOT_A_NUMBER = complex(np.nan, 0)

_ZERO, _NINE, _PLUS, _MINUS, _COLON, _POINT = (ord(c) for c in "09+-:.")
_DATE_ENDS = np.frombuffer(b"Tt ", np.uint8).copy()
_TO_MONTH = np.array([0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334, 365])
_EPOCH_DAYS = 719_528  # from the first day of the year 0 to that of 1970
_NANOSECOND_DIGITS = 9


@kernel(types.int64(Bytes, types.int64, types.int64, types.int64))
def _digits(text: np.ndarray, at: int, end: int, count: int) -> int:
    """The number that text[at:at + count] is, -1 if these are not all digits."""
    if at + count > end:
        return -1
    value = 0
    for place in range(at, at + count):
        if text[place] < _ZERO or text[place] > _NINE:
            return -1
        value = 10 * value + text[place] - _ZERO
    return value


@kernel(types.int64(types.int64, types.int64, types.int64))
def _days(year: int, month: int, day: int) -> int:
    """Days from 1970-01-01 to a day of the Gregorian calendar; -_EPOCH_DAYS - 1, which no day has, for no day."""
    is_leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    if month < 1 or month > 12 or day < 1:
        return -_EPOCH_DAYS - 1
    if day > _TO_MONTH[month] - _TO_MONTH[month - 1] + (is_leap and month == 2):
        return -_EPOCH_DAYS - 1
    leaps_before = (year + 3) // 4 - (year + 99) // 100 + (year + 399) // 400
    return 365 * year + leaps_before + _TO_MONTH[month - 1] + (is_leap and month > 2) + day - 1 - _EPOCH_DAYS


@kernel(types.int64(Bytes, types.int64, types.int64, types.int64))
def _clock(text: np.ndarray, at: int, end: int, hours_end: int) -> int:
    """The minutes that text[at:at + 5], such as 23:59, is, -1 for anything else."""
    hours, minutes = _digits(text, at, end, 2), _digits(text, at + 3, end, 2)
    if hours < 0 or hours >= hours_end or minutes < 0 or minutes > 59 or text[at + 2] != _COLON:
        return -1
    return 60 * hours + minutes


@kernel(types.boolean(Bytes, types.int64, types.int64, types.float64[::1]))
def _instant(text: np.ndarray, at: int, end: int, out: np.ndarray) -> bool:
    """Put the seconds since 1970 and the nanoseconds of the datetime text[at:end] into `out`, float64[2]. Whether it is
    one, by RFC 3339, section 5.6; a leap second is the second after it."""
    if end - at < TEXT_CHARS_MIN or text[at + 4] != _MINUS or text[at + 7] != _MINUS:
        return False
    year, month, day = _digits(text, at, end, 4), _digits(text, at + 5, end, 2), _digits(text, at + 8, end, 2)
    if year < 0 or text[at + 10] not in _DATE_ENDS:
        return False
    days = _days(year, month, day)
    minutes, seconds = _clock(text, at + 11, end, 24), _digits(text, at + 17, end, 2)
    if days < -_EPOCH_DAYS or minutes < 0 or text[at + 16] != _COLON or seconds < 0 or seconds > 60:
        return False
    at += 19
    nanoseconds = 0
    if text[at] == _POINT:
        at += 1
        digits = 0
        while at < end and _ZERO <= text[at] <= _NINE:
            if digits < _NANOSECOND_DIGITS:
                nanoseconds = 10 * nanoseconds + text[at] - _ZERO
                digits += 1
            at += 1
        if digits == 0:
            return False
        for _ in range(digits, _NANOSECOND_DIGITS):
            nanoseconds *= 10
    if at == end:
        return False
    offset = 0
    if text[at] == _PLUS or text[at] == _MINUS:
        offset = _clock(text, at + 1, end, 24)
        if offset < 0:
            return False
        offset = -offset if text[at] == _MINUS else offset
        at += 6
    elif text[at] == 90 or text[at] == 122:  # Z, z
        at += 1
    else:
        return False
    out[0] = 86_400 * days + 60 * (minutes - offset) + seconds
    out[1] = nanoseconds
    return at == end


@kernel(types.void(Bytes, types.int64[::1], types.float64[:, ::1]))
def _parse(text: np.ndarray, ends: np.ndarray, out: np.ndarray) -> None:
    start = 0
    for place in range(len(ends)):
        if not _instant(text, start, ends[place], out[place]):
            out[place, 0] = np.nan
            out[place, 1] = 0
        start = ends[place]


def parsed(texts: Sequence[str]) -> Instants:
    """The instant of each text, complex128[n]; NaN for what is no datetime. Digits behind those of the nanoseconds are
    dropped."""
    instants = np.full(len(texts), NOT_A_NUMBER)
    places = [
        place
        for place, text in enumerate(texts)
        if TEXT_CHARS_MIN <= len(text) <= TEXT_CHARS_MAX and text[4] == "-" and text[7] == "-"
    ]
    for first in range(0, len(places), PARSED_TEXTS):
        part = places[first : first + PARSED_TEXTS]
        encoded = [texts[place].encode() for place in part]
        ends = np.cumsum(np.fromiter(map(len, encoded), dtype=np.int64, count=len(encoded)))
        found = np.empty((len(part), 2))
        _parse(np.frombuffer(b"".join(encoded), np.uint8), ends, found)
        instants[part] = found.view(np.complex128)[:, 0]
    return instants
