"""The metrics of the parts of the coordinator, collected when the metrics are read. Nothing is counted here."""

from __future__ import annotations

import dataclasses
import platform
import time

from coordinator.access.gatekeeper import Gatekeeper
from coordinator.fanout.links import Links
from coordinator.limits.admission import Admission
from coordinator.limits.connections import Connections
from coordinator.limits.pressure import Pressure
from coordinator.limits.spool import Spool
from coordinator.log.area import LogArea
from coordinator.otlp.known_sets import KnownSets
from coordinator.prometheus_config.config_file import ConfigFile
from coordinator.queries.gate import Gate
from coordinator.queries.merge import LABELS
from coordinator.rules.schedule import Rules
from coordinator.series.groups import SampleWrites
from coordinator.series.known_labels import KnownLabels
from coordinator.series.request_templates import RequestTemplates
from coordinator.series.series_references import SeriesReferences
from coordinator.watching import memory
from coordinator.watching.host import NAME
from coordinator.watching.telemetry import Telemetry
from shared.manifest import FORMAT
from shared.measurements import Values
from shared.settings import Settings
from shared.version import version

DURATION = "_ms"
# A counter that appears with its first event shows no increase, so the usual reasons are there from the beginning.
ENDED = ("refused", "head timeout", "idle timeout", "slow reader")
KEPT_OUT = ("unauthorized", "forbidden", "rate", "busy")
OVERLOADS = ("memory", "heavy", "writes", "reads")


def watch(
    telemetry: Telemetry,
    settings: Settings,
    started_at: float,
    links: Links,
    connections: Connections,
    pressure: Pressure,
    gate: Gate,
    samples: SampleWrites,
    spool: Spool,
    log: LogArea,
    access: Gatekeeper,
    known_labels: KnownLabels,
    known_sets: KnownSets,
    references: SeriesReferences,
    templates: RequestTemplates,
    config_file: ConfigFile,
    rules: Rules,
) -> None:
    """Register all parts of the coordinator as sources of metrics."""
    telemetry.watch(lambda values: put_settings(values, settings, started_at))
    telemetry.watch(lambda values: put_connections(values, connections))
    telemetry.watch(lambda values: put_admission(values, connections.admission))
    telemetry.watch(lambda values: values.put("triptych_memory_bytes", known_labels.bytes, NAME, "known_labels"))
    telemetry.watch(lambda values: values.put("triptych_memory_bytes", known_sets.bytes, NAME, "otlp_label_sets"))
    telemetry.watch(lambda values: values.put("triptych_memory_bytes", references.bytes, NAME, "series_references"))
    telemetry.watch(lambda values: values.put("triptych_memory_bytes", templates.bytes, NAME, "request_templates"))
    telemetry.watch(lambda values: values.put("triptych_memory_bytes", LABELS.bytes, NAME, "query_labels"))
    telemetry.watch(lambda values: put_pressure(values, pressure))
    telemetry.watch(lambda values: put_queues(values, links, gate, samples, spool, log))
    telemetry.watch(lambda values: put_access(values, access))
    telemetry.watch(config_file.put)
    telemetry.watch(rules.put)
    telemetry.watch(lambda values: put_shards(values, links))
    telemetry.watch(lambda values: put_workers(values, links))
    telemetry.watch(memory.put_unattributed)  # after all that attribute something


def put_connections(values: Values, connections: Connections) -> None:
    values.put("triptych_connections", len(connections.open))
    values.put("triptych_connections_waiting", len(connections.heads), "head")
    values.put("triptych_connections_waiting", len(connections.idle), "idle")
    values.put("triptych_connections_waiting", len(connections.bodies), "body")
    values.put("triptych_connections_waiting", len(connections.readers), "reader")
    for reason in (*ENDED, *(connections.ended.keys() - set(ENDED))):
        values.put("triptych_connections_ended_total", connections.ended[reason], reason)
    values.put("triptych_bytes_in_flight", connections.head_bytes, "heads")
    values.put("triptych_bytes_in_flight", connections.unsent_bytes, "unsent")


