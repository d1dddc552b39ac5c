"""A worker's method: a function of shards and a request, and the lane it runs in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from shared.errors import DeadlineExceeded, TooHeavy
from shared.process.processor_time import ProcessorTime
from shared.telemetry import REQUEST_ID
from shared.wire import Reply, Request
from worker.shard import Shard

Lane = Literal["write", "read", "light", "heavy", "debug"]
Kind = Literal["write", "read", "query", "debug"]


@dataclass(frozen=True, slots=True)
class Method:
    """`run` is called with the request's shards that are ready. It raises errors of `shared.errors`, which reach the
    coordinator unchanged; `Reply.shard_errors` names the shards that it had to leave out. A lane limits how many
    requests run at once: a query runs in the light lane if its CPU time is bounded, else in the heavy one."""

    run: Callable[[Mapping[int, Shard], Request], Reply]
    kind: Kind

    def lane(self, request: Request) -> Lane:
        if self.kind == "query":
            return "light" if request.processor_s else "heavy"
        return self.kind


def begin(request: Request) -> None:
    """Begin the request's CPU-time account and log context: this thread runs its method from now on."""
    request.processor = ProcessorTime(request.processor_s)
    REQUEST_ID.set(request.http_request)


def require_time(request: Request, late: str = "") -> None:
    """Raise DeadlineExceeded if the request is past its deadline or cancelled, with the text `late` or one that names
    the method."""
    if request.time_left == 0:
        raise DeadlineExceeded(late or f"{request.method} was not done by its deadline")


def check(request: Request, late: str = "") -> None:
    """As `require_time`. Raise TooHeavy if a light request has used up its CPU time."""
    require_time(request, late)
    if request.processor.is_over():
        raise TooHeavy(f"{request.method} has had the processor time of a light request")
