"""The state of the shards as the coordinator knows it, and the error for shards that are not available."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from proto import cluster_pb2
from shared import errors

SHARD_STATES = {
    cluster_pb2.ShardState.LOADING: "loading",
    cluster_pb2.ShardState.READY: "ready",
    cluster_pb2.ShardState.FAILED: "failed",
}


RATES = {"samples": "samples_in", "records": "records_in", "vectors": "vectors_in"}
"""Rate → the count whose growth per second it is."""
RATE_INTERVAL_S, RATE_INTERVALS = 5.0, 3
IN_MEMORY = ("head_bytes", "index_bytes", "log_bytes")


class Rates:
    """How fast the counts of a shard grow, over the last RATE_INTERVALS intervals and the current one."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, tuple[int, ...]]] = deque(maxlen=RATE_INTERVALS + 1)
        self._last: tuple[float, tuple[int, ...]] | None = None

    def note(self, counts: Mapping[str, int], now: float) -> None:
        """Note the current counts."""
        self._last = now, tuple(counts.get(name, 0) for name in RATES.values())
        if self._seen and any(new < old for new, old in zip(self._last[1], self._seen[-1][1], strict=True)):
            self._seen.clear()  # the shard was reopened, or a collection was dropped
        if not self._seen or now - self._seen[-1][0] >= RATE_INTERVAL_S:
            self._seen.append(self._last)

    def per_second(self) -> dict[str, float]:
        """Rate → its value; {} as long as nothing is known."""
        if self._last is None or self._last[0] <= self._seen[0][0]:
            return {}
        (began, before), (ended, after) = self._seen[0], self._last
        counts = zip(RATES, before, after, strict=True)
        return {name: round((new - old) / (ended - began), 3) for name, old, new in counts}


@dataclass(slots=True)
class Shard:
    """What the coordinator knows about one shard. `state`: "down", "loading", "ready" or "failed"."""

    number: int
    state: str = "down"
    detail: str = "no worker has registered it"
    worker: str | None = None
    counts: dict[str, int] = field(default_factory=dict)
    rates: Rates = field(default_factory=Rates)

    @property
    def memory_bytes(self) -> int:
        """The memory of its series and its log. The vectors are not included: they are in arrays that all shards of a
        worker share."""
        return sum(self.counts.get(name, 0) for name in IN_MEMORY)

    def why(self) -> str:
        """Why it is not ready."""
        if self.state == "loading":
            return f"{self.worker} is still loading it"
        if self.state == "failed":
            return f"{self.worker} could not load it: {self.detail}"
        return self.detail


def unavailable(missing: Mapping[int, str]) -> errors.Unavailable:
    """The error for missing shards. `missing`: shard → why."""
    texts = [f"shard {shard}: {why}" for shard, why in sorted(missing.items())]
    return errors.Unavailable("not available: " + "; ".join(texts))
