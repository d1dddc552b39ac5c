"""One query from plan to finished value, in three steps: plan it, ask the workers, merge what they reply."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from coordinator.fanout.calls import FanOut, WorkerReply, require_whole
from coordinator.fanout.links import Links
from coordinator.queries.cost import Costs, require_fits
from coordinator.queries.gate import HEAVY_PLACES_MAX, LIGHT, Place
from coordinator.queries.merge import Merged, Terms, evaluate_plan, message
from coordinator.queries.planner import Plan, plan
from coordinator.queries.quick import QuickQueries
from coordinator.queries.whereabouts import Asked, IndexVersions, Whereabouts
from shared.errors import DeadlineExceeded, Unavailable
from shared.messages.sub_queries import EvaluateReply, Form
from shared.process.array_memory import Account
from shared.promql.ast import ValueType
from shared.promql.engine.context import TIMED_OUT
from shared.promql.engine.memory import account_of, bounded
from shared.promql.model import Annotations, Grid
from shared.promql.positions import line_column
from shared.promql.regex import is_instant
from shared.wire import pack, size_of, unpack

T = TypeVar("T")

LIGHT_THREADS = 4
"""Merges and renderings at the same time: their hot parts run outside the interpreter lock."""
INLINE_TEXT_MAX = 500
"""Characters of a query that may be parsed on the event loop. Longer ones, and those with a regular expression that may
take long to compile, are parsed in a thread."""
SHARDS_SHARE = 0.9
"""The share of a query's time that the workers get; the rest is for answering without those that are late."""
REMARKS_MAX = 10
"""Warnings, and infos, listed in an answer, as in Prometheus."""

COORDINATOR_SHARE = 0.5
"""The share of a query's memory that it may have in the coordinator; the workers have the rest in equal parts."""

_QUICK = QuickQueries()
_LIGHT_THREADS = ThreadPoolExecutor(LIGHT_THREADS, thread_name_prefix="query")
_HEAVY_THREADS = ThreadPoolExecutor(HEAVY_PLACES_MAX, thread_name_prefix="heavy-query")


@dataclass(slots=True)
class Query:
    """A query and its parameters. `limit`: the most series that are shown, 0 for all; `samples_max`: samples held
    at a time in one process; `bytes_max`: memory in all processes together; `explains`: the time of each
    node is taken; `is_arrow`: the answer is to be an Arrow stream; `asked_at` is of `time.perf_counter()`."""

    text: str
    grid: Grid
    is_range: bool
    limit: int
    lookback_ms: int
    samples_max: int
    timeout_ms: int
    partial_response: bool = True
    bytes_max: int = 512 << 20
    explains: bool = False
    is_arrow: bool = False
    asked_at: float = field(default_factory=time.perf_counter)
    is_cancelled: bool = False

    @property
    def deadline(self) -> float:
        """When the timeout has elapsed, of `time.monotonic()`."""
        spent_s = time.perf_counter() - self.asked_at
        return time.monotonic() + self.timeout_ms / 1000 - spent_s

    def identity(self) -> int:
        """The same for the same query at another time, and as good as never for another one. The length and the step of
        the grid belong to it, since `range()` and `step()` depend on them. A number, because it is remembered, and
        texts may be long."""
        grid = self.grid
        return hash((self.text, grid.end_ms - grid.start_ms, grid.step_ms, self.is_range, self.is_arrow))

    def terms(self, form: Form, place: Place, workers: int, *, is_alone: bool = False) -> Terms:
        return Terms(
            self.grid,
            self.lookback_ms,
            self.samples_max,
            self.deadline,
            lambda: self.is_cancelled,
            form,
            place.processor_s,
            int(self.bytes_max * (1 - COORDINATOR_SHARE)) // max(workers, 1),
            is_alone,
            self.explains,
        )

    def form(self, query_plan: Plan) -> Form:
        """The form in which workers may send the answer's series. Text cannot be sorted any other way later, and would
        mostly be wasted where not all series are shown; then arrays are asked for."""
        if self.is_arrow or self.limit or (query_plan.keeps_order and not self.is_range):
            return "arrays"
        return "matrix" if self.is_range or query_plan.type is ValueType.MATRIX else "vector"