def put_pressure(values: Values, pressure: Pressure) -> None:
    values.put("triptych_overload_level", pressure.level)
    values.put("triptych_queue_wait_seconds", pressure.wait_s)
    values.put("triptych_loop_lag_seconds", pressure.loop_lag)
    values.put("triptych_memory_available_bytes", pressure.available_bytes)
    values.put("triptych_memory_reserve_bytes", pressure.reserve_bytes)
    values.put("triptych_queue_waiting", pressure.waiting(), "turn")
    for reason in OVERLOADS:
        values.put("triptych_overload_refused_total", pressure.refused[reason], reason)
        values.put("triptych_requests_refused_total", pressure.refused[reason], reason)


def put_admission(values: Values, admission: Admission) -> None:
    values.put("triptych_requests_in_flight", admission.requests, "all")
    values.put("triptych_requests_in_flight", admission.announced, "announced")
    values.put("triptych_requests_in_flight", admission.heavy_requests(), "heavy")
    values.put("triptych_bytes_in_flight", admission.body_bytes, "bodies")
    values.put("triptych_memory_bytes", admission.body_bytes, NAME, "bodies")


def put_queues(values: Values, links: Links, gate: Gate, samples: SampleWrites, spool: Spool, log: LogArea) -> None:
    for name, places in (("light", gate.light), ("trials", gate.trials), ("heavy", gate.heavy)):
        values.put("triptych_queue_waiting", places.waiting, name)
        values.put("triptych_queue_oldest_seconds", places.longest_wait_s, name)
    values.put("triptych_queue_waiting", samples.waiting_requests, "samples")
    values.put("triptych_queue_waiting", log.records_waiting(), "log")
    oldest = [next(iter(worker.pending.values())).call.asked_at for worker in links.connected() if worker.pending]
    values.put("triptych_queue_oldest_seconds", time.monotonic() - min(oldest) if oldest else 0.0, "workers")
    values.put("triptych_bytes_in_flight", samples.waiting_bytes, "samples")
    values.put("triptych_bytes_in_flight", spool.bytes, "spool")
    values.put("triptych_log_followers", log.followers.count)
    values.put("triptych_log_policies_age_seconds", log.policy_passes.age_s)


def put_access(values: Values, access: Gatekeeper) -> None:
    for reason in KEPT_OUT:
        values.put("triptych_access_refused_total", access.refused[reason], reason)
    for result in ("success", "failure"):
        values.put("triptych_access_reloads_total", access.reloads[result], result)
    values.put("triptych_access_files_valid", access.is_current)
    if access.certificate_expires_at is not None:
        values.put("triptych_tls_certificate_expiry_timestamp_seconds", access.certificate_expires_at)


def put_shards(values: Values, links: Links) -> None:
    for shard in links.states():
        values.put("triptych_shard_ready", shard.state == "ready", str(shard.number), shard.state)
        for kind, count in shard.counts.items():
            values.put("triptych_shard_items", count, str(shard.number), kind)
        values.put("triptych_cluster_shards", len(links.states()), str(shard.number))
    values.put("triptych_shards_refused", sum(shard.state == "failed" for shard in links.states()))
    values.put("triptych_workers", len(links.workers()))


def put_workers(values: Values, links: Links) -> None:
    for worker in links.connected():
        values.put("triptych_worker_in_flight", len(worker.pending), worker.name)
        values.put("triptych_worker_in_flight_bytes", worker.pending_bytes, worker.name)
    for name, count in links.registrations.items():
        values.put("triptych_worker_restarts_total", count - 1, name)


def put_settings(values: Values, settings: Settings, started_at: float) -> None:
    values.put("triptych_build_info", 1, version(), str(FORMAT), platform.python_version())
    values.put("triptych_start_time_seconds", started_at)
    values.put("triptych_workers_expected", settings.worker_count())
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if isinstance(value, bool) or not isinstance(value, int):
            continue
        if field.name.endswith(DURATION):
            values.put("triptych_setting", value / 1000, field.name.removesuffix(DURATION) + "_seconds")
        else:
            values.put("triptych_setting", value, field.name)
