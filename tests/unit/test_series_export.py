"""The slices in which a shard gives its samples to an export."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shared.errors import OverBudget
from shared.labels import Labels, Symbols
from shared.messages import exchange
from shared.messages.series_export import Cursor, ExportBody, ExportReply
from shared.promql.ast import Matcher
from shared.promql.model import RangeVector
from shared.wire import Request, pack, unpack
from tests.unit.series_shard import Quiet, m
from worker.methods.export import METHODS

ALL = [(Matcher("__name__", "=", "m"),)]
FOREVER = 1e18


@pytest.fixture
def shard(tmp_path: Path) -> Iterator[Quiet]:
    opened = Quiet(tmp_path / "store")
    yield opened
    opened.close()


class _Served:
    """A shard as a method sees it."""

    def __init__(self, shard: Quiet) -> None:
        self.series = shard.part


def exported(shard: Quiet, *, samples: int = 100, bytes_max: int = 1 << 20, **more: Any) -> list[dict[Labels, list]]:
    """The slices, until the last."""
    slices: list[dict[Labels, list]] = []
    cursor: Cursor | None = Cursor()
    while cursor is not None:
        asked = {"selectors": ALL, "start_ms": 0, "end_ms": 1 << 40, **more}
        body = pack(ExportBody(cursor=cursor, samples=samples, bytes_max=bytes_max, **asked))
        reply = METHODS["series.export"].run({0: _Served(shard)}, Request("series.export", (0,), FOREVER, body))  # type: ignore[dict-item]
        answer = unpack(reply.body, ExportReply)
        value = exchange.decode(answer.shape, reply.frames, Symbols())
        assert isinstance(value, RangeVector)
        own = {}
        for row in range(value.labels.size):
            span = slice(int(value.samples.offsets[row]), int(value.samples.offsets[row + 1]))
            pairs = zip(value.samples.timestamps_ms[span].tolist(), value.samples.values[span].tolist(), strict=True)
            own[value.labels.labels(row)] = list(pairs)
        slices.append(own)
        assert answer.following != cursor, "each slice is behind the one before"
        cursor = answer.following
    return slices


def joined(slices: list[dict[Labels, list]]) -> dict[Labels, list]:
    found: dict[Labels, list] = {}
    for own in slices:
        for labels, pairs in own.items():
            found.setdefault(labels, []).extend(pairs)
    return {labels: pairs for labels, pairs in found.items() if pairs}


def test_slices_have_every_sample_once(shard: Quiet) -> None:
    shard.write([(m(i=str(i)), [(t, float(i * t)) for t in range(1, 8)]) for i in range(300)])
    shard.seal()
    shard.write([(m(i=str(i)), [(t, float(t)) for t in range(5, 12)]) for i in range(100, 400)])
    slices = exported(shard)
    assert len(slices) > 5
    assert joined(slices) == shard.samples()
    assert sum(len(own) for own in slices) == 400, "no series is in two slices"
    within = joined(exported(shard, start_ms=3, end_ms=6, selectors=[(Matcher("i", "=~", "1.."),), *ALL]))
    assert within == shard.samples(window=(3, 6))


def test_a_series_that_is_too_large_for_a_slice_comes_in_pieces(shard: Quiet) -> None:
    long = [(1_700_000_000_000 + 1000 * t, float(t)) for t in range(5_000)]
    shard.write([(m(i="0"), [(5, 1.0)]), (m(i="1"), long), (m(i="2"), [(7, 1.0)])])
    slices = exported(shard, end_ms=1 << 60)
    assert joined(slices) == shard.samples()
    assert max(len(pairs) for own in slices for pairs in own.values()) <= 200
    assert len(slices) < 150, "an empty century takes no slice of its own"


def test_what_does_not_fit_into_memory_is_read_in_smaller_parts(shard: Quiet) -> None:
    shard.write([(m(i=str(i)), [(t, 1.0) for t in range(2_000)]) for i in range(20)])
    shard.seal()
    slices = exported(shard, samples=1 << 20, bytes_max=300_000)
    assert joined(slices) == shard.samples()
    assert len(slices) > 1
    with pytest.raises((OverBudget, MemoryError)):
        exported(shard, bytes_max=100)


def test_few_series_are_in_a_slice_when_they_are_many_or_have_many_labels(
    shard: Quiet, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard.write([(m(i=str(i), **{f"label_{i}": "x"}), [(5, 1.0)]) for i in range(200)])
    slices = exported(shard, bytes_max=200_000)
    assert joined(slices) == shard.samples()
    assert len(slices) > 2, "200 names of labels, of which each series has one, are large columns"
    monkeypatch.setattr("worker.methods.export.SERIES_MAX", 30)
    assert [len(own) for own in exported(shard, samples=1000)] == [30] * 6 + [20]


def test_an_export_goes_on_after_the_shard_was_opened_again(shard: Quiet) -> None:
    shard.write([(m(i=str(i)), [(t, 1.0) for t in range(50)]) for i in range(20)])
    expected = shard.samples()
    first = exported(shard)[0]
    body = pack(ExportBody(ALL, 0, 1 << 40, Cursor(len(first) - 1), 1 << 20, 1 << 24))
    shard.reopen()
    reply = METHODS["series.export"].run({0: _Served(shard)}, Request("series.export", (0,), FOREVER, body))  # type: ignore[dict-item]
    value = exchange.decode(unpack(reply.body, ExportReply).shape, reply.frames, Symbols())
    assert isinstance(value, RangeVector)
    assert first.keys() | {value.labels.labels(row) for row in range(value.labels.size)} == expected.keys()
