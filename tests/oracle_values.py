"""The values the oracle computes with."""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from shared.labels import METRIC_NAME, Labels
from shared.promql.model import STALE_NAN_BITS
from shared.promql.positions import line_column
from tests.oracle_native_histograms import NativeHistogram

METADATA = (METRIC_NAME, "__type__", "__unit__")
"""The labels that are dropped with the metric's name."""

Number = float | NativeHistogram


class Point(NamedTuple):
    """`start_ms`: since when a counter has counted; 0: nobody knows."""

    time_ms: int
    value: Number
    start_ms: int = 0


class OracleError(Exception):
    """The language says that this query fails on this data."""


@dataclass
class Sample:
    """One element of an instant vector; `at_ms` and `start_ms` are those of the sample it was read from."""

    labels: dict[str, str]
    value: Number
    drop_name: bool = False
    at_ms: int = 0
    start_ms: int = 0


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

    @property
    def name(self) -> str:
        return self.labels.get(METRIC_NAME, "")


Value = float | str | Sequence[Sample | Series]


KNOWN_REMARKS = re.compile(
    r"^(?!.*needed to be fixed).*(histogram|custom buckets|counter resets|sample types|bucket layout|start time)"
)
"""The texts that `Remarks` may have."""


@dataclass
class Remarks:
    """What is said about a result besides its values, as far as it concerns native histograms: (level, text, offset of
    what it is about)."""

    found: set[tuple[str, str, int]] = field(default_factory=set)
    offset: int = 0

    def at(self, offset: int) -> Remarks:
        return Remarks(self.found, offset)

    def places(self, query: str) -> list[tuple[str, str]]:
        """(level, text with the line and column in the query)."""
        positions = [(level, text, line_column(query, offset)) for level, text, offset in sorted(self.found)]
        return [(level, f"{text} ({line}:{column})") for level, text, (line, column) in positions]

    def warn(self, text: str) -> None:
        self.found.add(("warning", f"PromQL warning: {text}", self.offset))

    def info(self, text: str) -> None:
        self.found.add(("info", f"PromQL info: {text}", self.offset))


def of_metric(name: str) -> str:
    return f' for metric name "{name}"' if name else ""


def as_labels(labels: dict[str, str], without: Sequence[str] = (), only: Sequence[str] | None = None) -> Labels:
    return tuple(
        sorted(
            (name, value)
            for name, value in labels.items()
            if value and name not in without and (only is None or name in only)
        )
    )


def is_stale(value: Number) -> bool:
    return isinstance(value, float) and bool(struct.unpack("<Q", struct.pack("<d", value))[0] == STALE_NAN_BITS)
