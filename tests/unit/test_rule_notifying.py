"""Alerts on their way to Alertmanagers: what is sent, what is tried again, and what is dropped."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from coordinator import outgoing
from coordinator.prometheus_config import yaml_fields
from coordinator.prometheus_config.http_client import HttpClientConfig
from coordinator.rules import alertmanager_config, notifying
from coordinator.rules.alertmanager_config import Alerting
from coordinator.rules.alerts import Alert
from coordinator.rules.notifying import Notifier
from shared.errors import ConfigError
from shared.measurements import Values


def alerting(text: str, external_labels: dict[str, str] | None = None) -> Alerting:
    root = yaml_fields.parse(text.encode(), Path("p.yml"))
    return alertmanager_config.read(root.section("alerting"), external_labels or {})


class Alertmanager:
    """Takes alerts, or answers with the statuses that a test sets."""

    def __init__(self) -> None:
        self.batches: list[list[dict[str, Any]]] = []
        self.statuses: list[int] = []
        self.headers: list[Any] = []
        self.waits: asyncio.Event | None = None
        self.redirects = self.port = 0

    async def take(self, request: web.Request) -> web.Response:
        body = await request.json()
        if self.waits is not None:
            await self.waits.wait()
        self.headers.append(request.headers)
        if self.redirects:
            self.redirects -= 1
            raise web.HTTPPermanentRedirect("http://no..host/")
        status = self.statuses.pop(0) if self.statuses else 200
        if status == 200:
            self.batches.append(body)
        return web.Response(status=status, text="why not")

    def config(self, more: str = "") -> str:
        return f"alerting: {{alertmanagers: [{{static_configs: [{{targets: ['127.0.0.1:{self.port}']}}] {more}}}]}}"

    def names(self) -> list[str]:
        return [alert["labels"]["alertname"] for batch in self.batches for alert in batch]


@pytest.fixture
async def manager() -> AsyncIterator[Alertmanager]:
    own = Alertmanager()
    app = web.Application()
    app.router.add_post("/{path:.*}", own.take)
    runner = web.AppRunner(app, shutdown_timeout=0)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    own.port = runner.addresses[0][1]
    yield own
    await runner.cleanup()


@pytest.fixture
async def notifier(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Notifier]:
    monkeypatch.setattr(notifying, "BACK_OFF_FIRST_S", 0.01)
    monkeypatch.setattr(notifying, "STOP_S", 0.0)
    own = Notifier()
    own.start()
    yield own
    await own.stop()


def alert(name: str = "A", valid_s: float = 240, **changes: Any) -> Alert:
    now_ms = int(time.time() * 1000)
    labels = (("alertname", name), ("i", "1"))
    fields = {"active_at_ms": now_ms - 1000, "fired_at_ms": now_ms, "valid_until_ms": now_ms + int(valid_s * 1000)}
    return Alert(labels, {"s": "text", "empty": ""}, 1.0, "firing", **{**fields, **changes})


async def until(condition: Any) -> None:
    for _ in range(500):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("did not happen")


def counted(notifier: Notifier, name: str) -> float:
    values = Values()
    notifier.put(values)
    return sum(float(value) for _, value in values.by_name.get(name, ()) if not isinstance(value, list))


async def test_alerts_have_the_form_of_the_api(manager: Alertmanager, notifier: Notifier) -> None:
    more = ", path_prefix: /am/, basic_auth: {username: u, password: p}"
    notifier.use(alerting(manager.config(more), {"region": "eu", "i": "external"}))
    notifier.send([alert()], "http://here/graph")
    await until(lambda: manager.batches)
    ((sent,),) = manager.batches
    assert sent["labels"] == {"alertname": "A", "i": "1", "region": "eu"} and sent["annotations"] == {"s": "text"}
    assert sent["generatorURL"] == "http://here/graph" and sent["startsAt"] < sent["endsAt"]
    assert manager.headers[0]["Authorization"] == "Basic dTpw"
    assert notifier.active() == [f"http://127.0.0.1:{manager.port}/am/api/v2/alerts"]


async def test_what_is_not_taken_is_sent_again_in_its_newest_state(manager: Alertmanager, notifier: Notifier) -> None:
    notifier.use(alerting(manager.config()))
    manager.statuses = [503, 429]
    manager.waits = asyncio.Event()
    notifier.send([alert("A"), alert("B")], "")
    await asyncio.sleep(0.05)
    now_ms = int(time.time() * 1000)
    notifier.send([alert("A", resolved_at_ms=now_ms)], "")
    manager.waits.set()
    await until(lambda: len(manager.names()) == 2)
    assert sorted(manager.names()) == ["A", "B"]
    ends = {one["labels"]["alertname"]: one["endsAt"] for batch in manager.batches for one in batch}
    assert ends["A"] < ends["B"]
    assert counted(notifier, "triptych_rule_alerts_failed_total") == 4
    assert counted(notifier, "triptych_rule_alerts_sent_total") == 2


async def test_what_is_refused_is_not_sent_again(manager: Alertmanager, notifier: Notifier) -> None:
    notifier.use(alerting(manager.config()))
    manager.statuses = [400]
    notifier.send([alert("A")], "")
    await until(lambda: not manager.statuses)
    notifier.send([alert("B")], "")
    await until(lambda: manager.batches)
    assert manager.names() == ["B"] and counted(notifier, "triptych_rule_alerts_dropped_total") == 1


async def test_a_redirection_to_what_is_no_host_does_not_end_the_alerts(
    manager: Alertmanager, notifier: Notifier
) -> None:
    notifier.use(alerting(manager.config()))
    manager.redirects = 1
    notifier.send([alert("A")], "")
    await until(lambda: manager.names() == ["A"])
    assert counted(notifier, "triptych_rule_alerts_failed_total") == 1


async def test_an_alert_that_cannot_be_written_does_not_end_the_others(
    manager: Alertmanager, notifier: Notifier
) -> None:
    notifier.use(alerting(manager.config()))
    notifier.send([alert("\ud800")], "")
    await until(lambda: counted(notifier, "triptych_rule_alerts_dropped_total") == 1)
    notifier.send([alert("B")], "")
    await until(lambda: manager.names() == ["B"])


async def test_an_alertmanager_that_never_answers_keeps_alerts_from_no_other(
    manager: Alertmanager, notifier: Notifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    silent = await asyncio.start_server(swallow, "127.0.0.1", 0)
    port = silent.sockets[0].getsockname()[1]
    targets = f"['127.0.0.1:{port}', '127.0.0.1:{manager.port}']"
    both = f"alerting: {{alertmanagers: [{{timeout: 50ms, static_configs: [{{targets: {targets}}}]}}]}}"
    monkeypatch.setattr(notifying, "QUEUE_ALERTS_MAX", 100)
    notifier.use(alerting(both))
    notifier.send([alert(f"A{n}") for n in range(150)], "")
    await until(lambda: len(manager.names()) >= 100)
    await until(lambda: counted(notifier, "triptych_rule_alerts_failed_total") >= 64)
    assert counted(notifier, "triptych_rule_alerts_queued") <= 200
    assert counted(notifier, "triptych_rule_alerts_dropped_total") == 100
    silent.close()


async def test_names_and_secrets_are_read_in_threads_for_what_may_hang(
    manager: Alertmanager, notifier: Notifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []
    real_addresses, real_headers = socket.getaddrinfo, HttpClientConfig.request_headers

    def find(host: str, *rest: Any) -> Any:
        if host != "manager.example":
            return real_addresses(host, *rest)
        threads.append(threading.current_thread().name)
        return real_addresses("127.0.0.1", *rest)

    def headers(config: HttpClientConfig) -> Any:
        threads.append(threading.current_thread().name)
        return real_headers(config)

    (tmp_path / "token").write_text("secret")
    credentials = f", authorization: {{credentials_file: {tmp_path / 'token'}}}"
    configuration = alerting(manager.config(credentials).replace("127.0.0.1", "manager.example"))
    monkeypatch.setattr(socket, "getaddrinfo", find)
    monkeypatch.setattr(HttpClientConfig, "request_headers", headers)
    notifier.use(configuration)
    notifier.send([alert()], "")
    await until(lambda: manager.batches)
    assert manager.headers[0]["Authorization"] == "Bearer secret"
    assert len(threads) == 2 and all(name.startswith("outgoing") for name in threads), threads


@pytest.mark.parametrize("is_named", [False, True])
async def test_names_of_targets_that_hang_keep_no_alert_waiting(
    manager: Alertmanager, notifier: Notifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_named: bool
) -> None:
    hangs, real = threading.Event(), socket.getaddrinfo

    def find(host: str, *rest: Any) -> Any:
        return real("127.0.0.1" if host == "manager.example" else host, *rest)

    monkeypatch.setattr(socket, "getaddrinfo", find)
    lookups = [asyncio.create_task(outgoing.blocking(hangs.wait)) for _ in range(outgoing.BLOCKING_THREADS)]
    (tmp_path / "token").write_text("secret")
    configuration = manager.config(f", authorization: {{credentials_file: {tmp_path / 'token'}}}" if is_named else "")
    try:
        notifier.use(alerting(configuration.replace("127.0.0.1", "manager.example") if is_named else configuration))
        notifier.send([alert()], "")
        await until(lambda: manager.batches)
    finally:
        hangs.set()
        await asyncio.gather(*lookups)


async def test_what_is_out_of_date_is_not_sent(manager: Alertmanager, notifier: Notifier) -> None:
    notifier.use(alerting(manager.config()))
    notifier.send([alert("old", valid_s=-1), alert("new")], "")
    await until(lambda: manager.batches)
    assert manager.names() == ["new"] and counted(notifier, "triptych_rule_alerts_dropped_total") == 1


async def test_alerts_are_relabelled_for_all_and_for_one(manager: Alertmanager, notifier: Notifier) -> None:
    own = "alert_relabel_configs: [{regex: i, action: labeldrop}]"
    one = f"{{static_configs: [{{targets: ['127.0.0.1:{manager.port}']}}], {own}}}"
    every = "[{source_labels: [alertname], regex: dropped, action: drop}, {target_label: new, replacement: x}]"
    notifier.use(alerting(f"alerting: {{alertmanagers: [{one}], alert_relabel_configs: {every}}}"))
    notifier.send([alert("dropped"), alert("kept")], "")
    await until(lambda: manager.batches)
    assert [sent["labels"] for batch in manager.batches for sent in batch] == [{"alertname": "kept", "new": "x"}]


async def test_a_new_configuration_keeps_what_waits(manager: Alertmanager, notifier: Notifier) -> None:
    manager.statuses = [500] * 5
    notifier.use(alerting(manager.config()))
    notifier.send([alert()], "")
    await until(lambda: len(manager.statuses) < 5)
    notifier.use(alerting(manager.config(", timeout: 5s")))
    await until(lambda: manager.batches)
    notifier.use(Alerting())
    assert not notifier.active()


def test_alertmanagers_can_be_relabelled_and_dropped() -> None:
    text = """
alerting:
  alertmanagers:
    - scheme: https
      static_configs: [{targets: [a:1, b:2], labels: {zone: x}}]
      relabel_configs: [{source_labels: [__address__], regex: 'b:.*', action: drop}]
"""
    read = alerting(text)
    assert [one.url for one in read.alertmanagers] == ["https://a:1/api/v2/alerts"]
    assert read.dropped == ["https://b:2/api/v2/alerts"]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("{static_configs: [{targets: ['http://a:1']}]}", "it must be host:port"),
        ("{static_configs: [{targets: ['a:b']}]}", "it must be host:port"),
        ("{static_configs: [{targets: ['u@a:1']}]}", "it must be host:port"),
        ("{api_version: v1}", "must be v2"),
        ("{dns_sd_configs: []}", "dns_sd_configs: is not served"),
        ("{proxy_url: x}", "proxy_url: is not served"),
        ("{static_config: []}", "did you mean static_configs?"),
        ("{scheme: ftp}", "it must be one of http, https"),
    ],
)
def test_a_mistake_is_named(text: str, named: str) -> None:
    with pytest.raises(ConfigError) as refused:
        alerting(f"alerting: {{alertmanagers: [{text}]}}")
    assert named in str(refused.value)
