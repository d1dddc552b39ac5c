"""Limits on label sets: which label sets are refused, with which reason, and how error messages show a label set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coordinator.series.exemplars import EXEMPLARS_MAX
from shared.settings import Settings

LABELS_SHOWN_MAX = 200


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on one series (labels, bytes of a label name, bytes of a label value) and on the exemplars of one request,
    0 if exemplars are not stored."""

    labels: int
    name_bytes: int
    value_bytes: int
    exemplars: int = EXEMPLARS_MAX

    @classmethod
    def of(cls, settings: Settings) -> Limits:
        return cls(
            settings.labels_per_series_max,
            settings.label_name_bytes_max,
            settings.label_value_bytes_max,
            EXEMPLARS_MAX if settings.exemplars_bytes else 0,
        )

    def array(self) -> NDArray[np.int64]:
        return np.array([self.labels, self.name_bytes, self.value_bytes], dtype=np.int64)


def problem_of(pairs: Sequence[tuple[bytes, bytes]], limits: Limits) -> str:
    """Why a label set is refused; "" if it is valid. A label with an empty value counts as no label."""
    if len(pairs) > limits.labels:
        return f"it has {len(pairs)} labels; the limit is {limits.labels}"
    seen_names = set()
    for name, value in pairs:
        shown_name = name[:LABELS_SHOWN_MAX].decode(errors="replace")
        if not name:
            return "a label name is empty"
        if len(name) > limits.name_bytes:
            return f"a label name has {len(name)} bytes; the limit is {limits.name_bytes}"
        if len(value) > limits.value_bytes:
            return f"the value of label {shown_name!r} has {len(value)} bytes; the limit is {limits.value_bytes}"
        if name in seen_names:
            return f"label name {shown_name!r} appears twice"
        seen_names.add(name)
        for text, what in ((name, f"label name {shown_name!r}"), (value, f"the value of label {shown_name!r}")):
            try:
                text.decode()
            except UnicodeDecodeError as error:
                return f"{what} is not UTF-8 at byte {error.start}"
    if not any(name == b"__name__" and value for name, value in pairs):
        return "it has no label __name__"
    return ""


def shown(pairs: Sequence[tuple[bytes, bytes]]) -> str:
    """The label set as PromQL text, truncated if it is long."""
    texts, size = [], 0
    for name, value in pairs:
        text = f"{name[:64].decode(errors='replace')}={value[:64].decode(errors='replace')!r}"
        size += len(text)
        if size > LABELS_SHOWN_MAX:
            texts.append("…")
            break
        texts.append(text.replace("'", '"'))
    return "{" + ", ".join(texts) + "}"
