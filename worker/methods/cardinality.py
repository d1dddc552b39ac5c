"""The worker's method for cardinality: its number of series by metric, label and label value."""

from __future__ import annotations

from collections.abc import Mapping

from shared.errors import TooHeavy
from shared.messages.cardinality import CardinalityBody
from shared.wire import Reply, Request, pack, unpack
from worker.methods.method import Method, check
from worker.series.cardinality import cardinality
from worker.shard import Shard

LIGHT_SERIES_MAX = 5_000
"""A light request cannot count more series than this: each takes some 2 µs, and a sort cannot check the clock."""


def _cardinality(shards: Mapping[int, Shard], request: Request) -> Reply:
    body = unpack(request.body, CardinalityBody)
    parts = [shard.series for shard in shards.values()]
    if request.processor_s and sum(part.series for part in parts) > LIGHT_SERIES_MAX:
        raise TooHeavy(f"{request.method} has more series than a light request")
    late = f"{request.method} ran out of time; narrow it with match[]"
    reply, hashes = cardinality(parts, body, lambda: check(request, late))
    warnings = []
    if body.is_bounded:
        for number, part in zip(shards, parts, strict=True):
            warnings += [f"shard {number}: {text}" for text in part.damage(body.start_ms, body.end_ms)]
    return Reply(pack(reply), [hashes.data] if len(hashes) else [], warnings=warnings)


METHODS: dict[str, Method] = {"series.cardinality": Method(_cardinality, "query")}
