"""One query from plan to finished value: asks the workers, merges their answers in a thread, and gathers times and
remarks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Event
from typing import Any, TypeVar

from coordinator.calls import FanOut, require_whole
from coordinator.links import Links
from coordinator.queries.merge import Merged, SeriesBecameEqual, Terms, evaluate_plan, message
from coordinator.queries.planner import Plan, plan
from shared.errors import DeadlineExceeded, Unavailable
from shared.messages.query import Evaluated, Form
from shared.promql.ast import ValueType
from shared.promql.engine.context import TIMED_OUT
from shared.promql.model import Annotations, Grid
from shared.promql.positions import line_column
from shared.wire import pack, unpack

T = TypeVar("T")

THREADS = 4
"""Merges and renderings at the same time: their hot parts run outside the interpreter lock."""
INLINE_TEXT_MAX = 500
"""Characters of a query that may be parsed on the event loop; longer ones are parsed in a thread."""
SHARDS_SHARE = 0.9
"""The share of a query's time that the workers get; the rest is for answering without those that are late."""
REMARKS_MAX = 10
"""Warnings, and infos, listed in an answer, as in Prometheus."""

_THREADS = ThreadPoolExecutor(THREADS, thread_name_prefix="query")


@dataclass(slots=True)
class Question:
    """A query and its parameters. `limit`: the most series that are shown, 0 for all; `asked_at` is of
    `time.perf_counter()`."""

    text: str
    grid: Grid
    is_range: bool
    limit: int
    lookback_ms: int
    samples_max: int
    timeout_ms: int
    partial_response: bool = True
    asked_at: float = field(default_factory=time.perf_counter)
    cancelled: Event = field(default_factory=Event)

    def terms(self, form: Form) -> Terms:
        spent_s = time.perf_counter() - self.asked_at
        deadline = time.monotonic() + self.timeout_ms / 1000 - spent_s
        return Terms(self.grid, self.lookback_ms, self.samples_max, deadline, self.cancelled.is_set, form)

    def form(self, query_plan: Plan) -> Form:
        """The form in which workers may send the answer's series. Text cannot be sorted any other way later, and would
        mostly be wasted where not all series are shown; then arrays are asked for."""
        if self.limit or (query_plan.keeps_order and not self.is_range):
            return "arrays"
        return "matrix" if self.is_range or query_plan.type is ValueType.MATRIX else "vector"


@dataclass(slots=True)
class Conclusion:
    """A query's value, with the warnings, times and counts that go with it. `shards`: worker, shards, times and samples
    of each answer."""

    plan: Plan
    merged: Merged
    warnings: list[str]
    shards: list[dict[str, Any]]
    timings_s: dict[str, float]


async def planned(question: Question) -> Plan:
    """Raises ParseError, BadData, NotExecutable."""
    if len(question.text) <= INLINE_TEXT_MAX:
        return plan(question.text, question.grid)
    return await in_thread(lambda: plan(question.text, question.grid), question)


async def conclude(
    question: Question, query_plan: Plan, links: Links, then: Callable[[Conclusion], T], *, careful: bool = False
) -> T:
    """Ask the workers and evaluate; returns what `then` makes of the conclusion, called in the same thread.

    `careful`: workers do nothing that relies on their series being different from those of other workers.

    Raises NotExecutable, BadData; DeadlineExceeded when the timeout has elapsed; Unavailable when no shard answers, or
    one does not and the question asks for all.
    """
    terms = question.terms("arrays" if careful else question.form(query_plan))
    prepared_at = time.perf_counter()
    fan_out = await _ask(question, query_plan, terms, links)
    answered_at = time.perf_counter()

    def merge() -> T:
        started_at = time.perf_counter()
        merged, shards = _merge(query_plan, fan_out, terms)
        timings = {
            "queryPreparationTime": prepared_at - question.asked_at,
            "shardsTime": answered_at - prepared_at,
            "execQueueTime": started_at - answered_at,
            "mergeTime": time.perf_counter() - started_at,
        }
        return then(Conclusion(query_plan, merged, fan_out.warnings(), shards, timings))

    try:
        return await in_thread(merge, question)
    except SeriesBecameEqual:
        query_plan = await in_thread(lambda: plan(question.text, question.grid, relabel=False), question)
        return await conclude(question, query_plan, links, then, careful=True)


async def _ask(question: Question, query_plan: Plan, terms: Terms, links: Links) -> FanOut:
    if not query_plan.leaves:
        return FanOut([], {})
    left_s = terms.deadline - time.monotonic()
    if left_s <= 0:
        raise DeadlineExceeded(TIMED_OUT)
    # Workers count the time left in whole milliseconds and may notice its end that much earlier.
    give_up_at = time.monotonic() + left_s * SHARDS_SHARE - 0.01
    try:
        fan_out = await links.fan_out(
            "query.evaluate", body=pack(message(query_plan, terms)), timeout_s=left_s * SHARDS_SHARE
        )
    except Unavailable as error:
        if time.monotonic() >= give_up_at:
            raise DeadlineExceeded(TIMED_OUT) from error
        raise
    if not question.partial_response:
        require_whole(fan_out.warnings())
    return fan_out


def _merge(query_plan: Plan, fan_out: FanOut, terms: Terms) -> tuple[Merged, list[dict[str, Any]]]:
    replies, shards = [], []
    for reply in fan_out.replies:
        evaluated = unpack(reply.message.body, Evaluated)
        replies.append((evaluated, reply.message.frames))
        shards.append(
            {
                "worker": reply.worker,
                "shards": list(reply.shards),
                "elapsedTime": _seconds(reply.elapsed_ms),
                "timings": {name: _seconds(ms) for name, ms in reply.message.timings_ms.items()},
                "samples": sum(part.samples_read for part in evaluated.answers),
                "subqueries": [
                    {"samples": part.samples_read, "evalTime": _seconds(part.elapsed_ms), "form": part.shape.kind}
                    for part in evaluated.answers
                ],
            }
        )
    return evaluate_plan(query_plan, replies, terms), shards


def _seconds(ms: float) -> float:
    return round(ms / 1000, 6)


async def in_thread(call: Callable[[], T], question: Question) -> T:
    """The result of `call`, run in a thread. If the wait is cancelled, the evaluation stops when it next checks its
    deadline."""
    try:
        return await asyncio.get_running_loop().run_in_executor(_THREADS, call)
    except asyncio.CancelledError:
        question.cancelled.set()
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
