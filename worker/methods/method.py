"""What a method of a worker is: a function over shards, and the lane it runs in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from shared.wire import Reply, Request
from worker.shard import Shard

Lane = Literal["write", "read", "query"]


@dataclass(frozen=True, slots=True)
class Method:
    """`run` is called in a thread of the lane's pool with those shards of the request that are ready here. It raises
    errors of `shared.errors`, which reach the coordinator as they are; shards it had to leave out are named in
    `Reply.shard_errors`."""

    run: Callable[[Mapping[int, Shard], Request], Reply]
    lane: Lane
