"""Sends alerts to Alertmanagers (https:

prometheus.io/docs/alerting/latest/clients/, API v2).

Each Alertmanager has a queue of its own, so one that is slow or down does not delay the alerts of the others. A queue
has the newest state of each alert. An alert that could not be sent is sent again, unless a newer state has come or it
is out of date.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp
import orjson

from coordinator.outgoing import ALERTS, Resolver, blocking
from coordinator.prometheus_config import relabelling
from coordinator.rfc_3339 import time_text
from coordinator.rules.alertmanager_config import Alerting, Alertmanager
from coordinator.rules.alerts import RESOLVED_KEPT_MS, Alert
from shared.errors import ConfigError, TriptychError
from shared.labels import Labels
from shared.measurements import Latencies, Values
from shared.telemetry import event

QUEUE_ALERTS_MAX = 10_000
"""The limit on the alerts that wait for one Alertmanager; the oldest are dropped."""
BATCH_ALERTS = 64
REPLY_BYTES_MAX = 64 << 10
BACK_OFF_FIRST_S, BACK_OFF_MAX_S = 1.0, 30.0
"""The pause after an Alertmanager has not taken alerts: twice as long each time."""
STOP_S = 1.0
FAILED_LOG_INTERVAL_S = 300.0


@dataclass(frozen=True, slots=True)
class Notification:
    """One alert as it is sent. It is out of date after `until_ms`, Unix ms."""

    labels: Labels
    body: Mapping[str, Any]
    until_ms: int


class Refused(Exception):
    """The Alertmanager has refused these alerts for good."""


class Queue:
    """The alerts for one Alertmanager, and the task that sends them. For the event loop's thread only."""

    def __init__(self, target: Alertmanager, session: aiohttp.ClientSession) -> None:
        self.target = target
        self._session = session
        self._waiting: OrderedDict[Labels, Notification] = OrderedDict()
        self._has_some = asyncio.Event()
        self._failed_logged_at = -FAILED_LOG_INTERVAL_S
        self.sent = self.errors = self.dropped = 0
        self.latency = Latencies()
        self.task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, notifications: Sequence[Notification]) -> None:
        for one in notifications:
            self._waiting.pop(one.labels, None)
            self._waiting[one.labels] = one
        while len(self._waiting) > QUEUE_ALERTS_MAX:
            self._waiting.popitem(last=False)
            self.dropped += 1
        self._has_some.set()

    async def run(self) -> None:
        """Send alerts as they come, until this is cancelled."""
        back_off_s = BACK_OFF_FIRST_S
        while True:
            await self._has_some.wait()
            if await self.send_batch():
                back_off_s = BACK_OFF_FIRST_S
            else:
                await asyncio.sleep(back_off_s)
                back_off_s = min(2 * back_off_s, BACK_OFF_MAX_S)

    async def send_batch(self) -> bool:
        """Send some of the alerts. False: the Alertmanager did not take them, and they stay in the queue."""
        now_ms = int(time.time() * 1000)
        batch: list[Notification] = []
        while self._waiting and len(batch) < BATCH_ALERTS:
            one = self._waiting.popitem(last=False)[1]
            if one.until_ms >= now_ms:
                batch.append(one)
            else:
                self.dropped += 1
        if not self._waiting:
            self._has_some.clear()
        if not batch:
            return True
        started = time.perf_counter()
        try:
            await self._post(orjson.dumps([one.body for one in batch]))
        except Refused as error:
            self.errors += len(batch)
            self.dropped += len(batch)
            self._log(error)
            return True
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError, ConfigError) as error:
            # ValueError: a name that no host can have, in the configuration or in a redirection.
            self.errors += len(batch)
            self._log(error)
            for one in reversed(batch):
                if one.labels not in self._waiting:  # else there is a newer state
                    self._waiting[one.labels] = one
                    self._waiting.move_to_end(one.labels, last=False)
            self.put(())
            return False
        except Exception:
            # One alert that meets a defect of the program must not end the alerts for this Alertmanager.
            self.errors += len(batch)
            self.dropped += len(batch)
            event(logging.ERROR, "alerts could not be sent to an Alertmanager", url=self.target.url, trace=True)
            return False
        self.latency.add(time.perf_counter() - started)
        self.sent += len(batch)
        return True

    async def _post(self, body: bytes) -> None:
        target = self.target
        async with asyncio.timeout(target.timeout_ms / 1000):
            client = target.client
            headers = (
                client.request_headers()
                if client.secret_file is None
                else await blocking(client.request_headers, ALERTS)
            )
            headers["Content-Type"] = "application/json"
            async with self._session.post(
                target.url,
                data=body,
                headers=headers,
                ssl=client.tls,
                server_hostname=client.server_name if target.url.startswith("https:") else None,
                allow_redirects=client.follow_redirects,
            ) as reply:
                if reply.status // 100 == 2:
                    return
                text = (await reply.content.read(REPLY_BYTES_MAX))[:200].decode(errors="replace")
        if reply.status // 100 == 4 and reply.status not in (408, 429):
            raise Refused(f"it answers {reply.status}: {text}")
        raise aiohttp.ClientError(f"it answers {reply.status}: {text}")

    def _log(self, error: Exception) -> None:
        now = time.monotonic()
        if now - self._failed_logged_at >= FAILED_LOG_INTERVAL_S:
            self._failed_logged_at = now
            why = str(error) or type(error).__name__
            event(logging.WARNING, "alerts could not be sent to an Alertmanager", url=self.target.url, why=why)


