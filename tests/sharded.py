"""A query over several in-memory shards: plan, sub-queries, wire frames and merge as in a cluster, without sockets."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from numpy.typing import ArrayLike

from coordinator.queries.joining import AskAgain
from coordinator.queries.merge import Merged, Terms, evaluate_plan, message
from coordinator.queries.planner import Plan, plan
from loadtest.harness.memory_source import MemorySource
from shared.hashing import shard_of
from shared.histograms.batch import HistogramBatch
from shared.labels import Labels, Symbols, encode
from shared.messages.sub_queries import EvaluateBody, EvaluateReply
from shared.promql.model import Grid, Source
from shared.wire import Frame, pack, unpack
from worker.queries.evaluation import answer

Series = Mapping[Labels, Sequence[ArrayLike]]


def split(series: Series, shards: int, histograms: HistogramBatch | None = None) -> list[MemorySource]:
    """The series placed as the cluster places them. Values may refer to rows of `histograms`."""
    placed: list[dict[Labels, Sequence[ArrayLike]]] = [{} for _ in range(shards)]
    for labels, samples in series.items():
        placed[shard_of(encode(labels), shards)][labels] = samples
    return [MemorySource(part, histograms) for part in placed]


def evaluate_sharded(text: str, sources: Sequence[Source], grid: Grid, **terms: Any) -> Merged:
    """What the coordinator would conclude if every source were the shards of one worker."""
    conditions = Terms(
        grid,
        **{"lookback_ms": 300_000, "samples_max": 50_000_000, "deadline": time.monotonic() + 60, **terms},
    )
    try:
        return _evaluate(plan(text, grid), sources, conditions)
    except AskAgain:
        return _evaluate(plan(text, grid, relabel=False), sources, replace(conditions, form="arrays"))


def _evaluate(made: Plan, sources: Sequence[Source], terms: Terms) -> Merged:
    body = pack(message(made, terms))
    replies = [ask(source, body, terms) for source in sources] if made.leaves else []
    return evaluate_plan(made, replies, terms)


def ask(source: Source, body: bytes, terms: Terms) -> tuple[EvaluateReply, list[Frame]]:
    evaluated, frames = answer(
        unpack(body, EvaluateBody), source, Symbols(), deadline=terms.deadline, cancelled=terms.cancelled
    )
    return unpack(pack(evaluated), EvaluateReply), [bytes(frame) for frame in frames]
