"""The method `query.evaluate`: the sub-queries of a query, over the shards of this worker that take part."""

from __future__ import annotations

import time
from collections.abc import Mapping

from shared.labels import Symbols
from shared.messages.query import Evaluate
from shared.wire import Reply, Request, pack, unpack
from worker.methods.method import Method
from worker.queries.evaluation import answer
from worker.queries.source import ShardSource
from worker.shard import Shard


def run(shards: Mapping[int, Shard], request: Request) -> Reply:
    """`query.evaluate`. Raises what the engine raises; DeadlineExceeded when the time is up or nobody waits."""
    message = unpack(request.body, Evaluate)
    started = time.perf_counter()
    parts = [shard.series for shard in shards.values()]
    source = ShardSource(parts)
    evaluated, frames = answer(
        message,
        source,
        Symbols(parts[0].symbols),
        deadline=request.deadline,
        cancelled=lambda: request.cancelled,
    )
    elapsed_ms = (time.perf_counter() - started) * 1000
    warnings = [f"shard {number}: {text}" for number, own in zip(shards, source.damage(), strict=True) for text in own]
    return Reply(body=pack(evaluated), frames=frames, timings_ms={"evaluate": elapsed_ms}, warnings=warnings)


METHODS: dict[str, Method] = {"query.evaluate": Method(run, "query")}
