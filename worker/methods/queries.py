"""The method `query.evaluate`: evaluates the sub-queries of a query over this worker's shards in the request."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial

from shared.labels import Symbols
from shared.messages.sub_queries import EvaluateBody, ShardRead
from shared.promql.engine.context import TIMED_OUT
from shared.wire import Reply, Request, pack, unpack
from worker.methods.method import Method, check
from worker.queries.evaluation import answer
from worker.queries.source import ShardSource
from worker.shard import Shard


def run(shards: Mapping[int, Shard], request: Request) -> Reply:
    """Evaluate the sub-queries. Raises what the engine raises: TooHeavy if a light query needs more time, and
    DeadlineExceeded if the time is up or the request is cancelled."""
    message = unpack(request.body, EvaluateBody)
    started = time.perf_counter()
    parts = [shard.series for shard in shards.values()]
    source = ShardSource(parts, partial(check, request, TIMED_OUT))
    evaluated, frames = answer(
        message,
        source,
        Symbols(parts[0].symbols),
        deadline=request.deadline,
        cancelled=lambda: request.cancelled,
        processor=request.processor,
        counted=request.count,
        has_matched=source.has_matched,
        shard_reads=partial(_shard_reads, shards, source),
    )
    elapsed_ms = (time.perf_counter() - started) * 1000
    damage = zip(shards, source.damage(), strict=True)
    warnings = [f"shard {number}: {text}" for number, texts in damage for text in texts]
    return Reply(body=pack(evaluated), frames=frames, timings_ms={"evaluate": elapsed_ms}, warnings=warnings)


def _shard_reads(shards: Mapping[int, Shard], source: ShardSource) -> tuple[ShardRead, ...]:
    return tuple(
        ShardRead(number, part.series, part.samples, part.seconds * 1000)
        for number, part in zip(shards, source.take_reads(), strict=True)
    )


METHODS: dict[str, Method] = {"query.evaluate": Method(run, "query")}
