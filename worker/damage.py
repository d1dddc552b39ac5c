"""The known damage of a shard, so that every answer that may lack something because of it says so."""

from __future__ import annotations

from collections.abc import Mapping
from threading import Lock
from typing import Literal

Area = Literal["series", "log", "vector"]
"""The damaged part of a shard."""

AREAS_OF_METHODS: Mapping[str, tuple[Area, ...]] = {
    "series": ("series",),
    "query": ("series",),
    "log": ("log",),
    "vector": ("vector",),
    "backup": ("series", "log", "vector"),
    "debug": (),
}
"""The areas that a worker's method reads, by the first part of its name."""

TEXTS_MAX = 20
"""Texts kept per area. Further ones are only counted, so that an answer's warnings stay short."""


class DamageReport:
    """What one shard lacks, by area, from when it is found until the shard is reopened. Safe to use from many
    threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._texts: dict[Area, list[str]] = {}
        self._uncounted: dict[Area, int] = {}

    def add(self, area: Area, text: str) -> None:
        """`text` names the file, what is wrong with it and what is missing as a result. The same text counts once."""
        with self._lock:
            texts = self._texts.setdefault(area, [])
            if text in texts:
                return
            if len(texts) < TEXTS_MAX:
                texts.append(text)
            else:
                self._uncounted[area] = self._uncounted.get(area, 0) + 1

    def counts(self) -> dict[Area, int]:
        """How many things are damaged, by area."""
        with self._lock:
            return {area: len(texts) + self._uncounted.get(area, 0) for area, texts in self._texts.items()}

    def texts(self, area: Area) -> list[str]:
        """For the warnings of an answer about this area; empty if nothing is damaged."""
        if not self._texts:
            return []
        with self._lock:
            more = self._uncounted.get(area, 0)
            return [*self._texts.get(area, ()), *([f"and {more} more places are damaged"] if more else [])]


def warnings(reports: Mapping[int, DamageReport], method: str) -> list[str]:
    """The warnings in the answer of a worker's method ("area.name") about these shards."""
    areas = AREAS_OF_METHODS[method.partition(".")[0]]
    return [
        f"shard {shard}: {text}"
        for shard, report in sorted(reports.items())
        for area in areas
        for text in report.texts(area)
    ]
