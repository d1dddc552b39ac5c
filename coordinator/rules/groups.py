"""One group of rules: its rules are evaluated in order, and their results are stored.

Consecutive rules of which none reads what another one writes are evaluated at once, and their results are written
together. The result is the same as one after another, with fewer messages and wake-ups of processes.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from coordinator.rules import alerts as alerting
from coordinator.rules.alerts import Alert, Alerts, TooManyAlerts, Vector
from coordinator.rules.rule_files import GroupDefinition, RuleDefinition
from coordinator.rules.templates import Sample, Surroundings
from shared.errors import BadData, Internal, NotExecutable, TriptychError
from shared.labels import METRIC_NAME, Labels
from shared.telemetry import event

BATCH_RULES = 6
"""The limit on the rules whose queries are sent together."""
INLINE_ALERTS, INLINE_CHARS = 5, 1_000
"""More alerts, or longer templates, are expanded in a thread."""
SLOW_WORDS = ("range", "query", "args")
"""Templates with these are expanded in a thread as well: loops, queries, and maps that contain others."""
RESTORING_EVALUATIONS, RESTORING_MS = 2, 120_000
"""A new alert is looked up among those from before the start until so many evaluations of its rule have succeeded and
so much time has passed: targets may be scraped for the first time after the first evaluations, and a rate needs two
scrapes. Prometheus looks once, after the second evaluation, however soon that is."""
TEMPLATES_S_MAX = 10.0
"""The time for all templates of one evaluation of a rule, with their queries. After that, alerts are sent with a text
that says so."""


class Storage(Protocol):
    """The storage that rules read and write."""

    async def query(self, expr: str, time_ms: int, lookback_ms: int | None = None) -> Vector:
        """The vector at this time; a scalar is a series without labels. `lookback_ms`: for how long the query sees a
        sample of a series that has not ended, if it is not the usual time. Raises TriptychError."""

    async def query_all(self, exprs: Sequence[str], time_ms: int) -> Sequence[Vector | TriptychError]:
        """The same for several expressions at once; an expression that fails gives its error."""

    async def write(self, time_ms: int, series: Vector, ended: Sequence[Labels]) -> None:
        """Store samples and the ends of series. Raises TriptychError."""


class RuleState:
    """A rule and its state. `series`: those that its last evaluation has written, or may have written. Until it
    `is_restored`, its new alerts are looked up among those from before the start; `restoring_evaluations`: how many
    evaluations have succeeded since the start; `known`: the series that these gave, and the labels of their alerts."""

    def __init__(self, definition: RuleDefinition) -> None:
        self.definition = definition
        self.series: dict[Labels, None] = {}
        self.alerts = Alerts()
        self.is_restored = definition.kind == "record" or not definition.for_ms
        self.restoring_evaluations = 0
        self.known: frozenset[Labels] = frozenset()
        self.health = "unknown"
        self.error = ""
        self.evaluated_at_ms = 0
        self.seconds = 0.0
        texts = [text for text in (*definition.labels.values(), *definition.annotations.values()) if "{{" in text]
        self.is_quickly_expanded = sum(map(len, texts)) <= INLINE_CHARS and not any(
            word in text for text in texts for word in SLOW_WORDS
        )
        self.writes = {definition.name} if definition.kind == "record" else {alerting.ALERTS, alerting.ALERTS_FOR_STATE}

    def take_over(self, before: RuleState) -> None:
        """Continue from the state of a rule with the same name and labels."""
        for name in ("series", "alerts", "is_restored", "restoring_evaluations", "known"):
            setattr(self, name, getattr(before, name))

    def depends_on(self, written: set[str]) -> bool:
        reads = self.definition.reads
        return bool(written) and (reads is None or not reads.isdisjoint(written))


class Group:
    """`slots`: as many batches of rules of all groups at once. `send` gets alerts that are to be sent, with the end of
    their validity set. `began_ms`: since when rules are evaluated; what is stored later is not of before a restart. For
    the event loop's thread only."""

    def __init__(
        self,
        definition: GroupDefinition,
        storage: Storage,
        send: Callable[[RuleDefinition, list[Alert]], None],
        slots: asyncio.Semaphore,
        *,
        resend_ms: int = 60_000,
        external_labels: Mapping[str, str] | None = None,
        external_url: str = "",
        began_ms: int | None = None,
    ) -> None:
        self.definition = definition
        self.rules = [RuleState(rule) for rule in definition.rules]
        self._waves = _waves(self.rules)
        self._storage = storage
        self._send = send
        self._slots = slots
        self._resend_ms = resend_ms
        self._external_labels = external_labels or {}
        self._external_url = external_url
        self._began_ms = began_ms
        self.ended: dict[Labels, None] = {}
        """Series of removed rules whose end is not stored yet."""
        self.iterations = self.missed = 0
        self.evaluations = self.failures = 0
        self.samples = 0
        self.evaluated_at_ms = 0
        self.seconds = self.seconds_total = 0.0

    @property
    def key(self) -> str:
        return f"{self.definition.file};{self.definition.name}"

    def take_over(self, before: Group) -> None:
        """Continue from the state of the group before its definition changed."""
        known: dict[object, list[RuleState]] = {}
        for old in before.rules:
            known.setdefault(old.definition.identity(), []).append(old)
        for rule in self.rules:
            same = known.get(rule.definition.identity())
            if same:
                rule.take_over(same.pop(0))
        self.ended = dict(before.ended)
        for rest in known.values():
            for old in rest:
                self.ended |= old.series
        for name in ("iterations", "missed", "evaluations", "failures", "seconds_total"):
            setattr(self, name, getattr(before, name))

    def first_at_ms(self, now_ms: int) -> int:
        """The first time of evaluation from now on: groups are spread over their interval by a hash."""
        interval_ms = self.definition.interval_ms
        digest = hashlib.blake2b(self.key.encode(errors="surrogatepass"), digest_size=8).digest()
        offset_ms = int.from_bytes(digest, "big") % interval_ms
        return now_ms + (offset_ms - now_ms) % interval_ms

    async def evaluate(self, time_ms: int) -> None:
        """Evaluate all rules at this time. A rule that fails does not affect the others."""
        started = time.perf_counter()
        self.samples = 0
        written: set[Labels] = set()
        for number, wave in enumerate(self._waves, 1):
            batches = [wave[first : first + BATCH_RULES] for first in range(0, len(wave), BATCH_RULES)]
            results = await asyncio.gather(*(self._evaluate_batch(batch, time_ms) for batch in batches))
            unwritten = [result for batch in results for result in batch]
            await self._write(unwritten, time_ms, written, is_last=number == len(self._waves))
        self.iterations += 1
        self.evaluated_at_ms = time_ms
        self.seconds = time.perf_counter() - started
        self.seconds_total += self.seconds

    async def _evaluate_batch(self, rules: Sequence[RuleState], time_ms: int) -> list[tuple[RuleState, Vector]]:
        """The rules that have not failed, with their series."""
        async with self._slots:
            started = time.perf_counter()
            query_ms = time_ms - self.definition.query_offset_ms
            exprs = [rule.definition.expr for rule in rules]
            try:
                answers = await self._storage.query_all(exprs, query_ms)
            except Exception as error:
                # The group must not end with what could not be foreseen.
                event(logging.ERROR, "rules could not be evaluated", group=self.key, trace=True)
                answers = [Internal(str(error) or type(error).__name__)] * len(rules)
            asking_s = (time.perf_counter() - started) / len(rules)
            results = []
            for rule, answer in zip(rules, answers, strict=True):
                series = await self._evaluate_rule(rule, answer, time_ms, asking_s)
                if series is not None:
                    results.append((rule, series))
            return results

    async def _evaluate_rule(
        self, rule: RuleState, answer: Vector | TriptychError, time_ms: int, asking_s: float
    ) -> Vector | None:
        """The series of the rule's result; None if it fails."""
        started = time.perf_counter()
        self.evaluations += 1
        series: Vector | None = None
        try:
            if isinstance(answer, TriptychError):
                raise answer
            series = await self._result(rule, answer, time_ms)
            rule.health, rule.error = "ok", ""
        except TriptychError as error:
            self._failed(rule, error)
        except Exception as error:
            # The other rules of the group must not end with what could not be foreseen.
            event(logging.ERROR, "a rule could not be evaluated", group=self.key, rule=rule.definition.name, trace=True)
            self._failed(rule, error)
        rule.evaluated_at_ms = time_ms
        rule.seconds = asking_s + time.perf_counter() - started
        return series

    def _failed(self, rule: RuleState, error: Exception) -> None:
        self.failures += 1
        rule.health, rule.error = "err", str(error) or type(error).__name__

    async def _result(self, rule: RuleState, vector: Vector, time_ms: int) -> Vector:
        """Raises TriptychError."""
        if rule.definition.kind == "record":
            return _recorded(rule.definition, vector, self.definition.limit)
        return await self._alerts(rule, vector, time_ms)

    async def _alerts(self, rule: RuleState, vector: Vector, time_ms: int) -> Vector:
        since: Mapping[Labels, int] = {}
        result_labels = frozenset(() if rule.is_restored else (labels for labels, _ in vector))
        if result_labels - rule.known:
            states = await self._active_since(rule.definition, time_ms)
            # An alert that was there after the start, and has gone since, is not one from before any more.
            since = {labels: active_ms for labels, active_ms in states.items() if labels not in rule.known}
        loop = asyncio.get_running_loop()

        deadline = time.monotonic() + TEMPLATES_S_MAX

        def query(expr: str) -> list[Sample]:
            """Runs a query for templates, which are expanded in a thread. Raises ValueError."""
            query_ms = time_ms - self.definition.query_offset_ms
            asked = asyncio.run_coroutine_threadsafe(self._storage.query(expr, query_ms), loop)
            try:
                answer = asked.result(max(0.0, deadline - time.monotonic()))
            except TimeoutError:
                asked.cancel()
                raise ValueError(f"it did not answer within {TEMPLATES_S_MAX:g} s") from None
            except TriptychError as error:
                raise ValueError(str(error)) from None
            return [Sample(dict(labels), value) for labels, value in answer]

        around = Surroundings(query, self._external_labels, self._external_url, time_ms / 1000, deadline)
        arguments = (rule.definition, rule.alerts, vector, time_ms, self.definition.limit, around, since)
        try:
            if len(vector) > INLINE_ALERTS or not rule.is_quickly_expanded:
                alerts = await asyncio.to_thread(alerting.updated, *arguments)
            else:
                alerts = alerting.updated(*arguments)
        except TooManyAlerts:
            rule.alerts = Alerts()
            raise
        if not rule.is_restored:
            rule.restoring_evaluations += 1
            # The clock may have been set back by long since the start.
            is_late = self._began_ms is None or abs(time_ms - self._began_ms) >= RESTORING_MS
            rule.is_restored = is_late and rule.restoring_evaluations >= RESTORING_EVALUATIONS
            rule.known = frozenset() if rule.is_restored else rule.known | result_labels | alerts.by_labels.keys()
        rule.alerts = self._sent(rule.definition, alerts, time_ms)
        return alerts.series

    async def _active_since(self, rule: RuleDefinition, time_ms: int) -> Mapping[Labels, int]:
        """Since when alerts were active before the service started."""
        offset_ms = self.definition.query_offset_ms
        # Other rules may have alerts of this name, and may have stored theirs already.
        until_ms = time_ms if self._began_ms is None else min(self._began_ms, time_ms)
        until_ms -= offset_ms + 1
        # With this lookback, a series is seen exactly if its newest sample is no staleness marker: an alert that was
        # resolved has ended, however long the outage and the interval of the group.
        seen = await self._storage.query(alerting.last_seen_query(rule), until_ms, alerting.OUTAGE_MAX_MS)
        if not seen:
            return {}
        states = await self._storage.query(alerting.states_query(rule), until_ms, alerting.OUTAGE_MAX_MS)
        seen_ms = {alerting.without_name(labels): round(seconds * 1000) + offset_ms for labels, seconds in seen}
        return alerting.restored(rule, states, seen_ms, time_ms)

    def _sent(self, rule: RuleDefinition, alerts: Alerts, time_ms: int) -> Alerts:
        """Send the alerts that are due."""
        due = [alert for alert in alerts.by_labels.values() if alert.needs_sending(time_ms, self._resend_ms)]
        if not due:
            return alerts
        valid_ms = time_ms + 4 * max(self._resend_ms, self.definition.interval_ms)
        sent = [_with_validity(alert, time_ms, valid_ms) for alert in due]
        self._send(rule, sent)
        return Alerts({**alerts.by_labels, **{alert.labels: alert for alert in sent}}, alerts.series)

    async def _write(
        self, results: Sequence[tuple[RuleState, Vector]], time_ms: int, written: set[Labels], *, is_last: bool
    ) -> None:
        """Store the results, and the ends of the series that their rules gave before and do not give any more.
        `written`: the series of this evaluation so far, to which those of the results are added."""
        samples = [sample for _, series in results for sample in series]
        written.update(labels for labels, _ in samples)
        gone = {labels for rule, _ in results for labels in rule.series}
        if is_last and self.ended:
            gone |= self.ended.keys() - {labels for rule in self.rules for labels in rule.series}
        ended = [labels for labels in gone if labels not in written]  # another rule may give a series now
        for rule, series in results:
            # Some of it may be stored, even if the write fails, or is cut off by a new configuration.
            rule.series |= dict.fromkeys(labels for labels, _ in series)
        if samples or ended:
            try:
                await self._storage.write(time_ms - self.definition.query_offset_ms, samples, ended)
            except BadData:  # all is stored but what is not valid
                await self._fail_refused(results, time_ms)
            except TriptychError as error:
                for rule, _ in results:
                    self._failed(rule, error)
                return
        self.samples += len(samples)
        for rule, series in results:
            rule.series = dict.fromkeys(labels for labels, _ in series)
        if is_last:
            self.ended = {}

    async def _fail_refused(self, results: Sequence[tuple[RuleState, Vector]], time_ms: int) -> None:
        """Only the rules whose series the store refuses have failed. So each rule is written again on its own."""
        for rule, series in results:
            try:
                if series:
                    await self._storage.write(time_ms - self.definition.query_offset_ms, series, ())
            except TriptychError as error:
                self._failed(rule, error)


