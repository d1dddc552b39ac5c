"""Every metric of the service: its name, type, labels, and what to do with it.

`python -m coordinator.watching.catalogue` prints the tables of docs/watching.md. Tests compare these tables, the
shipped rules and the dashboard with this list, and this list with what a cluster exposes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from coordinator.watching.metric import Metric, counter, gauge, histogram
from shared.measurements import LONG_S

REQUESTS = (
    counter("triptych_http_requests_total", "method path status", "HTTP requests served, by route"),
    histogram("triptych_http_request_duration_seconds", "path", "Time to serve an HTTP request, by route", LONG_S),
    counter(
        "triptych_area_requests_total",
        "area outcome",
        "HTTP requests by area (metrics, log, vector, service) and outcome: ok, refused (4xx, 503), failed (other "
        "5xx), left (the client went away). Alert on the share of failed and refused ones",
    ),
    histogram("triptych_area_request_duration_seconds", "area", "Time to serve an HTTP request, by area", LONG_S),
    counter(
        "triptych_requests_refused_total",
        "reason",
        "Requests answered with an error, by reason. memory, reads, writes and heavy are overload; *_bytes, worker_*, "
        "queries_waiting, client_share and requests_in_flight are limits to raise or clients to slow down; unavailable "
        "is a missing shard or a failed disk; deadline is too much work; the others are client errors",
    ),
    counter("triptych_samples_in_total", "", "Samples acknowledged by remote write, native histograms included"),
    counter("triptych_series_refused_total", "", "Invalid series in remote write requests"),
    counter(
        "triptych_series_by_number_total",
        "",
        "Series in remote write requests that the coordinator sent to the workers by number instead of by labels",
    ),
    counter(
        "triptych_stale_writes_total",
        "",
        "Remote write requests of which a part was sent twice because a shard had been reopened",
    ),
    counter("triptych_histograms_in_total", "", "Native histograms acknowledged by remote write"),
    counter(
        "triptych_histograms_refused_total",
        "",
        "Native histograms that were invalid, or whose series was",
    ),
    counter("triptych_exemplars_in_total", "", "Exemplars acknowledged by remote write"),
    counter("triptych_exemplars_refused_total", "", "Exemplars that were invalid, or whose series was"),
    counter("triptych_log_records_in_total", "", "Log records acknowledged"),
    counter("triptych_vectors_in_total", "", "Vectors upserted"),
    gauge(
        "triptych_requests_in_flight",
        "kind",
        "Requests in flight (all), requests whose head has arrived (announced), heavy queries in flight (heavy)",
    ),
    gauge(
        "triptych_bytes_in_flight",
        "kind",
        "Bytes of request bodies and heads, of responses that clients have not read, in memory (unsent) and in files "
        "(spool), and of samples that wait for workers (samples)",
    ),
    gauge("triptych_connections", "", "HTTP connections"),
    gauge("triptych_connections_waiting", "kind", "HTTP connections that wait for their client, by what they wait for"),
    counter("triptych_connections_ended_total", "reason", "HTTP connections ended or refused"),
    gauge("triptych_log_followers", "", "Reads that wait for new records of the log"),
    gauge(
        "triptych_log_policies_age_seconds",
        "",
        "Time since the last complete application of the log's policies began; 0 without policies",
    ),
)
ACCESS = (
    counter(
        "triptych_access_refused_total",
        "reason",
        "Requests without access: unauthorized, forbidden, rate (limit of a token), busy (too many new credentials)",
    ),
    counter("triptych_access_reloads_total", "result", "Reloads of changed user and token files, by result"),
    gauge(
        "triptych_access_files_valid",
        "",
        "0 while a file of users, tokens or TLS settings is invalid; its previous content stays in force",
    ),
    gauge(
        "triptych_config_last_reload_successful",
        "",
        "0 while the configuration file (TRIPTYCH_PROMETHEUS_CONFIG) is invalid; its previous content stays in force. "
        "1 without such a file",
    ),
    gauge(
        "triptych_config_last_reload_success_timestamp_seconds",
        "",
        "Unix time of the last successful load of the configuration file, or of the start without such a file",
    ),
    gauge(
        "triptych_tls_certificate_expiry_timestamp_seconds",
        "",
        "Unix time at which the certificate in use, or one of its chain, expires; absent without TLS",
    ),
)
OVERLOAD = (
    gauge(
        "triptych_overload_level",
        "",
        "What is suspended: 0 nothing, 1 background work, 2 also heavy queries, 3 also writes",
    ),
    counter("triptych_overload_refused_total", "reason", "Requests refused because of overload"),
    gauge("triptych_queue_wait_seconds", "", "Average queueing delay"),
    gauge(
        "triptych_queue_waiting",
        "queue",
        "Items in each queue: requests, queries that wait for a slot (light, trials, heavy), samples, log records",
    ),
    gauge(
        "triptych_queue_oldest_seconds",
        "queue",
        "Waiting time of the oldest item: a query that waits for a slot (light, trials, heavy) or for a worker's reply "
        "(workers). If it keeps growing, something hangs",
    ),
    histogram(
        "triptych_loop_lag_seconds",
        "",
        "Lateness of a timer of the event loop: every request waits as long",
    ),
    gauge("triptych_memory_available_bytes", "", "Available memory of the machine or the control group"),
    gauge("triptych_memory_reserve_bytes", "", "Available memory below which writes are refused"),
)
CLUSTER = (
    gauge("triptych_build_info", "version format python", "1; the release, its data format, and Python"),
    gauge("triptych_start_time_seconds", "", "Start time of the coordinator, in Unix time"),
    gauge("triptych_setting", "name", "Values of settings that are limits: durations in seconds, sizes in bytes"),
    gauge(
        "triptych_shard_ready", "shard state", "1 if the shard serves requests. If 0, see /-/ready and the worker's log"
    ),
    gauge("triptych_cluster_shards", "shard", "Number of shards of the cluster; one series for each shard"),
    gauge("triptych_shard_items", "shard kind", "Items that a shard holds"),
    gauge("triptych_workers", "", "Worker processes connected"),
    gauge("triptych_workers_expected", "", "Expected number of worker processes"),
    counter("triptych_worker_restarts_total", "worker", "Restarts of a worker; the log has the reason"),
    gauge(
        "triptych_supervisor_start_time_seconds",
        "",
        "Start time of the workers' supervisor, in Unix time; of a killed one until the next one starts",
    ),
    counter(
        "triptych_worker_exits_total",
        "worker",
        "Exits of a worker's processes since the supervisor started, including those before it was ready",
    ),
    gauge(
        "triptych_worker_last_exit_timestamp_seconds",
        "worker reason",
        "Unix time of the last exit; its reason is a signal or an exit code",
    ),
    gauge("triptych_worker_in_flight", "worker", "Requests in flight to a worker"),
    gauge("triptych_worker_in_flight_bytes", "worker", "Bytes of these requests"),
    gauge(
        "triptych_worker_measured_seconds", "worker", "Age of the worker's measurements. If it grows, the worker hangs"
    ),
    gauge(
        "triptych_disk_free_bytes", "", "Free space of the file system of the data directory. At 0, writes are refused"
    ),
    gauge("triptych_disk_size_bytes", "", "Size of the file system of the data directory"),
    gauge("triptych_disk_measured_seconds", "", "Age of the two measurements above. If it grows, the disk hangs"),
    gauge("triptych_damaged", "shard area", "Known damage; responses that lack damaged data say so"),
    gauge("triptych_shards_refused", "", "Shards that could not be opened, or refuse requests, because of damage"),
)
SELF_SCRAPE = (
    counter("triptych_self_scrapes_total", "", "Scrapes of the service's own metrics"),
    counter("triptych_self_scrape_samples_total", "", "Stored samples of the service's own metrics"),
    counter(
        "triptych_self_scrape_dropped_total",
        "reason",
        "Samples of its own metrics that were dropped, by reason: overload, shard (one is missing), late (the previous "
        "write is still running), refused",
    ),
    counter(
        "triptych_self_scrape_seconds_total",
        "",
        "CPU time of self-scraping in the coordinator",
    ),
)
SCRAPING = (
    gauge(
        "triptych_scrape_targets", "health", "Scrape targets by health: up, down, or unknown before the first scrape"
    ),
    gauge("triptych_scrape_series", "", "Series of targets that the coordinator remembers, which takes memory"),
    counter(
        "triptych_scrapes_total",
        "outcome",
        "Scrapes by outcome: ok, failed (target or store), skipped (overload)",
    ),
    counter("triptych_scrape_samples_total", "", "Scraped samples that were stored, after relabelling"),
    counter("triptych_scrape_refused_total", "", "Scraped samples that were invalid or could not be stored"),
    counter("triptych_scrape_seconds_total", "", "CPU time of parsing scrape responses"),
    counter("triptych_scrape_discovery_failures_total", "", "Failed reads of files and URLs that list targets"),
)
WORKERS = (
    counter("triptych_worker_requests_total", "worker method", "Requests that a worker has completed"),
    counter("triptych_worker_request_seconds_total", "worker method", "Time that a worker has spent on them"),
    gauge("triptych_worker_lane_running", "worker lane", "Running requests"),
    gauge("triptych_worker_lane_waiting", "worker lane", "Requests that wait for a thread"),
    gauge("triptych_worker_lane_oldest_seconds", "worker lane", "Waiting time of the oldest of them"),
    histogram("triptych_worker_lane_wait_seconds", "worker lane", "Time that requests waited for a thread"),
    histogram("triptych_worker_lane_duration_seconds", "worker lane", "Running time of requests"),
    gauge("triptych_background_paused", "worker", "1 while background work is suspended because of overload"),
)
PROCESSES = (
    counter("triptych_process_cpu_seconds_total", "process", "CPU time"),
    gauge("triptych_process_resident_bytes", "process", "Resident memory, including pages shared with other processes"),
    gauge("triptych_process_virtual_bytes", "process", "Address space"),
    gauge(
        "triptych_process_anonymous_bytes",
        "process",
        "Resident anonymous memory, including pages shared with forked processes",
    ),
    gauge(
        "triptych_process_shared_bytes",
        "process",
        "Resident memory shared with other processes: libraries, and pages of forked processes; up to a minute old",
    ),
    gauge(
        "triptych_process_pss_bytes",
        "process",
        "Resident memory, with its share of shared pages only; up to a minute old",
    ),
    gauge("triptych_process_open_files", "process", "Open files and sockets"),
    gauge("triptych_process_open_files_max", "process", "Limit on open files; raise it with ulimit -n or LimitNOFILE"),
    gauge("triptych_process_threads", "process", "Threads"),
    gauge("triptych_process_start_time_seconds", "process", "Start time of the process, in Unix time"),
    gauge(
        "triptych_memory_bytes",
        "process owner",
        "Memory by owner: program (interpreter, modules and kernels), index (labels and postings of series), head "
        "(samples not in blocks yet), exemplars, block_cache, log (records in memory), rows (RocksDB), vectors (rows "
        "and index), queries (their arrays), bodies (of requests), known_labels (of remote write 2.0), "
        "otlp_label_sets, series_references (series sent by their numbers), request_templates (of remote write 2.0), "
        "query_labels (of queries of few series), other (anonymous memory of none of these)",
    ),
    counter("process_cpu_seconds_total", "", "CPU time of the coordinator"),
    gauge("process_resident_memory_bytes", "", "Resident memory of the coordinator"),
    gauge("process_virtual_memory_bytes", "", "Address space of the coordinator"),
    gauge("process_start_time_seconds", "", "Start time of the coordinator, in Unix time"),
    gauge("process_open_fds", "", "Open files and sockets of the coordinator"),
    gauge("process_max_fds", "", "Limit on them"),
)
DISK = (
    histogram(
        "triptych_wal_fsync_seconds",
        "worker",
        "Duration of an fsync of the write-ahead log, for which durable writes wait",
    ),
    counter("triptych_wal_written_bytes_total", "worker", "Bytes of records written to the write-ahead log"),
    gauge("triptych_wal_bytes", "worker", "Size of the files of the write-ahead log in use"),
    gauge(
        "triptych_wal_files",
        "worker",
        "Files of the write-ahead log in use. If the number only grows, sealing or gathering fails",
    ),
    gauge("triptych_wal_oldest_seconds", "worker", "Age of the oldest file with records that a shard still needs"),
    gauge(
        "triptych_wal_failed", "worker", "1 if the write-ahead log takes no more records: the disk is full or failing"
    ),
    histogram(
        "triptych_commit_seconds",
        "worker",
        "Duration of a commit of samples: registering series, writing, fsync, making visible",
    ),
    counter("triptych_commit_requests_total", "worker", "Write requests in these commits"),
    counter("triptych_commit_failures_total", "worker", "Shards whose part of a commit failed; see the worker's log"),
    gauge("triptych_commit_waiting", "worker", "Write requests that wait for the next commit"),
    gauge("triptych_commit_oldest_seconds", "worker", "Waiting time of the oldest of them"),
    gauge("triptych_rows_file_bytes", "shard", "Size of the files of the shard's store (RocksDB)"),
    gauge("triptych_rows_compaction_pending_bytes", "shard", "Bytes that the store still has to compact"),
    gauge("triptych_rows_stopped", "shard", "1 while the store blocks writes because compaction is behind"),
    gauge("triptych_rows_failed", "shard", "1 if a write of the store has failed: the disk is full or failing"),
    counter("triptych_rows_fsyncs_total", "shard", "fsyncs of the store"),
    counter("triptych_rows_fsync_seconds_total", "shard", "Time that they took"),
)
AREAS = (
    gauge("triptych_series", "shard", "Series in the index"),
    counter(
        "triptych_samples_stored_total", "shard", "Samples stored by the shard, including the service's own metrics"
    ),
    gauge("triptych_exemplars", "shard", "Exemplars in memory"),
    counter(
        "triptych_exemplars_arrived_total",
        "shard result",
        "Exemplars received, by result: stored, repeated (it was stored already), out_of_order (older than the latest "
        "one of its series), and bound (stored, and dropped later because of a limit)",
    ),
    gauge("triptych_head_samples", "shard", "Samples that are only in memory and in the write-ahead log"),
    gauge(
        "triptych_head_bytes",
        "shard",
        "Memory that they use. Writes are refused at four times the shard's share of TRIPTYCH_HEAD_BYTES",
    ),
    gauge("triptych_blocks", "shard", "Blocks of samples"),
    gauge("triptych_block_bytes", "shard", "Size of the files of the blocks"),
    gauge("triptych_blocks_broken", "shard", "Damaged blocks that were set aside; restore their files"),
    counter("triptych_blocks_dropped_total", "shard", "Blocks dropped by retention"),
    counter("triptych_upkeep_runs_total", "shard kind", "Heads sealed into blocks (seal), blocks merged (merge)"),
    counter(
        "triptych_seals_total",
        "shard reason",
        "Heads sealed, by reason: window (it is over), size (TRIPTYCH_HEAD_BYTES), log (the write-ahead log waits), "
        "rest (nearly nothing arrives), late (old samples), retry (after a failure)",
    ),
    counter("triptych_upkeep_seconds_total", "shard kind", "Time spent on them"),
    counter("triptych_upkeep_failures_total", "shard", "Failed attempts; see the worker's log"),
    counter("triptych_block_cache_hits_total", "worker", "Reads of block chunks that the cache served"),
    counter("triptych_block_cache_misses_total", "worker", "Reads of block chunks that the cache did not serve"),
    gauge("triptych_block_cache_bytes_max", "worker", "Maximum size of the cache"),
    gauge("triptych_log_records", "shard", "Records of the log"),
    gauge("triptych_log_key_starts", "shard", "Deleted or trimmed keys whose records may still be stored"),
    counter("triptych_log_cleaner_failures_total", "worker", "Failed attempts to remove deleted records"),
    counter("triptych_log_gatherings_total", "shard", "Gatherings: flushes of records from memory to the store"),
    counter("triptych_log_gathering_seconds_total", "shard", "Time spent on them"),
    counter("triptych_log_keeper_failures_total", "worker", "Failed attempts to sync or gather the log"),
    gauge("triptych_vector_rows", "worker", "Vectors"),
    gauge("triptych_vector_rows_dead", "worker", "Replaced and deleted vectors that the index still has"),
    gauge("triptych_vectors_to_index", "shard", "Vectors that are not indexed yet; searches compare each of them"),
    counter(
        "triptych_vector_index_failures_total",
        "worker",
        "Failed attempts to index or to save the index; see the worker's log",
    ),
)
RULES = (
    gauge("triptych_rule_group_interval_seconds", "rule_group", "Evaluation interval of a group"),
    gauge("triptych_rule_group_rules", "rule_group", "Rules of a group"),
    counter("triptych_rule_group_iterations_total", "rule_group", "Evaluations of a group"),
    counter(
        "triptych_rule_group_iterations_missed_total",
        "rule_group",
        "Skipped evaluations of a group because the previous one took too long",
    ),
    counter("triptych_rule_group_duration_seconds_total", "rule_group", "Time that evaluations of a group took"),
    gauge("triptych_rule_group_last_duration_seconds", "rule_group", "Time that the last evaluation of a group took"),
    gauge(
        "triptych_rule_group_last_evaluation_timestamp_seconds",
        "rule_group",
        "Unix time of the last evaluation of a group; 0 before the first",
    ),
    gauge("triptych_rule_group_last_evaluation_samples", "rule_group", "Samples that the last evaluation stored"),
    counter("triptych_rule_evaluations_total", "rule_group", "Evaluations of rules of a group"),
    counter(
        "triptych_rule_evaluation_failures_total",
        "rule_group",
        "Rule evaluations that failed, or whose result could not be stored; /api/v1/rules has the errors",
    ),
    gauge("triptych_rule_alertmanagers", "", "Alertmanagers that alerts are sent to"),
    gauge("triptych_rule_alerts_queued", "alertmanager", "Alerts that wait for an Alertmanager"),
    counter("triptych_rule_alerts_sent_total", "alertmanager", "Alerts that an Alertmanager accepted"),
    counter(
        "triptych_rule_alerts_failed_total",
        "alertmanager",
        "Attempts to send an alert that an Alertmanager did not accept",
    ),
    counter(
        "triptych_rule_alerts_dropped_total",
        "alertmanager",
        "Alerts that were dropped: refused, out of date, or too many in the queue; without a label: failed relabelling",
    ),
)
GROUPS: tuple[tuple[str, Sequence[Metric]], ...] = (
    ("Requests", REQUESTS),
    ("Access", ACCESS),
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
"""Series that a scrape adds to those of the target, as Prometheus does."""


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
