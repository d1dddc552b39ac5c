"""The word statistics of an index of texts whose segments are merged in the background."""

from __future__ import annotations

import time

import msgspec
import pytest

from coordinator.vectors.text_query import parse
from shared.messages.vector_text import TextField, TextQuery, WordStatistics
from worker.vectors.text import TextIndex

OFTEN = TextQuery((("body", 1.0),), parse("often"))
SEGMENTS, EACH = 8, 20
"""So many segments are merged. Half of the vectors of each are written again in the next one."""
COUNT = (SEGMENTS + 1) * EACH // 2
MERGED_WITHIN_S = 20.0


def test_vectors_that_a_merge_takes_out_no_longer_count() -> None:
    index = TextIndex({"body": TextField("body")})
    for number in range(SEGMENTS):
        for n in range(number * EACH // 2, number * EACH // 2 + EACH):
            index.put(f"v{n}".encode(), msgspec.msgpack.encode({"body": "often" if n % 5 == 0 else "other"}))
        counted = index.statistics(OFTEN)  # commits, and counts
    assert counted.documents >= COUNT
    give_up = time.monotonic() + MERGED_WITHIN_S
    while index._index.searcher().num_segments > 1:
        assert time.monotonic() < give_up, "the segments are not merged"
        time.sleep(0.01)
    counted = index.statistics(OFTEN)
    assert counted == WordStatistics(COUNT, (COUNT // 5,))
    informed = TextQuery(OFTEN.fields, OFTEN.clauses, counted)
    assert dict(index.search(informed, COUNT)) == pytest.approx(dict(index.search(OFTEN, COUNT)))