def _waves(rules: Sequence[RuleState]) -> list[list[RuleState]]:
    """The rules in order, in lists of rules that may be evaluated at once; there is at least one list."""
    waves: list[list[RuleState]] = [[]]
    written: set[str] = set()
    for rule in rules:
        if rule.depends_on(written):
            waves.append([])
            written = set()
        waves[-1].append(rule)
        written |= rule.writes
    return waves


def _with_validity(alert: Alert, time_ms: int, valid_ms: int) -> Alert:
    return replace(alert, sent_at_ms=time_ms, valid_until_ms=valid_ms)


def _recorded(rule: RuleDefinition, vector: Vector, limit: int) -> list[tuple[Labels, float]]:
    """The series that a recording rule writes. Raises NotExecutable for equal label sets, or too many series."""
    if limit and len(vector) > limit:
        raise NotExecutable(f"exceeded limit of {limit} with {len(vector)} series")
    rule_labels = {METRIC_NAME: rule.name, **rule.labels}
    series: dict[Labels, float] = {}
    for labels, value in vector:
        merged = {**dict(labels), **rule_labels}
        series[tuple(sorted((name, text) for name, text in merged.items() if text))] = value
    if len(series) < len(vector):
        raise NotExecutable("vector contains metrics with the same labelset after applying rule labels")
    return list(series.items())