class Notifier:
    """Sends alerts to all Alertmanagers. For the event loop's thread only."""

    def __init__(self) -> None:
        self.alerting = Alerting()
        self._queues: dict[str, Queue] = {}
        self._session: aiohttp.ClientSession | None = None
        self.dropped = 0
        """The number of alerts that could not be relabelled."""

    def start(self) -> None:
        self._session = aiohttp.ClientSession(
            cookie_jar=aiohttp.DummyCookieJar(),
            connector=aiohttp.TCPConnector(limit_per_host=2, resolver=Resolver(ALERTS)),
        )
        self.use(self.alerting)

    def use(self, alerting: Alerting) -> None:
        """Send to these Alertmanagers from now on. The queue of one that stays is kept."""
        self.alerting = alerting
        if self._session is None:
            return
        before, self._queues = self._queues, {}
        for target in alerting.alertmanagers:
            queue = before.pop(target.url, None)
            if queue is None:
                queue = Queue(target, self._session)
                queue.task = asyncio.create_task(queue.run())
            queue.target = target
            self._queues[target.url] = queue
        for queue in before.values():
            if queue.task is not None:
                queue.task.cancel()

    def send(self, alerts: Sequence[Alert], generator_url: str) -> None:
        """Put alerts into the queues."""
        ready = [one for alert in alerts if (one := self._notification(alert, generator_url)) is not None]
        for queue in self._queues.values():
            rules = queue.target.relabelling
            queue.put(ready if not rules else [one for each in ready if (one := self._relabelled(each, rules))])

    def _notification(self, alert: Alert, generator_url: str) -> Notification | None:
        labels = {**self.alerting.external_labels, **dict(alert.labels)}
        ends_ms = alert.resolved_at_ms or alert.valid_until_ms
        body = {
            "labels": labels,
            "annotations": {name: text for name, text in alert.annotations.items() if text},
            "startsAt": time_text((alert.fired_at_ms or alert.active_at_ms) / 1000),
            "endsAt": time_text(ends_ms / 1000),
            "generatorURL": generator_url,
        }
        until_ms = max(ends_ms, alert.resolved_at_ms + RESOLVED_KEPT_MS if alert.resolved_at_ms else 0)
        return self._relabelled(Notification((), body, until_ms), self.alerting.relabelling)

    def _relabelled(self, notification: Notification, rules: Sequence[relabelling.Rule]) -> Notification | None:
        try:
            labels = relabelling.apply(notification.body["labels"], rules)
        except TriptychError as error:
            self.dropped += 1
            event(logging.WARNING, "an alert could not be relabelled", why=error)
            return None
        if labels is None:
            return None
        return Notification(
            tuple(sorted(labels.items())), {**notification.body, "labels": labels}, notification.until_ms
        )

    def active(self) -> list[str]:
        return [target.url for target in self.alerting.alertmanagers]

    async def stop(self) -> None:
        """Send the waiting alerts for a moment, and stop."""
        tasks = [queue.task for queue in self._queues.values() if queue.task is not None]
        if any(len(queue) for queue in self._queues.values()):
            await asyncio.sleep(STOP_S)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._session is not None:
            await self._session.close()

    def put(self, values: Values) -> None:
        """Add the metrics about this."""
        values.put("triptych_rule_alertmanagers", len(self._queues))
        values.put("triptych_rule_alerts_dropped_total", self.dropped, "")
        for url, queue in self._queues.items():
            values.put("triptych_rule_alerts_queued", len(queue), url)
            values.put("triptych_rule_alerts_sent_total", queue.sent, url)
            values.put("triptych_rule_alerts_failed_total", queue.errors, url)
            values.put("triptych_rule_alerts_dropped_total", queue.dropped, url)
