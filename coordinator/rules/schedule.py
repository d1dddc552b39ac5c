"""Runs groups of rules on schedule, each in a task of its own, as the configuration file describes them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from urllib.parse import quote_plus

from coordinator.prometheus_config.config_file import Configuration
from coordinator.rules import alertmanager_config, rule_files
from coordinator.rules.alertmanager_config import Alerting
from coordinator.rules.alerts import Alert
from coordinator.rules.groups import Group, Storage
from coordinator.rules.notifying import Notifier
from coordinator.rules.rule_files import Defaults, GroupDefinition, RuleDefinition
from shared.errors import TriptychError
from shared.labels import Labels
from shared.measurements import Values
from shared.telemetry import event

EVALUATIONS_MAX = 4
"""Batches of rules (coordinator/rules/groups.py) that are evaluated at once. Slow rules must not take all places of
other queries."""
RESEND_MS = 60_000
"""A firing alert is sent again after this time."""
ENDED_MAX = 100_000


@dataclass(frozen=True, slots=True)
class Prepared:
    """The part of the configuration about rules. `groups`: made beforehand, because that takes time."""

    groups: Sequence[GroupDefinition]
    alerting: Alerting


def prepare(configuration: Configuration) -> Prepared:
    """Read the rule files and the section about Alertmanagers. Raises ConfigError."""
    global_settings = configuration.global_
    defaults = Defaults(global_settings.evaluation_interval_ms, global_settings.rule_query_offset_ms)
    groups = rule_files.read_all(configuration.rule_files, defaults)
    return Prepared(groups, alertmanager_config.read(configuration.alerting, global_settings.external_labels))


class Rules:
    """The rules in force. For the event loop's thread only. `now` gives Unix seconds; `sleep` waits for as many."""

    def __init__(
        self,
        storage: Storage,
        notifier: Notifier,
        external_url: str = "",
        *,
        now: Callable[[], float] = time.time,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._storage = storage
        self.notifier = notifier
        self.external_url = external_url
        self._now = now
        self._sleep = sleep
        self._slots = asyncio.Semaphore(EVALUATIONS_MAX)
        self.groups: dict[tuple[str, str], Group] = {}
        self._tasks: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._endings: set[asyncio.Task[None]] = set()
        self._is_running = False
        self._alerting = Alerting()

    # The configuration

    def prepare(self, configuration: Configuration) -> Prepared:
        """Read the rule files. It is called in a thread; raises ConfigError."""
        return prepare(configuration)

    def use(self, prepared: Prepared) -> None:
        """Use this configuration. Groups that have not changed continue; a changed group takes over the state of its
        rules."""
        keeps_labels = prepared.alerting.external_labels == self._alerting.external_labels
        self._alerting = prepared.alerting
        self.notifier.use(prepared.alerting)
        before, self.groups = self.groups, {}
        for definition in sorted(prepared.groups, key=lambda group: (group.file, group.name)):
            key = definition.file, definition.name
            old = before.pop(key, None)
            if old is not None and keeps_labels and old.definition == definition:
                self.groups[key] = old
                continue
            self._end(key)
            group = self.groups[key] = self._group(definition)
            if old is not None:
                group.take_over(old)
            self._begin(key, group)
        for key, old in before.items():
            self._end(key)
            self._end_series(old)

    def _group(self, definition: GroupDefinition) -> Group:
        return Group(
            definition,
            self._storage,
            self._send,
            self._slots,
            resend_ms=RESEND_MS,
            external_labels=self._alerting.external_labels,
            external_url=self.external_url,
            began_ms=int(self._now() * 1000),
        )

    def _send(self, rule: RuleDefinition, alerts: list[Alert]) -> None:
        self.notifier.send(alerts, f"{self.external_url}/graph?g0.expr={quote_plus(rule.shown)}&g0.tab=1")

    # Running

    def start(self) -> None:
        self._is_running = True
        self.notifier.start()
        for key, group in self.groups.items():
            self._begin(key, group)

    async def stop(self) -> None:
        """End all tasks. The series of rules do not end, because the rules continue after a restart."""
        self._is_running = False
        tasks = [*self._tasks.values(), *self._endings]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.notifier.stop()

    def _begin(self, key: tuple[str, str], group: Group) -> None:
        if self._is_running:
            self._tasks[key] = asyncio.create_task(self._run(group))

    def _end(self, key: tuple[str, str]) -> None:
        task = self._tasks.pop(key, None)
        if task is not None:
            task.cancel()

    async def _run(self, group: Group) -> None:
        """Evaluate the group at its times, until this is cancelled. Times that pass during an evaluation are missed.
        After the clock has been set back, the times begin anew."""
        interval_ms = group.definition.interval_ms
        due_ms = group.first_at_ms(int(self._now() * 1000))
        while True:
            # The clock may be set back before the group sleeps, and while it does.
            while (left_s := due_ms / 1000 - self._now()) > 0:
                if left_s * 1000 > interval_ms:
                    due_ms = group.first_at_ms(int(self._now() * 1000))
                    left_s = due_ms / 1000 - self._now()
                await self._sleep(max(0.0, left_s))
            try:
                await group.evaluate(due_ms)
            except Exception:
                # One group must not end with an evaluation that could not be foreseen.
                event(logging.ERROR, "a group of rules could not be evaluated", group=group.key, trace=True)
            late_ms = int(self._now() * 1000) - due_ms
            missed = max(0, late_ms // interval_ms)
            group.missed += missed
            due_ms += (missed + 1) * interval_ms

    def _end_series(self, group: Group) -> None:
        """Store the ends of the series of a removed group."""
        gone = [*group.ended, *(labels for rule in group.rules for labels in rule.series)][:ENDED_MAX]
        if gone and self._is_running:
            task = asyncio.create_task(self._write_ends(gone))
            self._endings.add(task)
            task.add_done_callback(self._endings.discard)

    async def _write_ends(self, gone: list[Labels]) -> None:
        try:
            await self._storage.write(int(self._now() * 1000), [], gone)
        except TriptychError as error:  # then they end by themselves, after the lookback
            event(logging.WARNING, "the ends of series of rules could not be stored", series=len(gone), why=error)

    # What is told

    def put(self, values: Values) -> None:
        """Add the metrics about this."""
        self.notifier.put(values)
        for group in self.groups.values():
            key = group.key
            values.put("triptych_rule_group_interval_seconds", group.definition.interval_ms / 1000, key)
            values.put("triptych_rule_group_rules", len(group.rules), key)
            values.put("triptych_rule_group_iterations_total", group.iterations, key)
            values.put("triptych_rule_group_iterations_missed_total", group.missed, key)
            values.put("triptych_rule_group_duration_seconds_total", group.seconds_total, key)
            values.put("triptych_rule_group_last_duration_seconds", group.seconds, key)
            values.put("triptych_rule_group_last_evaluation_timestamp_seconds", group.evaluated_at_ms / 1000, key)
            values.put("triptych_rule_group_last_evaluation_samples", group.samples, key)
            values.put("triptych_rule_evaluations_total", group.evaluations, key)
            values.put("triptych_rule_evaluation_failures_total", group.failures, key)
