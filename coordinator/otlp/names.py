"""OpenTelemetry's names of metrics and labels, translated to those of Prometheus, in one of four ways.

Rules: https://opentelemetry.io/docs/specs/otel/compatibility/prometheus_and_openmetrics/, and the strategies of
https://prometheus.io/docs/guides/opentelemetry/ (`otlp.translation_strategy`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

UNITS = {
    "d": "days", "h": "hours", "min": "minutes", "s": "seconds", "ms": "milliseconds", "us": "microseconds",
    "ns": "nanoseconds",
    "By": "bytes", "KiBy": "kibibytes", "MiBy": "mebibytes", "GiBy": "gibibytes", "TiBy": "tibibytes",
    "KBy": "kilobytes", "kBy": "kilobytes", "MBy": "megabytes", "GBy": "gigabytes", "TBy": "terabytes",
    "m": "meters", "V": "volts", "A": "amperes", "J": "joules", "W": "watts", "g": "grams", "Cel": "celsius",
    "Hz": "hertz", "1": "", "%": "percent",
}  # fmt: skip
"""UCUM code → unit. Other units stay unchanged."""
PER_UNITS = {"s": "second", "m": "minute", "h": "hour", "d": "day", "w": "week", "mo": "month", "y": "year"}

LABELS_CACHED = 4096
"""Attribute names whose escaped form is cached: senders have some hundreds."""

_NO_NAME = re.compile(r"[^a-zA-Z0-9:]+")
_NO_LABEL = re.compile(r"[^a-zA-Z0-9_]")


@dataclass(frozen=True, slots=True)
class Names:
    """`escapes`: whether names have only letters, digits and underscores; `has_suffixes`: whether the unit and the kind
    of a metric are part of its name."""

    escapes: bool
    has_suffixes: bool

    @classmethod
    def of(cls, strategy: str) -> Names:
        """`strategy`: one of `shared.settings.OTLP_STRATEGIES`."""
        return cls(strategy.startswith("Underscore"), strategy.endswith("WithSuffixes"))

    def metric(self, name: str, unit: str, *, is_counter: bool = False, is_gauge: bool = False) -> str:
        """The name of a metric. `is_counter`: it is a monotonic cumulative sum."""
        is_ratio = is_gauge and unit == "1"
        if not self.has_suffixes:
            return _not_numeric("_".join(filter(None, _NO_NAME.split(name)))) if self.escapes else name
        main, per = units(unit)
        if not self.escapes:
            return _with_suffixes(name, main, per, is_counter, is_ratio)
        words = [word for word in _NO_NAME.split(name) if word]
        main, per = _escaped(main), _escaped(per)
        if main and main not in words:
            words.append(main)
        if per and per not in words:
            words += ["per", per]
        if is_counter:
            words = [word for word in words if word != "total"] + ["total"]
        if is_ratio:
            words = [word for word in words if word != "ratio"] + ["ratio"]
        return _not_numeric("_".join(words))

    def label(self, name: str) -> str:
        """The label name of an attribute."""
        return _escaped_label(name) if self.escapes and name else name

    def unit(self, unit: str) -> str:
        """The unit as it appears in a metric's metadata."""
        main, per = units(unit)
        return f"{main}_per_{per}".lstrip("_") if per else main


@lru_cache(LABELS_CACHED)
def _escaped_label(name: str) -> str:
    escaped = _NO_LABEL.sub("_", name)
    if escaped[0].isdigit():
        return f"key_{escaped}"
    if escaped[0] == "_" and not escaped.startswith("__"):
        return f"key{escaped}"
    return escaped


def units(unit: str) -> tuple[str, str]:
    """(what a unit counts, per what), such as (bytes, second) for `By/s`; "" for a missing part, and for text in
    braces, which is an annotation in UCUM."""
    main, _, per = (part.strip() for part in unit.partition("/"))
    main = "" if "{" in main or "}" in main else UNITS.get(main, main)
    per = "" if "{" in per or "}" in per else PER_UNITS.get(per, per)
    return main, per


def _escaped(unit: str) -> str:
    return "_".join(filter(None, _NO_NAME.split(unit)))


def _not_numeric(name: str) -> str:
    return f"_{name}" if name[:1].isdigit() else name


def _with_suffixes(name: str, main: str, per: str, is_counter: bool, is_ratio: bool) -> str:
    """The name with its suffixes in order, each once."""
    suffixes = []
    if is_ratio:
        name = _without(name, "ratio")
        suffixes.append("ratio")
    if is_counter:
        name = _without(name, "total")
        suffixes.append("total")
    if per:
        name = _without(name, f"per_{per}")
        suffixes.append(f"per_{per}")
    if main and not name.endswith(main):
        suffixes.append(main)
    return "_".join([name, *reversed(suffixes)])


def _without(name: str, suffix: str) -> str:
    """The name without this suffix and the character before it."""
    return name[: -len(suffix) - 1] if name.endswith(suffix) and len(name) > len(suffix) + 1 else name
