"""Exemplars as JSON, against the standard library."""

from __future__ import annotations

import json
import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from shared import labels
from shared.frames.samples import TIME_MS_MAX, TIME_MS_MIN
from shared.promql.rendering import exemplars as rendering

texts = st.text(alphabet=st.characters(exclude_categories=("Cs",)), min_size=1, max_size=8)
label_sets = st.dictionaries(texts, texts, max_size=3)
exemplars = st.lists(st.tuples(label_sets, st.floats(width=64), st.integers(TIME_MS_MIN, TIME_MS_MAX)), max_size=5)


@settings(deadline=None)
@given(exemplars)
def test_exemplars_are_written_as_json(own: list) -> None:
    encoded = [labels.encode(tuple(own_labels.items())) for own_labels, _, _ in own]
    columns = (
        np.array([at_ms for _, _, at_ms in own], dtype=np.int64),
        np.array([value for _, value, _ in own], dtype=np.float64),
        np.cumsum([0, *map(len, encoded)], dtype=np.int64),
        np.frombuffer(b"".join(encoded), dtype=np.uint8),
    )
    written = list(rendering.texts(*columns))
    read = json.loads(b"[%b]" % b"".join(written)[1:])
    assert len(written) == len(read) == len(own)
    for shown, (own_labels, value, at_ms) in zip(read, own, strict=True):
        assert shown["labels"] == own_labels
        assert shown["timestamp"] == at_ms / 1000
        assert float(shown["value"]) == value or (math.isnan(value) and shown["value"] == "NaN")


def test_many_exemplars_are_written_in_parts() -> None:
    count = 3 * rendering.EXEMPLARS_AT_ONCE + 1
    label = labels.encode((("a", "\x01" * 120),))
    offsets = np.arange(count + 1, dtype=np.int64) * len(label)
    columns = (np.arange(count), np.zeros(count), offsets, np.frombuffer(label * count, dtype=np.uint8))
    read = json.loads(b"[%b]" % b"".join(rendering.texts(*columns))[1:])
    assert [shown["timestamp"] for shown in read] == [at_ms / 1000 for at_ms in range(count)]
    assert {shown["labels"]["a"] for shown in read} == {"\x01" * 120}
