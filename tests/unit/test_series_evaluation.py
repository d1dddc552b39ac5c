"""Sub-queries over the shards of a worker: what is no sub-query is refused, and samples are read in batches that share
one budget."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from shared import wire
from shared.errors import Internal, TriptychError
from shared.labels import Symbols
from shared.messages import exchange
from shared.messages.sub_queries import EvaluateBody, EvaluateReply, SubQuery
from shared.promql.engine import scan
from shared.promql.engine.context import EvalContext
from shared.promql.model import STALE_NAN_BITS, Grid, RangeVector
from shared.wire import Request
from tests.unit.series_shard import Quiet, m
from worker.methods import queries as query
from worker.queries import evaluation
from worker.queries.source import ShardSource

SERIES = 7


@pytest.fixture
def shard(tmp_path: Path) -> Iterator[Quiet]:
    """Each series has as many samples as its number says, and one more."""
    own = Quiet(tmp_path)
    own.write([(m(i=str(i)), [(1000 * t, float(i)) for t in range(1, i + 2)]) for i in range(SERIES)])
    yield own
    own.close()


def evaluated(shard: Quiet, *subqueries: tuple[str, str], samples_max: int = 1000, **options: Any) -> Any:
    """(the answer, its frames, the reply's warnings and timings)."""
    asked = tuple(SubQuery(text, mode, 0, 9000, 1000) for text, mode in subqueries)  # type: ignore[arg-type]
    body = wire.pack(EvaluateBody(0, 9000, 1000, 5000, samples_max, asked, **options))
    own: Any = {4: SimpleNamespace(series=shard.part)}
    reply = query.run(own, Request("query.evaluate", (4,), time.monotonic() + 10, body))
    return wire.unpack(reply.body, EvaluateReply), reply


@pytest.mark.parametrize(
    ("text", "mode", "why"),
    [
        ("1", "value", "no vector"),
        ("m", "partial", "no aggregation"),
        ("m", "relabelled", "no aggregation"),
        ("m", "samples", "range selector"),
        ("(sum(m))", "samples", "range selector"),
        ("sum(m)", "newest", "by a selector"),
    ],
)
def test_what_is_no_sub_query_of_its_kind_is_refused(shard: Quiet, text: str, mode: str, why: str) -> None:
    with pytest.raises(Internal, match=why):
        evaluation._answer(
            SubQuery(text, mode, 0, 9000, 1000),  # type: ignore[arg-type]
            "arrays",
            context(shard),
        )


def context(shard: Quiet) -> Any:
    source = ShardSource([shard.part])
    return EvalContext(
        source,
        Symbols(shard.symbols),
        Grid(0, 9000, 1000),
        lookback_ms=5000,
        deadline=time.monotonic() + 10,
        samples_max=1000,
        cancelled=lambda: False,
    )


@pytest.mark.parametrize("at_once", [1, 2, 3, SERIES, 100])
def test_samples_are_read_in_batches_of_series(shard: Quiet, monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    monkeypatch.setattr(scan, "ASSUMED_INTERVAL_MS", 1_000_000)
    monkeypatch.setattr(scan, "READ_SERIES", at_once)
    monkeypatch.setattr(scan, "READ_SAMPLES", at_once)
    own = context(shard)
    checks: list[int] = []
    monkeypatch.setattr(type(own), "check", lambda self: checks.append(1))
    found = evaluation._samples(evaluation.parser.parse("m[1m]"), own.query_grid, own)
    assert isinstance(found, RangeVector)
    by_series = {}
    for row in range(found.labels.size):
        first, last = found.samples.offsets[row : row + 2].tolist()
        name = dict(found.labels.labels(row))["i"]
        by_series[name] = list(
            zip(
                found.samples.timestamps_ms[first:last].tolist(),
                found.samples.values[first:last].tolist(),
                strict=True,
            )
        )
    assert by_series == {str(i): [(1000 * t, float(i)) for t in range(1, i + 2)] for i in range(SERIES)}
    assert len(checks) >= -(-SERIES // at_once)
    assert own.samples_read == own.samples_held == own.samples_peak == sum(range(1, SERIES + 1))
    assert own.series_read == SERIES
    nothing = evaluation._samples(evaluation.parser.parse("nothing[1m]"), own.query_grid, own)
    assert (nothing.labels.size, len(nothing.samples.values)) == (0, 0)


def test_what_all_sub_queries_hold_counts_together(shard: Quiet) -> None:
    total = sum(range(1, SERIES + 1))
    answer, reply = evaluated(shard, ("m[1m]", "samples"), ("m[1m]", "samples"), samples_max=2 * total)
    assert [own.samples_read for own in answer.answers] == [total, total]
    assert answer.samples_peak == 2 * total
    assert reply.timings_ms["evaluate"] > 0 and reply.warnings == []
    with pytest.raises(TriptychError, match="samples"):
        evaluated(shard, ("m[1m]", "samples"), ("m[1m]", "samples"), samples_max=2 * total - 1)


def test_an_answer_is_held_while_the_next_is_made_and_what_it_was_made_of_is_not(shard: Quiet) -> None:
    """Values of 7 series at 10 steps, then a sum: its two planes at 10 steps of all series before, and of the last."""
    total = sum(range(1, SERIES + 1))
    held = 70 + 20 + 20
    answer, _ = evaluated(shard, ("m", "value"), ("sum(m)", "partial"), samples_max=held)
    assert answer.samples_peak == held
    assert [own.samples_read for own in answer.answers] == [total, total]
    with pytest.raises(TriptychError, match="samples"):
        evaluated(shard, ("m", "value"), ("sum(m)", "partial"), samples_max=held - 1)


def test_an_answer_says_which_shard_lacks_what(shard: Quiet) -> None:
    shard.seal()
    [block, *_] = shard.part.contents.layers.blocks
    shard.part.contents.set_aside(block, "it is wrong")
    _, reply = evaluated(shard, ("m", "value"))
    [text] = reply.warnings
    assert text.startswith("shard 4: block ") and "it is wrong" in text


@pytest.mark.parametrize(
    ("weight", "bytes_max", "form", "is_text"),
    [
        (0, 1 << 30, "matrix", True),
        (0, 1 << 30, "arrays", False),
        (1 << 30, 1 << 30, "matrix", False),
        (0, 10, "matrix", False),
    ],
)
def test_a_value_is_rendered_where_that_is_asked_for_and_worth_it(
    shard: Quiet, monkeypatch: pytest.MonkeyPatch, weight: int, bytes_max: int, form: str, is_text: bool
) -> None:
    monkeypatch.setattr(evaluation, "TEXT_WEIGHT_MIN", weight)
    monkeypatch.setattr(evaluation, "TEXT_BYTES_MAX", bytes_max)
    answer, _ = evaluated(shard, ("m", "value"), form=form)
    assert (answer.answers[0].shape.kind == "text") is is_text


@pytest.mark.parametrize("at_once", [1, 2, 3, SERIES, 100])
def test_newest_samples_are_those_of_the_instant_vector_with_their_own_times(
    shard: Quiet, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(scan, "READ_SERIES", at_once)
    monkeypatch.setattr(scan, "READ_SAMPLES", at_once)
    stale = np.array([STALE_NAN_BITS]).view(np.float64)[0]
    shard.write([(m(i="gone"), [(4000, 1.0), (5000, stale)]), (m(i="back"), [(3000, stale), (4000, 2.0)])])
    at_5_s = EvaluateBody(5500, 5500, 1, 3000, 1000, (SubQuery("m", "newest", 5500, 5500, 1),))
    own: Any = {4: SimpleNamespace(series=shard.part)}
    reply = query.run(own, Request("query.evaluate", (4,), time.monotonic() + 10, wire.pack(at_5_s)))
    shape = wire.unpack(reply.body, EvaluateReply).answers[0].shape
    value = exchange.decode(shape, reply.frames, Symbols())
    assert isinstance(value, RangeVector)
    assert value.samples.offsets.tolist() == list(range(value.labels.size + 1))
    newest = {
        dict(value.labels.labels(row))["i"]: (int(value.samples.timestamps_ms[row]), float(value.samples.values[row]))
        for row in range(value.labels.size)
    }
    # Series i has samples at 1 s … i + 1 s; the lookback is 3 s.
    expected = {str(i): (min(1000 * (i + 1), 5000), float(i)) for i in range(2, SERIES)}
    assert newest == expected | {"back": (4000, 2.0)}
