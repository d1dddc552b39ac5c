"""The values the oracle computes with."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from shared.labels import METRIC_NAME, Labels
from shared.promql.model import STALE_NAN_BITS

METADATA = (METRIC_NAME, "__type__", "__unit__")
"""The labels that are dropped with the metric's name."""

Point = tuple[int, float]
"""(timestamp in milliseconds, value)."""


class OracleError(Exception):
    """The language says that this query fails on this data."""


@dataclass
class Sample:
    """One element of an instant vector; `at_ms` is the time of the sample it was read from."""

    labels: dict[str, str]
    value: float
    drop_name: bool = False
    at_ms: int = 0


@dataclass
class Series:
    """One element of a range vector: `points` in (start_ms, end_ms]; the samples around them for extended selectors."""

    labels: dict[str, str]
    points: list[Point]
    start_ms: int
    end_ms: int
    drop_name: bool = False
    mode: Literal["plain", "anchored", "smoothed"] = "plain"
    before: list[Point] = field(default_factory=list)
    after: list[Point] = field(default_factory=list)


Value = float | str | Sequence[Sample | Series]


def as_labels(labels: dict[str, str], without: Sequence[str] = (), only: Sequence[str] | None = None) -> Labels:
    return tuple(
        sorted(
            (name, value)
            for name, value in labels.items()
            if value and name not in without and (only is None or name in only)
        )
    )


def is_stale(value: float) -> bool:
    return bool(struct.unpack("<Q", struct.pack("<d", value))[0] == STALE_NAN_BITS)
