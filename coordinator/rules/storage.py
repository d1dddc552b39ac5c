"""How rules read and write: their queries take the path of all queries, and their results the path of remote write.

All rules together are one client at the gate (coordinator/queries/gate.py), so other clients take turns with them. They
ask for complete answers: a rule whose query lacks a shard would fire or resolve alerts by mistake.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from functools import partial

from coordinator.fanout.links import Links
from coordinator.headers.request_ids import new_id
from coordinator.limits.pressure import Level, Pressure
from coordinator.queries.answers import answered
from coordinator.queries.cost import Costs
from coordinator.queries.evaluation import (
    Query,
    Replies,
    ask,
    learn,
    learn_whereabouts,
    made,
    merge,
    planned,
    require_fitting,
)
from coordinator.queries.gate import Gate, Place
from coordinator.queries.joining import AskAgain, Joined
from coordinator.queries.planner import Plan
from coordinator.queries.running import RunningQueries, RunningQuery
from coordinator.queries.whereabouts import Whereabouts
from coordinator.rules.alerts import Vector
from coordinator.rules.together import joined, merged_apart
from coordinator.rules.vectors import vector_of
from coordinator.series import remote_write
from coordinator.series.groups import SampleWrites
from coordinator.series.own_samples import STALE, body, sample
from coordinator.series.remote_write import Limits
from coordinator.series.split_request import SplitRequest
from shared import labels as label_sets
from shared.errors import BadData, Canceled, NotExecutable, Overloaded, TriptychError
from shared.labels import Labels
from shared.promql.ast import ValueType
from shared.promql.model import Grid
from shared.settings import Settings
from shared.telemetry import REQUEST_ID

CLIENT = "rules"
"""The name of rules in the list of running queries."""
LEAVES_TOGETHER_MAX = 16
"""The limit on the sub-queries of rules that are sent together: some milliseconds of a worker, as light queries may
take."""
PLANS_MAX = 20_000
"""Rules have a cache of plans of their own, because so many plans would drive those of dashboards out of the common
cache."""
ENCODED_MAX = 200_000
"""Label sets whose canonical bytes are remembered, some 300 bytes each."""
WRITTEN_AT_ONCE = 20_000
"""Samples in one message to the workers, some megabytes."""
INLINE_SERIES = 200
"""More samples are encoded in a thread."""


class RuleStorage:
    """For the event loop's thread only."""

    def __init__(
        self,
        settings: Settings,
        links: Links,
        gate: Gate,
        costs: Costs,
        whereabouts: Whereabouts,
        running: RunningQueries,
        samples: SampleWrites,
        pressure: Pressure,
    ) -> None:
        self._settings = settings
        self._links = links
        self._gate = gate
        self._costs = costs
        self._whereabouts = whereabouts
        self._running = running
        self._samples = samples
        self._pressure = pressure
        self._plans: OrderedDict[str, Plan] = OrderedDict()
        self._encoded: dict[Labels, bytes] = {}

    # Reading

    async def query_all(self, exprs: Sequence[str], time_ms: int) -> Sequence[Vector | TriptychError]:
        """The result or the error of `query` for each of these. Light queries are sent together: a message, its reply
        and the wake-ups of processes cost more than most rules read."""
        if len(exprs) > 1:
            try:
                together = await self._together(exprs, time_ms)
            except Canceled as error:
                return [error] * len(exprs)  # whoever canceled them does not want them asked again at once
            except (TriptychError, AskAgain):
                together = None  # each alone says what is wrong with it
            if together is not None:
                return together
        return await asyncio.gather(*(self._alone(expr, time_ms) for expr in exprs))

    async def _alone(self, expr: str, time_ms: int) -> Vector | TriptychError:
        try:
            return await self.query(expr, time_ms)
        except TriptychError as error:
            return error

    async def _together(self, exprs: Sequence[str], time_ms: int) -> Sequence[Vector | TriptychError] | None:
        """The results of one message for all; None if they should be sent one by one, since one of them may not be
        light."""
        plans = [await self._plan(self._query(expr, time_ms)) for expr in exprs]
        plan = joined(plans)
        workers = self._links.worker_count()
        estimate = self._costs.estimate(plan.demands)
        if len(plan.leaves) > LEAVES_TOGETHER_MAX or not estimate.is_light(workers):
            return None
        query = self._query("; ".join(exprs), time_ms)

        async def served(running: RunningQuery) -> Sequence[Vector | TriptychError]:
            running.query, running.plan, running.estimate = query, plan, estimate

            async def attempt(place: Place) -> Sequence[Vector | TriptychError]:
                replies = await ask(query, plan, self._links, place, self._whereabouts, careful=True)

                def work() -> Sequence[Vector | TriptychError]:
                    vectors, conclusion = merged_apart(plans, replies)
                    running.shares = conclusion.shares
                    learn(self._costs, conclusion.plan, conclusion.shares)
                    return vectors

                running.enter("merging")
                vectors, _ = await made(work, query, replies)
                learn_whereabouts(self._whereabouts, replies, running.shares)
                return vectors

            return await self._gate.run(CLIENT, query.identity(), query.deadline, running.waits(attempt), is_light=True)

        REQUEST_ID.set(new_id())
        return await self._running.serve("rule", query.text, CLIENT, served)

    def _query(self, expr: str, time_ms: int, lookback_ms: int | None = None) -> Query:
        settings = self._settings
        return Query(
            expr,
            Grid(time_ms, time_ms),
            is_range=False,
            limit=0,
            lookback_ms=settings.lookback_ms if lookback_ms is None else lookback_ms,
            samples_max=settings.query_samples_max,
            timeout_ms=settings.query_timeout_ms,
            partial_response=False,
            bytes_max=settings.query_bytes_max,
        )

    async def query(self, expr: str, time_ms: int, lookback_ms: int | None = None) -> Vector:
        """The vector at this time; a scalar is a series without labels. `lookback_ms`: for how long the query sees a
        sample of a series that has not ended, if it is not the time of the settings. Raises TriptychError."""
        REQUEST_ID.set(new_id())
        query = self._query(expr, time_ms, lookback_ms)
        return await self._running.serve("rule", expr, CLIENT, partial(self._served, query))

    async def _served(self, query: Query, running: RunningQuery) -> Vector:
        running.query = query
        plan = await self._plan(query)
        if plan.type not in (ValueType.VECTOR, ValueType.SCALAR):
            raise NotExecutable(f"the result of a rule must be a vector or a scalar, this one is a {plan.type}")
        workers = self._links.worker_count()
        require_fitting(query, plan, workers)
        estimate = self._costs.estimate(plan.demands)
        running.plan, running.estimate = plan, estimate

        async def merged(replies: Replies) -> Vector:
            def work() -> Vector:
                conclusion = merge(query, replies)
                running.shares, running.samples_read = conclusion.shares, conclusion.merged.samples_read
                learn(self._costs, conclusion.plan, conclusion.shares)
                value = conclusion.merged.value
                assert not isinstance(value, Joined)  # arrays were asked for
                return vector_of(value)

            running.enter("merging")
            vector, _ = await made(work, query, replies)
            learn_whereabouts(self._whereabouts, replies, running.shares)
            return vector

        async def attempt(place: Place) -> Vector:
            # `careful`: the answer is wanted as arrays.
            return await answered(query, running, plan, self._links, place, merged, self._whereabouts, careful=True)

        return await self._gate.run(
            CLIENT,
            query.identity(),
            query.deadline,
            running.waits(attempt),
            is_light=estimate.is_light(workers),
            is_heavy=estimate.is_heavy(workers),
        )

    async def _plan(self, query: Query) -> Plan:
        plan = self._plans.get(query.text)
        if plan is None:
            plan = await planned(query)
            if len(self._plans) >= PLANS_MAX:
                self._plans.popitem(last=False)
            self._plans[query.text] = plan
        return plan

    # Writing

    async def write(self, time_ms: int, series: Vector, ended: Sequence[Labels]) -> None:
        """Return when the samples and the ends of series are stored. Raises BadData when all valid ones are stored and
        others are not, and other TriptychErrors when some may not be stored."""
        if self._pressure.memory_level >= Level.WRITES:
            raise Overloaded("memory is short, and writes are refused; the result was not stored").because("memory")
        pieces: list[tuple[Vector, Sequence[Labels]]] = [(series, ended)]
        if len(series) + len(ended) > WRITTEN_AT_ONCE:
            step = WRITTEN_AT_ONCE
            pieces = [(series[first : first + step], ()) for first in range(0, len(series), step)]
            pieces += [((), ended[first : first + step]) for first in range(0, len(ended), step)]
        refused_count = 0
        refused: list[str] = []
        for some_series, some_ended in pieces:
            count, texts = await self._write_some(time_ms, some_series, some_ended)
            refused_count += count
            refused += texts[: 3 - len(refused)]
        if refused_count:
            raise BadData(f"{refused_count} series of the result were not stored: {'; '.join(refused)}")

    async def _write_some(self, time_ms: int, series: Vector, ended: Sequence[Labels]) -> tuple[int, Sequence[str]]:
        """(how many series are refused, why)."""
        if len(series) + len(ended) > INLINE_SERIES:
            split_request = await asyncio.to_thread(self._split, time_ms, series, ended)
        else:
            split_request = self._split(time_ms, series, ended)
        if split_request.parts:
            await self._samples.write(split_request.parts)
        return split_request.refused_count, split_request.refused

    def _split(self, time_ms: int, series: Vector, ended: Sequence[Labels]) -> SplitRequest:
        messages = [self._canonical(labels) + sample(value, time_ms) for labels, value in series]
        end = sample(STALE, time_ms)
        messages += [self._canonical(labels) + end for labels in ended]
        settings = self._settings
        return remote_write.split(body(messages), settings.shard_count(), Limits.of(settings))

    def _canonical(self, labels: Labels) -> bytes:
        label_bytes = self._encoded.get(labels)
        if label_bytes is None:
            if len(self._encoded) >= ENCODED_MAX:
                self._encoded.clear()  # those in use are back after one evaluation
            label_bytes = self._encoded[labels] = label_sets.encode(labels)
        return label_bytes
