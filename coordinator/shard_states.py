"""What the coordinator knows about each shard, from the heartbeats of the workers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from proto import cluster_pb2
from shared import errors

SHARD_STATES = {
    cluster_pb2.ShardState.LOADING: "loading",
    cluster_pb2.ShardState.READY: "ready",
    cluster_pb2.ShardState.FAILED: "failed",
}


@dataclass(slots=True)
class Shard:
    """What the coordinator knows about one shard. `state`: "down", "loading", "ready" or "failed"."""

    number: int
    state: str = "down"
    detail: str = "no worker has registered it"
    worker: str | None = None
    counts: dict[str, int] = field(default_factory=dict)


def reason_of(shard: Shard) -> str:
    """Why a shard that is not ready cannot answer."""
    if shard.state == "loading":
        return f"{shard.worker} is still loading it"
    if shard.state == "failed":
        return f"{shard.worker} could not load it: {shard.detail}"
    return shard.detail


def unavailable(missing: Mapping[int, str]) -> errors.Unavailable:
    """The error that names each missing shard and why it is missing."""
    texts = [f"shard {shard}: {why}" for shard, why in sorted(missing.items())]
    return errors.Unavailable("not available: " + "; ".join(texts))
