"""A worker's method: a function of shards and a request, and the lane it runs in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from shared.errors import DeadlineExceeded, TooHeavy
from shared.processor_time import ProcessorTime
from shared.telemetry import REQUEST_ID
from shared.wire import Reply, Request
from worker.shard import Shard

Lane = Literal["write", "read", "light", "heavy", "debug"]
Kind = Literal["write", "read", "query", "debug"]


@dataclass(frozen=True, slots=True)
class Method:
    """`run` is called with those shards of the request that are ready. A lane limits how many requests run at once: a
    query is in the light one if its processor time is bounded, else in the heavy one. `run` raises errors of
    `shared.errors`, which reach the coordinator unchanged; `Reply.shard_errors` names the shards that it had to leave
    out."""

    run: Callable[[Mapping[int, Shard], Request], Reply]
    kind: Kind

    def lane(self, request: Request) -> Lane:
        if self.kind == "query":
            return "light" if request.processor_s else "heavy"
        return self.kind


def begin(request: Request) -> None:
    """This thread runs the request's method from now on."""
    request.processor = ProcessorTime(request.processor_s)
    REQUEST_ID.set(request.http_request)


def check(request: Request, late: str) -> None:
    """Raises DeadlineExceeded with the text `late` past the request's deadline or when it is cancelled, TooHeavy when a
    light request has used up its processor time."""
    if request.time_left == 0:
        raise DeadlineExceeded(late)
    if request.processor.is_over():
        raise TooHeavy(f"{request.method} has had the processor time of a light request")
