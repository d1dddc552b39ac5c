"""Every metric of the service: its name, type, labels, and what to do with it.

`python -m coordinator.watching.catalogue` prints the tables of docs/watching.md. Tests compare these tables, the
shipped rules and the dashboard with this list, and this list with what a cluster exposes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from shared.measurements import LONG_S, SHORT_S


@dataclass(frozen=True, slots=True)
class Metric:
    """`type`: "counter", "gauge" or "histogram"; `bounds_s`: of a histogram's buckets, in seconds."""

    name: str
    type: str
    labels: tuple[str, ...]
    help: str
    bounds_s: Sequence[float] = ()

    def series_names(self) -> tuple[str, ...]:
        """The names of its series."""
        if self.type != "histogram":
            return (self.name,)
        return tuple(f"{self.name}_{suffix}" for suffix in ("bucket", "count", "sum"))


def _counter(name: str, labels: str, help: str) -> Metric:
    assert name.endswith("_total"), name
    return Metric(name, "counter", tuple(labels.split()), help)


def _gauge(name: str, labels: str, help: str) -> Metric:
    return Metric(name, "gauge", tuple(labels.split()), help)


def _histogram(name: str, labels: str, help: str, bounds_s: Sequence[float] = SHORT_S) -> Metric:
    return Metric(name, "histogram", tuple(labels.split()), help, bounds_s)