@dataclass(frozen=True, slots=True)
class Replies:
    """What the workers replied to a query, asked from this place; the times are of `time.perf_counter()`.
    `index_versions`: of the workers' indexes when they were asked."""

    plan: Plan
    terms: Terms
    place: Place
    fan_out: FanOut
    asked_at: float
    replied_at: float
    index_versions: IndexVersions = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WorkerShare:
    """What one worker did for a query, and how long that took."""

    worker: str
    shards: tuple[int, ...]
    elapsed_ms: float
    timings_ms: Mapping[str, float]
    evaluated: EvaluateReply

    @classmethod
    def of(cls, reply: WorkerReply) -> WorkerShare:
        message = reply.message
        evaluated = unpack(message.body, EvaluateReply)
        return cls(reply.worker, tuple(reply.shards), reply.elapsed_ms, message.timings_ms, evaluated)


@dataclass(slots=True)
class Conclusion:
    """A query's value, with the warnings, times and counts that go with it."""

    plan: Plan
    merged: Merged
    warnings: list[str]
    shares: list[WorkerShare]
    timings_s: dict[str, float]


async def planned(query: Query, *, relabel: bool = True) -> Plan:
    """The plan; without `relabel`, workers are asked for series before labels change. Raises ParseError, BadData,
    NotExecutable."""
    if is_quickly_parsed(query.text):
        return plan(query.text, query.grid, relabel=relabel)
    return await in_thread(lambda: plan(query.text, query.grid, relabel=relabel), query, LIGHT)


def is_quickly_parsed(text: str) -> bool:
    """Whether the event loop may parse the query."""
    return len(text) <= INLINE_TEXT_MAX and is_instant(text)


async def ask(
    query: Query,
    query_plan: Plan,
    links: Links,
    place: Place,
    whereabouts: Whereabouts | None = None,
    *,
    careful: bool = False,
) -> Replies:
    """Ask the workers for the leaves of the plan; `whereabouts`: only those that may have series.

    `careful`: workers do nothing that relies on their series being different from those of other workers.

    Raises TooHeavy when a light query needs more; DeadlineExceeded when the timeout has elapsed; Unavailable when no
    shard answers, or one does not and the query asks for all.
    """
    form = "arrays" if careful else query.form(query_plan)
    asked = Asked() if whereabouts is None else whereabouts.asked(query_plan.demands, links)
    workers = links.worker_count()
    terms = query.terms(form, place, workers, is_alone=workers == 1 or len(asked.versions) == 1)
    asked_at = time.perf_counter()
    fan_out = await _ask(query, query_plan, terms, links, asked.shards)
    return Replies(query_plan, terms, place, fan_out, asked_at, time.perf_counter(), asked.versions)


def merge(query: Query, replies: Replies) -> Conclusion:
    """Evaluate the plan over the workers' replies: work for a thread, see `in_thread`.

    Raises NotExecutable, BadData, DeadlineExceeded; AskAgain when the workers must be asked carefully, with a
    plan that does not relabel.
    """
    started_at = time.perf_counter()
    shares = [WorkerShare.of(reply) for reply in replies.fan_out.replies]
    frames = [reply.message.frames for reply in replies.fan_out.replies]
    answers = [(share.evaluated, own) for share, own in zip(shares, frames, strict=True)]
    merged = evaluate_plan(replies.plan, answers, replies.terms)
    timings = {
        "queryPreparationTime": replies.asked_at - query.asked_at,
        "shardsTime": replies.replied_at - replies.asked_at,
        "execQueueTime": started_at - replies.replied_at,
        "mergeTime": time.perf_counter() - started_at,
    }
    return Conclusion(replies.plan, merged, replies.fan_out.warnings(), shares, timings)


