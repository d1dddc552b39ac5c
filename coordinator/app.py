"""The HTTP application: its routes, and the start and stop of all parts of the coordinator."""

from __future__ import annotations

import asyncio
import logging
import platform
import signal
import threading
import traceback
from contextlib import suppress
from functools import partial
from typing import Any

from aiohttp import web

from coordinator.access.gatekeeper import Gatekeeper
from coordinator.access.policy import is_loopback
from coordinator.api import (
    admin,
    backup,
    cardinality,
    debug,
    exemplars,
    export,
    features,
    federate,
    imports,
    metadata,
    openapi,
    otlp,
    page,
    prometheus_links,
    queries,
    query,
    reload,
    remote_read,
    rules,
    selected_vectors,
    series,
    settings_in_force,
    status,
    targets,
    vector,
    vector_map,
    write,
)
from coordinator.api.log import append, contents, cursors, deletion, groups, policies, scan, tail, times
from coordinator.backup.views import Views
from coordinator.context import CONTEXT, Context
from coordinator.dispatch import Dispatcher
from coordinator.fanout.links import Links
from coordinator.http.listening import Listener
from coordinator.limits.connections import Connections, backlog
from coordinator.limits.handshakes import Handshakes
from coordinator.log.area import LogArea
from coordinator.log.sequencer import DIRECTORY as SEQUENCER
from coordinator.prometheus_config.config_file import ConfigFile
from coordinator.queries import calibration
from coordinator.queries.gate import LIGHT_PROCESSOR_S, Gate, heavy_places
from coordinator.series.groups import SampleWrites
from coordinator.vectors.area import VectorArea
from coordinator.watching import sources
from coordinator.watching.self_scrape import SelfScrape
from coordinator.watching.telemetry import Telemetry
from shared import tracing
from shared.catalogue_file import DIRECTORY as VECTOR
from shared.control import Control
from shared.errors import ConfigError
from shared.listen_address import cannot_be_bound, host_and_port
from shared.manifest import Manifest
from shared.messages.settling import settle
from shared.process import open_files
from shared.process.allocator import TRIM_INTERVAL_S, Trimmer
from shared.promql import parser
from shared.settings import Settings
from shared.telemetry import event

STOP_GRACE_S = 2.0
"""Requests in flight may take this long to finish after a stop is requested. honcho kills the process after 5 s."""
LINE_BYTES_MAX = 65_536
"""Longest request line. Longer queries must be sent by POST."""


def build(context: Context) -> web.Application:
    app = web.Application()
    app[CONTEXT] = context
    modules = [
        query,
        queries,
        series,
        exemplars,
        export,
        features,
        federate,
        remote_read,
        imports,
        metadata,
        cardinality,
        append,
        scan,
        contents,
        cursors,
        deletion,
        times,
        policies,
        groups,
        tail,
        vector,
        selected_vectors,
        vector_map,
        admin,
        backup,
        debug,
        status,
        rules,
        targets,
        settings_in_force,
        reload,
        page,
        openapi,
        prometheus_links,
    ]
    if context.settings.remote_write:
        modules.append(write)
    if context.settings.otlp:
        modules.append(otlp)
    routes = [route for module in modules for route in module.ROUTES]
    if not context.settings.admin_api:
        routes = [route for route in routes if not route.path.startswith(admin.PREFIX)] + admin.SWITCHED_OFF
    app.add_routes(routes)
    return app


async def serve(settings: Settings, control: Control, identity: Manifest, address: str) -> None:
    """Serve until SIGTERM or SIGINT. `control` has the documents of the data directory. Raises ConfigError if the port
    cannot be opened."""
    asyncio.get_running_loop().set_exception_handler(_log_failure)
    tracing.start(settings.traces, "coordinator")
    context = await _started(settings, control, identity, address)
    access = context.access
    server = _server(context)
    runner = web.ServerRunner(server, shutdown_timeout=STOP_GRACE_S)
    await runner.setup()
    listener = Listener(server, Handshakes(access.tls, settings.head_timeout_ms / 1000) if access.tls else None)
    try:
        await _configure(context.config_file)
        instance = await _listen(listener, settings, access)
        await _work(context, instance)
    finally:
        listener.close()
        access.stop()
        context.pressure.stop()
        context.connections.stop()
        await context.scraper.stop()
        await runner.cleanup()
        await context.views.stop()
        await context.vectors.stop()
        await context.log.stop()
        await context.links.close()
        await asyncio.to_thread(tracing.stop)
    event(logging.INFO, "coordinator stopped")


async def _started(settings: Settings, control: Control, identity: Manifest, address: str) -> Context:
    """Create and start all parts that serve requests, and connect them to the workers."""
    access = Gatekeeper(settings)
    links = Links(settings, identity.cluster_id, address)
    await links.open()
    gate = Gate(heavy_places(settings.query_bytes_max, settings.queries_bytes_max))
    context = Context(
        settings,
        links,
        Telemetry(),
        LogArea(settings, links, control.within(SEQUENCER), gate),
        VectorArea(settings, links, control.within(VECTOR)),
        SampleWrites(settings, links),
        gate,
        access,
    )
    # Builds the parser's tables, which would block the event loop during the first query.
    await asyncio.to_thread(parser.parse, "1")
    context.views = Views(settings.data, links, context.log, context.vectors, identity)
    await context.views.start()
    await context.log.start()
    await context.vectors.start()
    _watch(context)
    _log_limits(context.connections, settings)
    context.connections.start()
    context.pressure.start()
    access.start()
    return context


