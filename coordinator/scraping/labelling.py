"""How the series of a target are named: the labels that it exposes are combined with its own, relabelled, and
limited."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coordinator.prometheus_config import relabelling
from coordinator.scraping import series_text
from shared.errors import BadData
from shared.labels import METRIC_NAME

EXPORTED = "exported_"
SHOWN_CHARS = 100

Ints = NDArray[np.int64]


class Unusable(BadData):
    """A scrape fails because of the labels of a series, or of the number of samples. `total`: samples that were read,
    including the one at which it fails; `kept`: those that relabelling keeps; `numbers`: those of the accepted
    series."""

    def __init__(self, message: str, total: int = 0, kept: int = 0, numbers: Ints | None = None) -> None:
        super().__init__(message)
        self.total = total
        self.kept = kept
        self.numbers = np.empty(0, np.int64) if numbers is None else numbers


@dataclass(frozen=True, slots=True)
class Labelling:
    """How the series of a target are named, and the limits of their labels: the number, and the bytes of names and
    values."""

    target: Mapping[str, str]
    honor_labels: bool = False
    rules: Sequence[relabelling.Rule] = ()
    labels_max: int = 64
    name_bytes_max: int = 1024
    value_bytes_max: int = 4096
    only_plain_names: bool = False

    def of(self, exposed: Mapping[str, str]) -> dict[str, str] | None:
        """The labels of a series that the target exposes with these labels; None if relabelling drops it. Raises
        BadData if they are invalid or too many."""
        kept = relabelling.apply(self._with_target(exposed), self.rules, only_plain_names=self.only_plain_names)
        if kept is None or not kept:
            return None
        if not kept.get(METRIC_NAME):
            raise Unusable(f"relabelling leaves a series without a metric name: {str(kept)[:SHOWN_CHARS]}")
        name = kept[METRIC_NAME][:SHOWN_CHARS]
        if len(kept) > self.labels_max:
            raise Unusable(f"a series of {name!r} has {len(kept)} labels; the limit is {self.labels_max}")
        if self.only_plain_names and not series_text.is_plain_metric_name(kept[METRIC_NAME]):
            raise Unusable(f"the metric name {name!r} is not plain as the job requires")
        for label, value in kept.items():
            if self.only_plain_names and not relabelling.is_plain(label):
                raise Unusable(f"{name!r} has a label {label[:SHOWN_CHARS]!r}, which is not plain as the job requires")
            if len(label.encode()) > self.name_bytes_max:
                raise Unusable(f"a label name of {name!r} is longer than {self.name_bytes_max} bytes: {label[:50]!r}…")
            if len(value.encode()) > self.value_bytes_max:
                raise Unusable(f"label {label!r} of {name!r} has a value longer than {self.value_bytes_max} bytes")
        return kept

    def _with_target(self, exposed: Mapping[str, str]) -> dict[str, str]:
        if self.honor_labels:
            return {**self.target, **exposed}
        merged = {name: value for name, value in exposed.items() if name not in self.target}
        for name in sorted(exposed.keys() & self.target.keys(), key=len):
            renamed = EXPORTED + name
            while renamed in exposed or renamed in self.target or renamed in merged:
                renamed = EXPORTED + renamed
            if exposed[name]:
                merged[renamed] = exposed[name]
        return {**merged, **self.target}