REQUESTS = (
    _counter("triptych_http_requests_total", "method path status", "HTTP requests served, by route"),
    _histogram("triptych_http_request_duration_seconds", "path", "Time to serve an HTTP request, by route", LONG_S),
    _counter(
        "triptych_area_requests_total",
        "area outcome",
        "HTTP requests by area (metrics, log, vector, service) and outcome: ok, refused (4xx, 503), failed (other "
        "5xx), left (the client went away). Alert on the share of failed and refused ones",
    ),
    _histogram("triptych_area_request_duration_seconds", "area", "Time to serve an HTTP request, by area", LONG_S),
    _counter(
        "triptych_requests_refused_total",
        "reason",
        "Requests answered with an error, by reason. memory, reads, writes and heavy are overload; *_bytes, worker_*, "
        "queries_waiting, client_share and requests_in_flight are bounds to raise or clients to slow down; unavailable "
        "is a missing shard or a failed disk; deadline is too much work; the others are mistakes of clients",
    ),
    _counter("triptych_samples_in_total", "", "Samples acknowledged by remote write, native histograms included"),
    _counter("triptych_series_refused_total", "", "Series of remote write requests that were not valid"),
    _counter(
        "triptych_series_by_number_total",
        "",
        "Series of remote write requests that were sent to the workers by their number, because these know the labels",
    ),
    _counter(
        "triptych_stale_writes_total",
        "",
        "Remote write requests of which a part was sent twice, because a shard had been opened anew",
    ),
    _counter("triptych_histograms_in_total", "", "Native histograms acknowledged by remote write"),
    _counter(
        "triptych_histograms_refused_total",
        "",
        "Native histograms that were not valid, or of series that were not valid",
    ),
    _counter("triptych_exemplars_in_total", "", "Exemplars acknowledged by remote write"),
    _counter("triptych_exemplars_refused_total", "", "Exemplars that were not valid, or of series that were not valid"),
    _counter("triptych_log_records_in_total", "", "Log records acknowledged"),
    _counter("triptych_vectors_in_total", "", "Vectors upserted"),
    _gauge("triptych_requests_in_flight", "kind", "Requests served now (all), about to be (announced), heavy queries"),
    _gauge(
        "triptych_bytes_in_flight",
        "kind",
        "Bytes of bodies, of heads, of answers that clients do not take "
        "(unsent) and their files (spool), and of samples that wait for workers (samples)",
    ),
    _gauge("triptych_connections", "", "HTTP connections"),
    _gauge("triptych_connections_waiting", "kind", "HTTP connections that wait for their client"),
    _counter("triptych_connections_ended_total", "reason", "HTTP connections ended or refused"),
    _gauge("triptych_log_followers", "", "Reads that wait for new records of the log"),
    _gauge(
        "triptych_log_policies_age_seconds",
        "",
        "Time since the begin of the last complete pass that applied the log's policies; 0 without policies",
    ),
)
ACCESS = (
    _counter(
        "triptych_access_refused_total",
        "reason",
        "Requests not let in: unauthorized, forbidden, rate (of a token), busy (too many new credentials)",
    ),
    _counter("triptych_access_reloads_total", "result", "Times that changed files of users and tokens were read"),
    _gauge(
        "triptych_access_files_valid",
        "",
        "0 while a file of users, tokens or TLS cannot be used, and what it said before stays in force",
    ),
    _gauge(
        "triptych_config_last_reload_successful",
        "",
        "0 while the configuration file (TRIPTYCH_PROMETHEUS_CONFIG) cannot be used, and what it said before stays in "
        "force; 1 also without such a file",
    ),
    _gauge(
        "triptych_config_last_reload_success_timestamp_seconds",
        "",
        "When the configuration file was read with success, or the start without such a file",
    ),
    _gauge(
        "triptych_tls_certificate_expiry_timestamp_seconds",
        "",
        "When the certificate in use, or one of its chain, ends, in Unix time; absent without TLS",
    ),
)
OVERLOAD = (
    _gauge("triptych_overload_level", "", "What is given up: 0 nothing, 1 background work, 2 heavy queries, 3 writes"),
    _counter("triptych_overload_refused_total", "reason", "Requests refused because of overload"),
    _gauge("triptych_queue_wait_seconds", "", "How long work waits for its turn, on average"),
    _gauge(
        "triptych_queue_waiting",
        "queue",
        "Requests that wait for their turn, queries for a place (light, trials, heavy), samples, log records",
    ),
    _gauge(
        "triptych_queue_oldest_seconds",
        "queue",
        "How long the first of those that wait has waited, for a place (light, trials, heavy) or for an answer of a "
        "worker (workers). If it grows without an end, something hangs",
    ),
    _histogram(
        "triptych_loop_lag_seconds",
        "",
        "How late a timer of the event loop is: all requests wait as long",
    ),
    _gauge("triptych_memory_available_bytes", "", "Memory that is left on the machine or in the control group"),
    _gauge("triptych_memory_reserve_bytes", "", "Writes are refused while less memory than this is available"),
)
CLUSTER = (
    _gauge("triptych_build_info", "version format python", "1; the release, its data format, and Python"),
    _gauge("triptych_start_time_seconds", "", "When the coordinator started, in Unix time"),
    _gauge("triptych_setting", "name", "Settings that bound something: durations in seconds, sizes in bytes"),
    _gauge("triptych_shard_ready", "shard state", "1 where the shard serves. 0: see /-/ready and the worker's log"),
    _gauge("triptych_cluster_shards", "shard", "How many shards the cluster has; one series for each shard"),
    _gauge("triptych_shard_items", "shard kind", "Items a shard holds"),
    _gauge("triptych_workers", "", "Worker processes connected"),
    _gauge("triptych_workers_expected", "", "Worker processes there should be"),
    _counter("triptych_worker_restarts_total", "worker", "Restarts of workers: the log has the reason"),
    _gauge(
        "triptych_supervisor_start_time_seconds",
        "",
        "When the supervisor of the workers started, in Unix time; of one that was killed until the next one starts",
    ),
    _counter(
        "triptych_worker_exits_total",
        "worker",
        "Processes of a worker that have ended since the supervisor started, also those that never came to serve",
    ),
    _gauge(
        "triptych_worker_last_exit_timestamp_seconds",
        "worker reason",
        "When the last of them ended, in Unix time, and how: a signal or an exit code",
    ),
    _gauge("triptych_worker_in_flight", "worker", "Requests that a worker has been sent and has not answered"),
    _gauge("triptych_worker_in_flight_bytes", "worker", "Bytes of these requests"),
    _gauge("triptych_worker_measured_seconds", "worker", "Age of the worker's numbers. If it grows, the worker hangs"),
    _gauge("triptych_disk_free_bytes", "", "Free space where the data directory is. At 0 writes are refused"),
    _gauge("triptych_disk_size_bytes", "", "Size of the file system where the data directory is"),
    _gauge("triptych_disk_measured_seconds", "", "Age of the two numbers above. If it grows, the disk does not answer"),
    _gauge("triptych_damaged", "shard area", "Damaged things that are known: answers that lack them say so"),
    _gauge("triptych_shards_refused", "", "Shards that could not be opened or refuse because of damage"),
)
SELF_SCRAPE = (
    _counter("triptych_self_scrapes_total", "", "Times that the service stored its own metrics"),
    _counter("triptych_self_scrape_samples_total", "", "Samples of its own metrics that it has stored"),
    _counter(
        "triptych_self_scrape_dropped_total",
        "reason",
        "Samples of its own metrics that were dropped: overload, shard (missing), late (the last one is "
        "still being written), refused",
    ),
    _counter(
        "triptych_self_scrape_seconds_total",
        "",
        "Processor time that this took in the coordinator",
    ),
)
SCRAPING = (
    _gauge(
        "triptych_scrape_targets", "health", "Targets that are scraped: up, down, or unknown before the first scrape"
    ),
    _gauge("triptych_scrape_series", "", "Series of targets that are remembered, which takes memory"),
    _counter(
        "triptych_scrapes_total",
        "outcome",
        "Scrapes of targets: ok, failed (of the target, or of the store), skipped (because of overload)",
    ),
    _counter("triptych_scrape_samples_total", "", "Samples of targets that were stored, after relabelling"),
    _counter("triptych_scrape_refused_total", "", "Samples of targets that could not be stored, or were not valid"),
    _counter("triptych_scrape_seconds_total", "", "Processor time of parsing what targets answer"),
    _counter("triptych_scrape_discovery_failures_total", "", "Files and URLs with targets that could not be used"),
)
WORKERS = (
    _counter("triptych_worker_requests_total", "worker method", "Requests that a worker has answered"),
    _counter("triptych_worker_request_seconds_total", "worker method", "Time that a worker has worked on them"),
    _gauge("triptych_worker_lane_running", "worker lane", "Requests that run now"),
    _gauge("triptych_worker_lane_waiting", "worker lane", "Requests that wait for a thread"),
    _gauge("triptych_worker_lane_oldest_seconds", "worker lane", "How long the first of them has waited"),
    _histogram("triptych_worker_lane_wait_seconds", "worker lane", "How long requests waited for a thread"),
    _histogram("triptych_worker_lane_duration_seconds", "worker lane", "How long requests ran"),
    _gauge("triptych_background_paused", "worker", "1 while background work is put off because of overload"),
)
PROCESSES = (
    _counter("triptych_process_cpu_seconds_total", "process", "Processor time"),
    _gauge("triptych_process_resident_bytes", "process", "Memory in use, pages shared with other processes included"),
    _gauge("triptych_process_virtual_bytes", "process", "Address space"),
    _gauge(
        "triptych_process_anonymous_bytes",
        "process",
        "Memory in use that is not of files, pages shared with forked processes included",
    ),
    _gauge(
        "triptych_process_shared_bytes",
        "process",
        "Memory in use that other processes have too: libraries, and pages of forked processes; up to a minute old",
    ),
    _gauge("triptych_process_pss_bytes", "process", "Memory in use, its part of shared pages only; up to a minute old"),
    _gauge("triptych_process_open_files", "process", "Open files and sockets"),
    _gauge("triptych_process_open_files_max", "process", "The limit on them: raise it with ulimit -n or LimitNOFILE"),
    _gauge("triptych_process_threads", "process", "Threads"),
    _gauge("triptych_process_start_time_seconds", "process", "When the process started, in Unix time"),
    _gauge(
        "triptych_memory_bytes",
        "process owner",
        "Memory by owner: program (interpreter, modules and kernels), index (labels and postings of series), head "
        "(samples not in blocks yet), exemplars, block_cache, log (records in memory), rows (RocksDB), vectors (rows "
        "and index), queries (their arrays), bodies (of requests), known_labels (of remote write 2.0), "
        "otlp_label_sets, series_references (series sent by their numbers), request_templates (of remote write 2.0), "
        "query_labels (of queries of few series), other (anonymous memory that none of these has)",
    ),
    _counter("process_cpu_seconds_total", "", "Processor time of the coordinator"),
    _gauge("process_resident_memory_bytes", "", "Memory of the coordinator"),
    _gauge("process_virtual_memory_bytes", "", "Address space of the coordinator"),
    _gauge("process_start_time_seconds", "", "When the coordinator started, in Unix time"),
    _gauge("process_open_fds", "", "Open files and sockets of the coordinator"),
    _gauge("process_max_fds", "", "The limit on them"),
)
DISK = (
    _histogram("triptych_wal_fsync_seconds", "worker", "fsync of the write-ahead log: durable writes wait for it"),
    _counter("triptych_wal_written_bytes_total", "worker", "Bytes of records written to the write-ahead log"),
    _gauge("triptych_wal_bytes", "worker", "Bytes of its files in use"),
    _gauge("triptych_wal_files", "worker", "Its files in use. If they only grow, sealing or gathering fails"),
    _gauge("triptych_wal_oldest_seconds", "worker", "Age of the oldest file with records that a shard still needs"),
    _gauge("triptych_wal_failed", "worker", "1 when it takes no more records: the disk is full or failing"),
    _histogram("triptych_commit_seconds", "worker", "A commit of samples: registering, writing, fsync, showing"),
    _counter("triptych_commit_requests_total", "worker", "Write requests in these commits"),
    _counter("triptych_commit_failures_total", "worker", "Shards whose part of a commit failed: see the worker's log"),
    _gauge("triptych_commit_waiting", "worker", "Write requests that wait for the next commit"),
    _gauge("triptych_commit_oldest_seconds", "worker", "How long the first of them has waited"),
    _gauge("triptych_rows_file_bytes", "shard", "Files of the shard's store (RocksDB)"),
    _gauge("triptych_rows_compaction_pending_bytes", "shard", "What the store still has to compact"),
    _gauge("triptych_rows_stopped", "shard", "1 while the store takes no writes because it is behind with compaction"),
    _gauge("triptych_rows_failed", "shard", "1 when a write of the store has failed: the disk is full or failing"),
    _counter("triptych_rows_fsyncs_total", "shard", "fsyncs of the store"),
    _counter("triptych_rows_fsync_seconds_total", "shard", "Time that they took"),
)
AREAS = (
    _gauge("triptych_series", "shard", "Series in the index"),
    _counter("triptych_samples_stored_total", "shard", "Samples accepted by the shard, those of the service included"),
    _gauge("triptych_exemplars", "shard", "Exemplars in memory"),
    _counter(
        "triptych_exemplars_arrived_total",
        "shard result",
        "Exemplars that came: stored, repeated (it was there already), out_of_order (older than the latest of its "
        "series), and those of the stored ones that were dropped because of a bound (bound)",
    ),
    _gauge("triptych_head_samples", "shard", "Samples that are in memory and in the write-ahead log only"),
    _gauge(
        "triptych_head_bytes",
        "shard",
        "Memory that they take. Writes are refused at four times the shard's part of TRIPTYCH_HEAD_BYTES",
    ),
    _gauge("triptych_blocks", "shard", "Blocks of samples"),
    _gauge("triptych_block_bytes", "shard", "Bytes of their files"),
    _gauge("triptych_blocks_broken", "shard", "Blocks set aside because they are damaged: restore their files"),
    _counter("triptych_blocks_dropped_total", "shard", "Blocks dropped by retention"),
    _counter("triptych_upkeep_runs_total", "shard kind", "Heads sealed into blocks (seal), blocks merged (merge)"),
    _counter(
        "triptych_seals_total",
        "shard reason",
        "Heads sealed, by reason: window (it is over), size (TRIPTYCH_HEAD_BYTES), log (the write-ahead log waits), "
        "rest (nearly nothing arrives), late (old samples), retry (after a failure)",
    ),
    _counter("triptych_upkeep_seconds_total", "shard kind", "Time that this took"),
    _counter("triptych_upkeep_failures_total", "shard", "Attempts that failed: see the worker's log"),
    _counter("triptych_block_cache_hits_total", "worker", "Reads of chunks of blocks that found them in memory"),
    _counter("triptych_block_cache_misses_total", "worker", "Those that did not"),
    _gauge("triptych_block_cache_bytes_max", "worker", "The cache's bound"),
    _gauge("triptych_log_records", "shard", "Records of the log"),
    _gauge("triptych_log_key_starts", "shard", "Deleted or trimmed keys of which records may still be stored"),
    _counter("triptych_log_cleaner_failures_total", "worker", "Attempts to remove deleted records that failed"),
    _counter("triptych_log_gatherings_total", "shard", "Times that records were gathered from memory into the store"),
    _counter("triptych_log_gathering_seconds_total", "shard", "Time that this took"),
    _counter("triptych_log_keeper_failures_total", "worker", "Attempts to sync or gather the log that failed"),
    _gauge("triptych_vector_rows", "worker", "Vectors"),
    _gauge("triptych_vector_rows_dead", "worker", "Replaced and deleted vectors that the index still has"),
    _gauge("triptych_vectors_to_index", "shard", "Vectors that no index has yet: searches compare each of them"),
    _counter("triptych_vector_index_failures_total", "worker", "Attempts to index or save that failed: see its log"),
)
RULES = (
    _gauge("triptych_rule_group_interval_seconds", "rule_group", "Time from one evaluation of a group to the next"),
    _gauge("triptych_rule_group_rules", "rule_group", "Rules of a group"),
    _counter("triptych_rule_group_iterations_total", "rule_group", "Evaluations of a group"),
    _counter(
        "triptych_rule_group_iterations_missed_total",
        "rule_group",
        "Times at which a group was not evaluated because the evaluation before took too long",
    ),
    _counter("triptych_rule_group_duration_seconds_total", "rule_group", "Time that evaluations of a group took"),
    _gauge("triptych_rule_group_last_duration_seconds", "rule_group", "Time that the last evaluation of a group took"),
    _gauge(
        "triptych_rule_group_last_evaluation_timestamp_seconds",
        "rule_group",
        "When a group was evaluated last, in Unix time; 0 before the first time",
    ),
    _gauge("triptych_rule_group_last_evaluation_samples", "rule_group", "Samples that the last evaluation stored"),
    _counter("triptych_rule_evaluations_total", "rule_group", "Evaluations of rules of a group"),
    _counter(
        "triptych_rule_evaluation_failures_total",
        "rule_group",
        "Evaluations of rules that failed, or whose result could not be stored; /api/v1/rules has the errors",
    ),
    _gauge("triptych_rule_alertmanagers", "", "Alertmanagers that alerts are sent to"),
    _gauge("triptych_rule_alerts_queued", "alertmanager", "Alerts that wait for an Alertmanager"),
    _counter("triptych_rule_alerts_sent_total", "alertmanager", "Alerts that an Alertmanager has taken"),
    _counter("triptych_rule_alerts_failed_total", "alertmanager", "Alerts that an Alertmanager did not take, each try"),
    _counter(
        "triptych_rule_alerts_dropped_total",
        "alertmanager",
        "Alerts that were not sent: refused, out of date, or too many waited; without a label: not relabelled",
    ),
)
GROUPS: tuple[tuple[str, Sequence[Metric]], ...] = (
    ("Requests", REQUESTS),
    ("Who gets in", ACCESS),
    ("Overload and queues", OVERLOAD),
    ("Cluster, disk space, damage", CLUSTER),
    ("The service's own metrics", SELF_SCRAPE),
    ("Scraping", SCRAPING),
    ("Workers", WORKERS),
    ("Processes and memory", PROCESSES),
    ("Commits, write-ahead log, stores", DISK),
    ("Series, log, vectors", AREAS),
    ("Rules and alerts, with a configuration file", RULES),
)
METRICS = {metric.name: metric for _, group in GROUPS for metric in group}

SCRAPE_SERIES = (
    "up",
    "scrape_duration_seconds",
    "scrape_samples_scraped",
    "scrape_samples_post_metric_relabeling",
    "scrape_series_added",
)
"""What a scrape adds to what it has read, as Prometheus's scrapes do."""


def table() -> str:
    """The metrics as Markdown."""
    return "".join(_lines())


def _lines() -> Iterable[str]:
    for title, group in GROUPS:
        yield f"\n**{title}**\n\n| metric | type | labels | meaning |\n|---|---|---|---|\n"
        for metric in group:
            labels = ", ".join(f"`{label}`" for label in metric.labels)
            yield f"| `{metric.name}` | {metric.type} | {labels} | {metric.help} |\n"


if __name__ == "__main__":
    sys.stdout.write(table())