def require_fitting(query: Query, query_plan: Plan, workers: int) -> None:
    """Raises NotExecutable when the steps of the query alone need more memory than it may have."""
    own_bytes = int(query.bytes_max * COORDINATOR_SHARE)
    require_fits(query_plan.steps_most.own, own_bytes, "the coordinator")
    require_fits(query_plan.steps_most.sent, (query.bytes_max - own_bytes) // max(workers, 1), "one worker")


def learn_whereabouts(whereabouts: Whereabouts, replies: Replies, shares: Sequence[WorkerShare]) -> None:
    """Note which workers have series of the query's leaves, unless something is missing from what they replied."""
    if not replies.fan_out.warnings():
        for share in shares:
            whereabouts.learn(replies.plan.demands, replies.index_versions, share.worker, share.evaluated)


def learn(costs: Costs, query_plan: Plan, shares: Sequence[WorkerShare]) -> None:
    """Note what the workers say of the selections of the query's leaves."""
    for index, demand in enumerate(query_plan.demands):
        parts = [share.evaluated.answers[index] for share in shares]
        series, samples, buckets = (
            sum(getattr(part, name) for part in parts) for name in ("series_read", "samples_read", "buckets_read")
        )
        costs.learn(demand, series, samples, buckets)


async def _ask(
    query: Query, query_plan: Plan, terms: Terms, links: Links, shards: Sequence[int] | None = None
) -> FanOut:
    if not query_plan.leaves:
        return FanOut([], {})
    left_s = terms.deadline - time.monotonic()
    if left_s <= 0:
        raise DeadlineExceeded(TIMED_OUT)
    # Workers count the time left in whole milliseconds and may notice its end that much earlier.
    give_up_at = time.monotonic() + left_s * SHARDS_SHARE - 0.01
    try:
        fan_out = await links.fan_out(
            "query.evaluate",
            shards=shards,
            body=pack(message(query_plan, terms)),
            timeout_s=left_s * SHARDS_SHARE,
            processor_s=terms.processor_s,
        )
    except Unavailable as error:
        if time.monotonic() >= give_up_at:
            raise DeadlineExceeded(TIMED_OUT) from error
        raise
    if not query.partial_response:
        require_whole(fan_out.warnings())
    return fan_out


def coordinator_account(query: Query, place: Place) -> Account:
    """For what a query holds in the coordinator."""
    return account_of(int(query.bytes_max * COORDINATOR_SHARE), is_light=place.is_light)


async def made(call: Callable[[], T], query: Query, replies: Replies) -> tuple[T, Account | None]:
    """The result of `call`, which makes the answer, and the account of what it holds: in a thread, or on the event loop
    and without an account if that was quick the last time and the query runs as a light one, whose processor time is
    bounded. Raises what `call` raises, NotExecutable when there is too little in the account, or TooHeavy."""
    received_bytes = sum(size_of(frame) for reply in replies.fan_out.replies for frame in reply.message.frames)
    identity = query.identity()
    account = None
    try:
        if replies.place.is_light and _QUICK.has(identity, received_bytes):
            result, seconds = _timed(call)
        else:
            account = coordinator_account(query, replies.place)
            in_account = counted(call, account, received_bytes, replies.place)
            result, seconds = await in_thread(partial(_timed, in_account), query, replies.place)
    except Exception:
        _QUICK.failed(identity)
        raise
    _QUICK.took(identity, received_bytes, seconds)
    return result, account


def is_quick(query: Query) -> bool:
    """Whether making the query's answer was quick the last time."""
    return _QUICK.has(query.identity(), 0)


def counted(call: Callable[[], T], account: Account, received_bytes: int, place: Place) -> Callable[[], T]:
    """`call`, with what the workers replied and all arrays it makes counted in the account. It raises NotExecutable
    when there is too little, or TooHeavy."""

    def run() -> T:
        with bounded(account, is_light=place.is_light):
            account.hold(received_bytes)
            return call()

    return run


def _timed(call: Callable[[], T]) -> tuple[T, float]:
    """The result of the call, and how many seconds of processor time it took: on a busy machine, a thread waits longer
    than it works."""
    started_at = time.thread_time()
    return call(), time.thread_time() - started_at


def threads_of(place: Place) -> ThreadPoolExecutor:
    """The threads for requests with such a place."""
    return _LIGHT_THREADS if place.is_light else _HEAVY_THREADS


async def in_thread(call: Callable[[], T], query: Query, place: Place) -> T:
    """The result of `call`, run in a thread. If the wait is cancelled, the evaluation stops when it next checks its
    deadline."""
    try:
        return await asyncio.get_running_loop().run_in_executor(threads_of(place), copy_context().run, call)
    except asyncio.CancelledError:
        query.is_cancelled = True
        raise


def remark_texts(annotations: Annotations, level: str, text: str) -> list[str]:
    """The warnings or infos of a query with their positions in its text: `… (1:7)`."""
    remarks = [remark for remark in annotations.items.values() if remark.level == level]
    remarks.sort(key=lambda remark: (-1 if remark.offset is None else remark.offset, remark.text))
    texts = []
    for remark in remarks[:REMARKS_MAX]:
        at = "" if remark.offset is None else " ({}:{})".format(*line_column(text, remark.offset))
        texts.append(remark.text + at)
    if len(remarks) > REMARKS_MAX:
        texts.append(f"{len(remarks) - REMARKS_MAX} more {level} annotations omitted")
    return texts
