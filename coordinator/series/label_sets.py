"""Label sets: what is wrong with one that is not plain, and how an error message shows it; and what a request may
have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coordinator.series.exemplars import EXEMPLARS_MAX
from shared.config import Settings

LABELS_SHOWN_MAX = 200


@dataclass(frozen=True, slots=True)
class Limits:
    """What one series may have: number of labels, bytes of a label name, bytes of a label value; and the exemplars of
    one request, 0 if exemplars are not stored."""

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
    """Why a label set cannot be accepted; "" if it can. A label with an empty value is the same as no label."""
    if len(pairs) > limits.labels:
        return f"it has {len(pairs)} labels; the limit is {limits.labels}"
    seen = set()
    for name, value in pairs:
        shown = name[:LABELS_SHOWN_MAX].decode(errors="replace")
        if not name:
            return "a label name is empty"
        if len(name) > limits.name_bytes:
            return f"a label name has {len(name)} bytes; the limit is {limits.name_bytes}"
        if len(value) > limits.value_bytes:
            return f"the value of label {shown!r} has {len(value)} bytes; the limit is {limits.value_bytes}"
        if name in seen:
            return f"label name {shown!r} appears twice"
        seen.add(name)
        for text, what in ((name, f"label name {shown!r}"), (value, f"the value of label {shown!r}")):
            try:
                text.decode()
            except UnicodeDecodeError as error:
                return f"{what} is not UTF-8 at byte {error.start}"
    if not any(name == b"__name__" and value for name, value in pairs):
        return "it has no label __name__"
    return ""


def shown(pairs: Sequence[tuple[bytes, bytes]]) -> str:
    """The label set as PromQL text, cut where it gets long."""
    texts, size = [], 0
    for name, value in pairs:
        text = f"{name[:64].decode(errors='replace')}={value[:64].decode(errors='replace')!r}"
        size += len(text)
        if size > LABELS_SHOWN_MAX:
            texts.append("…")
            break
        texts.append(text.replace("'", '"'))
    return "{" + ", ".join(texts) + "}"
