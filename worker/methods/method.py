"""A worker's method: a function of shards and a request, and the lane it runs in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from shared.wire import Reply, Request
from worker.shard import Shard

Lane = Literal["write", "read", "query"]


@dataclass(frozen=True, slots=True)
class Method:
    """`run` is called with those shards of the request that are ready; a lane limits how many of its methods run at
    once. `run` raises errors of `shared.errors`, which reach the coordinator unchanged; `Reply.shard_errors` names the
    shards that it had to leave out."""

    run: Callable[[Mapping[int, Shard], Request], Reply]
    lane: Lane
