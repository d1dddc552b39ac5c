"""What the coordinator knows about the shards, and the error of those that cannot answer."""

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

    def why(self) -> str:
        """Why it is not ready."""
        if self.state == "loading":
            return f"{self.worker} is still loading it"
        if self.state == "failed":
            return f"{self.worker} could not load it: {self.detail}"
        return self.detail


def unavailable(missing: Mapping[int, str]) -> errors.Unavailable:
    """`missing`: shard → why."""
    texts = [f"shard {shard}: {why}" for shard, why in sorted(missing.items())]
    return errors.Unavailable("not available: " + "; ".join(texts))
