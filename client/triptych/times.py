"""Points in time, as callers give them. Numbers are Unix seconds everywhere in this client, as in `time.time()`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Union

import numpy as np
from numpy.typing import NDArray

Time = Union[int, float, str, datetime, np.datetime64]
"""Unix seconds, RFC 3339 text, or a datetime; one without an offset is local time, a datetime64 is UTC."""
SECONDS_END = 2**63 / 1000
"""Times below this have milliseconds that fit in int64."""
Duration = Union[int, float, str]
"""Seconds, or text such as `1h30m`."""
_UNITS_S = {"y": 31_536_000, "w": 604_800, "d": 86_400, "h": 3600, "m": 60, "s": 1, "ms": 0.001, "": 1}
_DURATION = re.compile(r"([0-9]+(ms|[ywdhms]))+|[0-9]+([.][0-9]*)?")
_PART = re.compile(r"([0-9.]+)(ms|[ywdhms]?)")


def text_of(time: Time) -> str:
    """As a parameter of a request."""
    if isinstance(time, str):
        return time
    return _decimal(_seconds(time))


def seconds_text(duration: Duration) -> str:
    return duration if isinstance(duration, str) else _decimal(duration)


def seconds_of(duration: Duration) -> float:
    """The seconds of a duration; 0 for a text that is none, which the server refuses."""
    if not isinstance(duration, str):
        return float(duration)
    if not _DURATION.fullmatch(duration):
        return 0.0
    return sum(float(number) * _UNITS_S[unit] for number, unit in _PART.findall(duration))


def _seconds(time: int | float | datetime | np.datetime64) -> float:
    if isinstance(time, np.datetime64):
        return int(milliseconds(time)[0]) / 1000
    return time.timestamp() if isinstance(time, datetime) else time


def _decimal(number: float) -> str:
    """The text of a time, without an exponent, to the millisecond."""
    return f"{number:.3f}".rstrip("0").rstrip(".")


def milliseconds(times: Time | Sequence[Time] | NDArray[Any]) -> NDArray[np.int64]:
    """int64[n]: Unix milliseconds of one time or several. Raises ValueError for a text, and for what is not finite, NaT
    or beyond int64."""
    if isinstance(times, str):
        raise ValueError(f"the time is {times!r}; it must be Unix seconds or a datetime")
    if isinstance(times, datetime):
        times = times.timestamp()
    array = np.atleast_1d(np.asarray(times))
    if array.dtype == object:
        array = np.array([_seconds(each) for each in array], np.float64)
    if array.dtype.kind == "M":
        if np.isnat(array).any():
            raise ValueError("a time is NaT; it must be Unix seconds or a datetime")
        exact = array.astype("datetime64[ms]")
        if (exact.astype("datetime64[D]") != array.astype("datetime64[D]")).any():
            raise ValueError("a datetime64 is beyond int64 milliseconds; it must be nearer to 1970")
        return exact.astype(np.int64)
    seconds = array.astype(np.float64)
    if not np.isfinite(seconds).all():
        raise ValueError("a time is not finite; it must be Unix seconds or a datetime")
    beyond = seconds[np.abs(seconds) >= SECONDS_END]
    if len(beyond):
        raise ValueError(f"the time is {beyond[0]:g}; it must be in Unix seconds, below {SECONDS_END:g}")
    return np.rint(seconds * 1000).astype(np.int64)
