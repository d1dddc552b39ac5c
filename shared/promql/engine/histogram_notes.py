"""Notes on series, taken while their histograms are evaluated, and the annotations made from them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shared.labels import METRIC_NAME, LabelFrame
from shared.promql.model import Annotations

MIXED_TYPES, IGNORED, MIXED_SCHEMAS, NOT_COUNTER, NOT_GAUGE, RECONCILED, CONFLICTING, OVERLAPPING = (
    1 << bit for bit in range(8)
)
"""A window has floats and histograms, and no result; histograms were ignored; a window has exponential and custom
buckets, and no result; a histogram is not a counter, or not a gauge, as the function expects; custom boundaries differ;
reset hints contradict each other; a counter's start is before the previous sample."""

_WARNINGS = {
    MIXED_TYPES: "encountered a mix of histograms and floats for metric name {name}",
    MIXED_SCHEMAS: "vector contains a mix of histograms with exponential and custom buckets schemas for metric name "
    "{name}",
    NOT_COUNTER: "this native histogram metric is not a counter: {name}",
    NOT_GAUGE: "this native histogram metric is not a gauge: {name}",
    CONFLICTING: "conflicting counter resets during histogram aggregation",
    OVERLAPPING: "sample has start time that overlaps with previous sample timestamp for metric {name}",
}


def remark(
    notes: NDArray[np.uint8], labels: LabelFrame, operation: str, position: int, annotations: Annotations
) -> None:
    """Add Prometheus's annotations. `notes`: uint8[series], the notes on each series; `operation`: what reconciled
    custom boundaries."""
    if not notes.any():
        return
    for note, text in _WARNINGS.items():
        for name in names(labels.take(notes & note > 0)):
            annotations.warn(text.format(name=quoted(name)), position)
    for name in names(labels.take(notes & IGNORED > 0)):
        text = f"ignored histograms in a range containing both floats and histograms for metric name {quoted(name)}"
        annotations.info(text, position)
    if (notes & RECONCILED).any():
        annotations.info(f"mismatched custom buckets were reconciled during {operation}", position)


def names(labels: LabelFrame) -> list[str]:
    """The metric names, each once."""
    return labels.symbols.texts(np.unique(labels.column(METRIC_NAME)))


def quoted(name: str) -> str:
    return '"' + name.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
