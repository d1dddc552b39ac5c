"""Samples in Prometheus's text format and in OpenMetrics, for a scraper.

Sources: https://prometheus.io/docs/instrumenting/exposition_formats/, the OpenMetrics 1.0 specification, and for names
that are not plain https://prometheus.io/docs/instrumenting/content_negotiation/ and escaping_schemes/. Both formats
have no native histograms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import isfinite

import numpy as np
from prometheus_client.openmetrics.exposition import escape_label_name, escape_metric_name
from prometheus_client.utils import floatToGoString

from coordinator.headers.exposition_format import ExpositionFormat
from shared.histograms.references import is_reference
from shared.labels import METRIC_NAME, LabelFrame
from shared.promql.model import Int, RangeVector

LINES_AT_ONCE = 4096
"""Lines made in one go: a few milliseconds, after which other threads get the interpreter."""
INSTANCE = "instance"
"""A series without this label gets an empty one, so that a scraper with `honor_labels` does not put its own there."""

_TEXT_TYPES = ("counter", "gauge", "histogram", "summary")
_SUFFIXES = {"histogram": ("_bucket", "_sum", "_count"), "summary": ("_sum", "_count")}
_ESCAPED = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})


def exposition(value: RangeVector, types: Mapping[str, str], shown: ExpositionFormat) -> Iterator[bytes]:
    """The one sample of each series as text, families and their metrics in order. Series without a metric name, and
    native histograms, are left out. `types`: of families, where they are known."""
    kept, histograms = _shown_rows(value)
    if histograms and not shown.is_openmetrics:
        yield b"# native histograms, which this format does not have, are left out: %d\n" % histograms
    labels = value.labels.take(kept)
    ((names, name_of),) = labels.values([METRIC_NAME]) if labels.size else [([], np.zeros(0, dtype=np.int64))]
    families = [_family(name, types, shown) for name in names]
    rank = np.empty(len(names), dtype=np.int64)
    rank[sorted(range(len(names)), key=lambda number: (families[number], names[number]))] = np.arange(len(names))
    order = labels.sort_order()
    order = order[np.argsort(rank[name_of[order]], kind="stable")]
    pieces = _label_pieces(labels, shown)
    heads = [_head(name, shown) for name in names]
    times, values = value.samples.timestamps_ms[kept], value.samples.values[kept]
    stamp: Callable[[int], str] = _seconds if shown.is_openmetrics else str
    family = None
    for start in range(0, labels.size, LINES_AT_ONCE):
        rows = order[start : start + LINES_AT_ONCE]
        sets = zip(*([texts[at] for at in local[rows].tolist()] for texts, local in pieces), strict=True)
        columns = (name_of[rows].tolist(), sets, values[rows].tolist(), times[rows].tolist())
        lines = []
        for name, labels_of_row, sample, time_ms in zip(*columns, strict=True):
            if families[name] != family:
                family = families[name]
                lines.append(f"# TYPE {escape_metric_name(family[0], shown.escaping)} {family[1]}\n")
            head, first = heads[name]
            lines.append(f"{head}{''.join(labels_of_row)[first:]}}} {_number(sample)} {stamp(time_ms)}\n")
        yield "".join(lines).encode()
    if shown.is_openmetrics:
        yield b"# EOF\n"


def _shown_rows(value: RangeVector) -> tuple[Int, int]:
    """(the rows that have a name and a sample which is no histogram; how many histograms there are)."""
    is_histogram = np.zeros(value.labels.size, dtype=np.bool_)
    if value.samples.histograms is not None:
        is_histogram = is_reference(value.samples.values)
    has_name = value.labels.column(METRIC_NAME) != 0
    return np.flatnonzero(has_name & ~is_histogram), int(is_histogram.sum())


def _family(name: str, types: Mapping[str, str], shown: ExpositionFormat) -> tuple[str, str]:
    """(the family that a metric is shown in, its type). In OpenMetrics a histogram or summary has to be whole, which
    what selectors choose need not be."""
    if shown.is_openmetrics:
        base = name.removesuffix("_total")
        if name != base and "counter" in (types.get(name), types.get(base)):
            return base, "counter"
        return name, "gauge" if types.get(name) == "gauge" else "unknown"
    own = types.get(name)
    if own in _TEXT_TYPES:
        return name, own
    for kind, suffixes in _SUFFIXES.items():
        for suffix in suffixes:
            family = name.removesuffix(suffix)
            if family != name and types.get(family) == kind:
                return family, kind
    base = name.removesuffix("_total")
    return name, "counter" if base != name and types.get(base) == "counter" else "untyped"


def _head(name: str, shown: ExpositionFormat) -> tuple[str, int]:
    """(how a line of this metric begins, how many characters of its labels are left out, which begin with a comma)."""
    text = escape_metric_name(name, shown.escaping)
    return ("{" + text, 0) if text.startswith('"') else (text + "{", 1)


def _label_pieces(labels: LabelFrame, shown: ExpositionFormat) -> list[tuple[list[str], Int]]:
    """For each label, in order: (`,name="value"` of each distinct value; int64[size], which of them each series has).
    The text of an empty value is empty, but for INSTANCE."""
    pieces = []
    for name in sorted({*labels.columns, INSTANCE} - {METRIC_NAME}):
        start = f',{escape_label_name(name, shown.escaping)}="'
        nowhere = [""], np.zeros(labels.size, dtype=np.int64)
        texts, local = labels.values([name])[0] if name in labels.columns else nowhere
        written = [f'{start}{text.translate(_ESCAPED)}"' if text or name == INSTANCE else "" for text in texts]
        pieces.append((written, local))
    return pieces


def _number(sample: float) -> str:
    return repr(sample) if isfinite(sample) else floatToGoString(sample)


def _seconds(time_ms: int) -> str:
    return repr(time_ms / 1000)