def _watch(context: Context) -> None:
    """Add the metrics of all parts to the service's own metrics."""
    sources.watch(
        context.telemetry,
        context.settings,
        context.started_at,
        context.links,
        context.connections,
        context.pressure,
        context.gate,
        context.samples,
        context.spool,
        context.log,
        context.access,
        context.known_labels,
        context.known_sets,
        context.series_references,
        context.request_templates,
        context.config_file,
        context.rules,
    )
    context.telemetry.watch(context.scraper.put)


def _server(context: Context) -> web.Server:
    return Dispatcher(build(context)).server(
        access_log=None,
        handler_cancellation=True,  # when a client disconnects, the workers stop working on its request
        auto_decompress=False,  # bodies are decompressed later, by code that limits their size
        max_line_size=LINE_BYTES_MAX,
        max_field_size=LINE_BYTES_MAX,
    )


async def _work(context: Context, instance: str) -> None:
    """Run the background work of the service until a signal requests its end. `instance`: the host:port it listens
    on."""
    if not context.rules.external_url:
        context.rules.external_url = _own_url(instance, context.access)
    context.rules.start()
    self_scrape = SelfScrape(
        context.settings, context.watch, context.links, context.samples, context.pressure, instance
    )
    context.self_scrape = self_scrape
    settle()
    measuring = partial(_measure_speed, context.gate, asyncio.get_running_loop())
    threading.Thread(target=measuring, name="speed", daemon=True).start()
    trimming = asyncio.create_task(_trim_memory())
    scraping = asyncio.create_task(self_scrape.run())
    await _stop_signal()
    trimming.cancel()
    scraping.cancel()
    await context.rules.stop()


async def _configure(config_file: ConfigFile) -> None:
    """Have all parts follow the configuration file, and reload it on SIGHUP. Without a file, SIGHUP has no effect.
    Raises ConfigError."""
    if config_file.path is not None:
        await config_file.load()
    reloads: set[asyncio.Task[None]] = set()

    async def reload() -> None:
        with suppress(ConfigError):  # `load` has logged it
            await config_file.load()

    def begin() -> None:
        if config_file.path is None:
            event(logging.WARNING, "SIGHUP changes nothing: TRIPTYCH_PROMETHEUS_CONFIG names no file to read again")
            return
        task = asyncio.create_task(reload())
        reloads.add(task)
        task.add_done_callback(reloads.discard)

    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, begin)


def _measure_speed(gate: Gate, loop: asyncio.AbstractEventLoop) -> None:
    """Measure how fast the machine is. Takes about 30 ms."""
    slowness = calibration.slowness()
    with suppress(RuntimeError):  # the loop may have ended meanwhile
        loop.call_soon_threadsafe(gate.calibrate, slowness)
    light_ms = round(LIGHT_PROCESSOR_S * slowness * 1000, 1)
    event(logging.INFO, "speed measured", slowness=round(slowness, 2), light_query_ms=light_ms)


def _log_limits(connections: Connections, settings: Settings) -> None:
    if connections.limit < settings.connections_max:
        event(
            logging.WARNING,
            "the limit of open files leaves room for fewer connections than TRIPTYCH_CONNECTIONS_MAX",
            open_files=open_files.limit(),
            connections=connections.limit,
            wanted=settings.connections_max,
        )


async def _listen(listener: Listener, settings: Settings, access: Gatekeeper) -> str:
    """Start to listen. Returns host and port in the form of a URL. Raises ConfigError if the port cannot be opened."""
    host, port = settings.address()
    try:
        bound = await listener.open(host, port, backlog())
    except OSError as error:
        raise cannot_be_bound(settings, error) from error
    instance = host_and_port(host, bound)
    scheme = "https" if access.tls else "http"
    event(logging.INFO, "listening", url=f"{scheme}://{instance}", data=settings.data, shards=settings.shard_count())
    if not is_loopback(host) and (access.tls is None or not access.knows_its_clients):
        event(logging.WARNING, "listening beyond this host without authentication or TLS", listen=settings.listen)
    return instance


def _own_url(instance: str, access: Gatekeeper) -> str:
    """The URL of this service for other hosts, as far as it can be determined."""
    port = instance.rpartition(":")[2]
    return f"{'http' if access.tls is None else 'https'}://{platform.node() or 'localhost'}:{port}"


def _log_failure(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log the failure of a task or callback whose result was never retrieved, as one line like all other events."""
    error = context.get("exception")
    text = "".join(traceback.format_exception(error)) if error is not None else ""
    event(logging.ERROR, "unhandled failure", what=context.get("message", ""), trace_text=text)


async def _trim_memory() -> None:
    """Return the memory of large requests to the system when they are over."""
    trimmer = Trimmer()
    while True:
        await asyncio.sleep(TRIM_INTERVAL_S)
        if trimmer.due():
            await asyncio.to_thread(trimmer.run)


async def _stop_signal() -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await stop.wait()
