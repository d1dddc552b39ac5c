"""Queries, searches and followers of the log that are being served: who asks what, how far it is, and how one is
canceled.

A query passes through states, and the time it spends in each is kept: for the list of running queries, and for the log
of slow ones (coordinator/queries/slow.py).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Literal, TypeVar

import xxhash

from coordinator.fanout.calls import WorkerCall
from coordinator.queries.cost import Estimate
from coordinator.queries.evaluation import Query, WorkerShare
from coordinator.queries.gate import Place
from coordinator.queries.planner import Plan
from shared import tracing
from shared.errors import Canceled, TooHeavy, TriptychError
from shared.telemetry import REQUEST_ID

T = TypeVar("T")

State = Literal["planning", "waiting", "following", "running", "merging", "rendering", "sending"]
"""`waiting`: for a place at the gate; `following`: waiting for records of the log, and sending those that come;
`running`: in the workers. Answers begin to be written while they are rendered: `sending` is what is left of an answer
that is not sent in one piece."""

FOLLOW = "log.follow"
"""The kind of those that wait for records of the log. There may be thousands, for days."""
LISTED_MAX = 1000
"""Listed at once: with texts that is 1 MB. There may be ten times as many followers."""

TEXT_MAX = 1000
"""Characters of a query that are shown."""


class RunningQuery:
    """`id`: of its HTTP request. `entered`: the states so far, each with the time of `time.perf_counter()` at which it
    began. `query`, `plan`, `estimate`: of PromQL only, once they are known. `shares`, `samples_read`: once the workers
    have replied. `status`: of the answer.

    One is made for every query: what a light query does not need is an attribute of the class until it is set.
    """

    query: Query | None = None
    plan: Plan | None = None
    estimate: Estimate | None = None
    is_light: bool | None = None
    shares: Sequence[WorkerShare] = ()
    samples_read: int = 0
    is_canceled: bool = False
    status: int = 200
    error: str = ""

    def __init__(self, request_id: str, kind: str, text: str, client: str, task: asyncio.Future[Any]) -> None:
        self.id = request_id
        self.kind = kind
        self.text = text
        self.client = client
        self.task: asyncio.Future[Any] | None = task
        self.entered: list[tuple[State, float]] = [("planning", time.perf_counter())]

    @property
    def state(self) -> State:
        return self.entered[-1][0]

    @property
    def age_s(self) -> float:
        return time.perf_counter() - self.entered[0][1]

    @property
    def busy_s(self) -> float:
        """The age without the time in which there was nothing to do: no record to read."""
        return self.age_s - self.seconds().get("following", 0.0)

    def enter(self, state: State) -> None:
        """The query is in this state from now on."""
        self.entered.append((state, time.perf_counter()))

    def seconds(self) -> dict[State, float]:
        """The time in each state until now."""
        ends = [at for _, at in self.entered[1:]] + [time.perf_counter()]
        spent: dict[State, float] = {}
        for (state, at), end in zip(self.entered, ends, strict=True):
            spent[state] = spent.get(state, 0.0) + end - at
        return spent

    def phases(self) -> dict[str, float]:
        """What came before the workers were asked, in seconds, by the names of the HTTP interface."""
        spent = self.seconds()
        return {"planTime": spent.get("planning", 0.0), "queueTime": spent.get("waiting", 0.0)}

    def canceled(self) -> Canceled:
        """What its client is told when `RunningQueries.cancel` has ended it."""
        return Canceled(f"the query was canceled: DELETE /api/v1/queries/{self.id}")

    def trace(self) -> None:
        """A span for each state of the query, which is over."""
        now = time.perf_counter()
        ends = [at for _, at in self.entered[1:]] + [now]
        for (state, at), end in zip(self.entered, ends, strict=True):
            tracing.past(f"query {state}", now - at, now - end)

    def waits(self, attempt: Callable[[Place], Awaitable[T]]) -> Callable[[Place], Awaitable[T]]:
        """The query waits at the gate from now on; returns what the gate is to call, whose work `attempt` is."""
        self.enter("waiting")

        async def run(place: Place) -> T:
            self.is_light = place.is_light
            self.enter("running")
            try:
                return await attempt(place)
            except TooHeavy:
                self.enter("waiting")
                raise

        return run


class RunningQueries:
    """For the event loop's thread only. `ended` is called with each query when it is over; `shows_texts`: texts may be
    shown to whoever may list queries, and logged."""

    def __init__(self, *, shows_texts: bool, ended: Callable[[RunningQuery], None]) -> None:
        self._shows_texts = shows_texts
        self._ended = ended
        self._running: dict[RunningQuery, None] = {}

    def __len__(self) -> int:
        return len(self._running)

    def begin(self, request_id: str, kind: str, text: str, client: str, task: asyncio.Future[Any]) -> RunningQuery:
        """The query is listed until `end`; canceling `task` ends it."""
        running = RunningQuery(request_id, kind, text, client, task)
        self._running[running] = None
        return running

    def end(self, running: RunningQuery) -> None:
        """The query has been answered, or nobody waits for it any more."""
        del self._running[running]
        # An exception of the task refers to its frames, and would hold them until the collector runs.
        running.task = None
        if tracing.is_on():
            running.trace()
        self._ended(running)

    async def serve(self, kind: str, text: str, client: str, work: Callable[[RunningQuery], Awaitable[T]]) -> T:
        """What `work` returns; the query is listed meanwhile. Raises what `work` raises, Canceled when it was canceled
        by `cancel`."""
        task = asyncio.current_task()
        assert task is not None
        running = self.begin(REQUEST_ID.get(), kind, text, client, task)
        try:
            return await work(running)
        except asyncio.CancelledError:
            running.status = 499
            # If the client went away as well, nobody wants an answer.
            if running.is_canceled and not task.uncancel():
                running.status, running.error = Canceled.status, "canceled"
                raise running.canceled() from None
            raise
        except TriptychError as error:
            running.status, running.error = error.status, str(error)
            raise
        finally:
            self.end(running)

    def cancel(self, query_id: str) -> int:
        """Cancel all queries of the HTTP request with this id; returns how many there were."""
        canceled = [running for running in self._running if running.id == query_id and not running.is_canceled]
        for running in canceled:
            running.is_canceled = True
            assert running.task is not None
            running.task.cancel()
        return len(canceled)

    def listed(self, calls: Iterable[WorkerCall]) -> list[dict[str, Any]]:
        """What is known of each query, the oldest first, then of each follower; of LISTED_MAX at most. `calls`: all
        that workers have not answered."""
        by_request: dict[str, list[WorkerCall]] = {}
        for call in calls:
            by_request.setdefault(call.call.http_request, []).append(call)
        shown = sorted(self._running, key=lambda running: running.kind == FOLLOW)[:LISTED_MAX]
        return [self._told(running, by_request.get(running.id, ())) for running in shown]

    def _told(self, running: RunningQuery, calls: Iterable[WorkerCall]) -> dict[str, Any]:
        now = time.monotonic()
        workers = [
            {
                "worker": part.worker.name,
                "shards": list(part.shards),
                "seconds": round(now - part.call.asked_at, 6),
                "samples": part.samples,
            }
            for part in calls
        ]
        return {
            **described(running, shows_texts=self._shows_texts),
            "age": round(running.age_s, 6),
            "state": "canceled" if running.is_canceled else running.state,
            "samples": running.samples_read or sum(part["samples"] for part in workers),
            "workers": workers,
        }


def described(running: RunningQuery, *, shows_texts: bool) -> dict[str, Any]:
    """What does not change while the query is served."""
    text, estimate, query = running.text, running.estimate, running.query
    told: dict[str, Any] = {
        "id": running.id,
        "kind": running.kind,
        "query": text[:TEXT_MAX] if shows_texts else f"hidden:{xxhash.xxh64_hexdigest(text.encode())}",
        "client": running.client,
        "start": round(time.time() - running.age_s, 3),
    }
    if query is not None:
        grid = query.grid
        told["grid"] = {"start": grid.start_ms / 1000, "end": grid.end_ms / 1000, "step": grid.step_ms / 1000}
    if running.is_light is not None:
        told["place"] = "light" if running.is_light else "heavy"
    if estimate is not None:
        told["estimate"] = estimate.told()
    return told
