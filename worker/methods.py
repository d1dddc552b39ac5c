"""What a worker can be asked to do: every area's methods by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from shared.wire import Reply, Request

if TYPE_CHECKING:
    from worker.shard import Shard

Lane = Literal["write", "read", "query"]


@dataclass(frozen=True, slots=True)
class Method:
    """`run` is called in a thread of the lane's pool with those shards of the request that are ready here. It raises
    errors of `shared.errors`, which reach the coordinator as they are; shards it had to leave out are named in
    `Reply.shard_errors`."""

    run: Callable[[Mapping[int, Shard], Request], Reply]
    lane: Lane


def all_methods() -> dict[str, Method]:
    from worker.logs.methods import METHODS as LOG
    from worker.series.methods import METHODS as SERIES
    from worker.vectors.methods import METHODS as VECTORS

    return {**SERIES, **LOG, **VECTORS}
