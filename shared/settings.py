"""The definition of the settings: names, types, defaults, bounds and meanings. `shared.setting_sources` reads them.

`python -m shared.settings` prints the table for docs/operations.md.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from shared import setting_checks
from shared.errors import ConfigError
from shared.process import processors
from shared.setting_values import as_text

OTLP_STRATEGIES = (
    "UnderscoreEscapingWithSuffixes",
    "UnderscoreEscapingWithoutSuffixes",
    "NoUTF8EscapingWithSuffixes",
    "NoTranslation",
)
LOG_LEVELS = ("debug", "info", "warning", "error")
SHARDS_MAX = 1024
SHARDS_A_WORKER, SHARDS_USUAL_MIN, SHARDS_USUAL_MAX = 2, 4, 16
"""The default number of shards of a new data directory, and its bounds. Each shard costs a write some 45 µs in its
worker and takes a share of the memory bounds; more shards allow more workers later."""


def _setting(
    default: Any,
    doc: str,
    *,
    least: float | None = None,
    most: float | None = None,
    choices: tuple[str, ...] = (),
) -> Any:
    metadata = {"doc": doc, "least": least, "most": most, "choices": choices}
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Fields ending in `_ms` are durations: a number of milliseconds in TOML, or text such as `2m`. Their variable has
    no `_MS`: `TRIPTYCH_QUERY_TIMEOUT=2m`. Fields with `_bytes` take text such as `64MB` or `1GB`, or a number of
    bytes."""

    listen: str = _setting("127.0.0.1:9090", "host:port of the HTTP interface")
    data: Path = _setting(Path("data"), "directory of all data")
    shards: int = _setting(
        0,
        "number of shards, fixed when the data directory is created; 0: those that the directory has, or "
        "of a new one two for each worker, at least 4 and at most 16, but never fewer than workers",
        least=0,
        most=SHARDS_MAX,
    )
    workers: int = _setting(0, "worker processes, 1 to the number of shards; 0: one per core", least=0, most=SHARDS_MAX)
    log_level: str = _setting("info", f"one of {', '.join(LOG_LEVELS)}", choices=LOG_LEVELS)
    self_scrape_ms: int = _setting(
        15_000, 'interval at which the service stores its own metrics, with job="triptych"; 0: never', least=0
    )
    remote_write: bool = _setting(True, "serve POST /api/v1/write")
    otlp: bool = _setting(True, "serve OTLP: POST /v1/metrics and /v1/logs, also under /api/v1/otlp")
    otlp_translation_strategy: str = _setting(
        OTLP_STRATEGIES[0],
        f"how OTLP names are translated to metric and label names, one of {', '.join(OTLP_STRATEGIES)}",
        choices=OTLP_STRATEGIES,
    )
    otlp_promote_resource_attributes: tuple[str, ...] = _setting(
        (), "OTLP resource attributes that become labels of all their series, separated by commas; `*`: all"
    )
    otlp_scope_labels: bool = _setting(True, "label OTLP series with the name and version of their scope")
    otlp_keep_delta: bool = _setting(False, "store OTLP sums and histograms of delta temporality unchanged")
    otlp_custom_buckets: bool = _setting(
        False, "store OTLP histograms as native histograms with custom buckets instead of as classic ones"
    )
    otlp_log_key: str = _setting("service.name", "OTLP resource attribute that becomes the key of log records")
    core_dumps: bool = _setting(
        False, "let a crashing process write a core file, which contains data, and let debuggers attach"
    )
    admin_api: bool = _setting(False, "serve /api/v1/admin (deletion of series, backups) and /api/v1/debug")
    allowed_hosts: tuple[str, ...] = _setting(
        (),
        "host names by which clients reach the server, separated by commas; `*.example.org`: subdomains; `*`: any",
    )
    allowed_origins: tuple[str, ...] = _setting(
        (), "origins of web pages that may change data, separated by commas, such as https://example.org"
    )
    cors_origin: str = _setting("", "regular expression for the origins whose pages may read data; empty: none")
    traces: str = _setting(
        "", "URL of an OpenTelemetry collector to send traces to over OTLP, such as http://127.0.0.1:4318; empty: none"
    )

    web_config: str = _setting("", "file with TLS settings, headers and users, in the format of Prometheus's web.yml")
    prometheus_config: str = _setting(
        "", "file with rules, Alertmanagers and scrape jobs, in the format of prometheus.yml; empty: none"
    )
    external_url: str = _setting(
        "", "URL under which users reach the service, for links in alerts; empty: http(s)://HOSTNAME:PORT"
    )
    tokens: str = _setting("", "file with the hashes and roles of bearer tokens")
    insecure: bool = _setting(False, "allow listening on non-loopback addresses without TLS or authentication")
    health_open: bool = _setting(True, "serve /-/healthy and /-/ready without credentials")

    body_bytes_max: int = _setting(64 << 20, "largest request body", least=1024)
    decompressed_bytes_max: int = _setting(
        256 << 20, "largest body after decompression", least=1024, most=(1 << 31) - 1
    )
    bodies_bytes_max: int = _setting(
        512 << 20, "total size of the bodies of all requests in flight, including decompressed bodies", least=1024
    )
    requests_in_flight_max: int = _setting(1024, "concurrent HTTP requests", least=1)
    connections_max: int = _setting(12_000, "HTTP connections", least=1)
    client_share: int = _setting(
        75,
        "maximum percentage of requests, connections, followers and body bytes that one client may use",
        least=1,
        most=100,
    )
    queue_wait_ms: int = _setting(25, "queueing delay above which requests are refused, if it persists", least=1)
    memory_reserve_bytes: int = _setting(
        0,
        "available memory below which writes are refused; 0: 5 % of the machine's memory, at most 1GB",
        least=0,
    )
    head_timeout_ms: int = _setting(10_000, "time within which the head of a request must arrive", least=1)
    idle_timeout_ms: int = _setting(360_000, "time after which an idle connection is closed", least=1)
    slow_reader_timeout_ms: int = _setting(
        30_000, "time after which a connection is closed whose client reads next to nothing of a response", least=1
    )
    unsent_bytes_max: int = _setting(
        128 << 20,
        "total size of response bytes that clients have not read; above it, the slowest clients are disconnected",
        least=1024,
    )
    spool_bytes_max: int = _setting(
        1 << 30,
        "total disk space in the data directory for response bytes that slow clients have not read",
        least=1 << 20,
    )
    worker_requests_max: int = _setting(512, "requests in flight to one worker", least=1)
    worker_bytes_max: int = _setting(512 << 20, "bytes of requests in flight to one worker", least=1 << 20)
    write_timeout_ms: int = _setting(10_000, "timeout of a write", least=1)

    query_timeout_ms: int = _setting(120_000, "longest timeout of a query", least=1)
    lookback_ms: int = _setting(300_000, "PromQL lookback", least=1)
    query_samples_max: int = _setting(50_000_000, "samples that a query may hold in one process at a time", least=1)
    query_bytes_max: int = _setting(
        512 << 20, "memory that one query may use, in all processes together", least=16 << 20
    )
    queries_bytes_max: int = _setting(
        0,
        "memory that all heavy queries together may use; 0: a quarter of the machine's memory",
        least=0,
    )
    slow_query_ms: int = _setting(10_000, "duration above which a query is logged; 0: none is", least=0)
    query_texts: bool = _setting(
        True, "show query texts, which may contain secrets, in the log and in /api/v1/queries; otherwise their hashes"
    )
    series_limit: int = _setting(10_000, "default limit of /api/v1/series", least=1)
    label_name_bytes_max: int = _setting(1024, "longest label name", least=1)
    label_value_bytes_max: int = _setting(65_536, "longest label value", least=1)
    labels_per_series_max: int = _setting(256, "labels of one series", least=1)
    known_labels_bytes: int = _setting(
        64 << 20,
        "coordinator cache of remote write 2.0 label sets, some 400 bytes each; OTLP has one of the same size; 0: none",
        least=0,
        most=1 << 30,
    )
    series_references_bytes: int = _setting(
        128 << 20,
        "coordinator table of series that it sends to workers by number, some 250 bytes each; 0: none",
        least=0,
        most=4 << 30,
    )
    request_templates_bytes: int = _setting(
        32 << 20,
        "coordinator cache of recurring remote write 2.0 requests, some 110 bytes for each series in them; 0: none",
        least=0,
        most=1 << 30,
    )

    retention_ms: int = _setting(0, "age above which samples are dropped, a block at a time; 0: never", least=0)
    retention_bytes: int = _setting(
        0,
        "total size of all blocks, divided equally among the shards; a shard drops its oldest blocks above its share; "
        "0: never",
        least=0,
    )
    exemplars_bytes: int = _setting(
        64 << 20,
        "memory for exemplars, all shards together; the oldest are dropped; 0: none are stored",
        least=0,
    )
    exemplars_per_series: int = _setting(
        100, "exemplars kept for one series; the oldest are dropped", least=1, most=10_000
    )
    exemplars_retention_ms: int = _setting(
        21_600_000,
        "age, relative to the newest exemplar of the shard, above which exemplars are dropped; 0: never",
        least=0,
    )
    durability: str = _setting(
        "synced",
        "acknowledge a write of samples when it is on disk (synced), or earlier (buffered)",
        choices=("synced", "buffered"),
    )
    commit_delay_ms: int = _setting(
        2, "longest time that a commit of samples waits for further requests; 0: never", least=0, most=1000
    )
    block_window_ms: int = _setting(7_200_000, "time range of a block before compaction", least=1000)
    block_cache_bytes: int = _setting(256 << 20, "cache of block chunks in memory, all shards together", least=0)
    head_bytes: int = _setting(
        512 << 20, "size of the samples in memory, all shards together, above which they are sealed early", least=4096
    )

    vector_dimension: int = _setting(
        0, "components of a vector; 0: as many as the first vector has", least=0, most=16_384
    )
    vector_metric: str = _setting("cosine", "one of cosine, l2, dot", choices=("cosine", "l2", "dot"))
    vector_storage: str = _setting(
        "f32",
        "components in memory, one of f32, f16, i8, b1 (i8 and b1: cosine only)",
        choices=("f32", "f16", "i8", "b1"),
    )
    vector_expansion: int = _setting(
        0, "expansion of a search in each worker's index; 0: measured on the data", least=0, most=10_000
    )
    vector_recall: float = _setting(
        0.95,
        "recall that a search aims at where the expansion is measured",
        least=0.5,
        most=0.999,
    )
    vector_snapshot_ms: int = _setting(60_000, "minimum time between periodic snapshots of a vector index", least=10)
    vector_timeout_ms: int = _setting(10_000, "timeout of a vector search", least=1)

    log_records_max: int = _setting(10_000, "maximum number of records in one append", least=1, most=100_000)
    log_record_bytes_max: int = _setting(8 << 20, "largest value of a log record", least=1)
    log_batch_bytes_max: int = _setting(32 << 20, "total size of the keys and values of one append", least=1)
    log_visibility: str = _setting(
        "memory",
        "memory: reads see all acknowledged records; durable: only records on disk",
        choices=("memory", "durable"),
    )
    log_segment_bytes: int = _setting(1 << 30, "size at which a segment of the log is sealed", least=1024)
    log_segment_age_ms: int = _setting(86_400_000, "age at which a segment of the log is sealed", least=100)
    log_retention_ms: int = _setting(0, "age of its newest record above which a segment is dropped; 0: never", least=0)
    log_retention_bytes: int = _setting(
        0, "size of the log above which its oldest segments are dropped; 0: never", least=0
    )
    log_policies_interval_ms: int = _setting(10_000, "interval at which the policies of the log are applied", least=10)
    log_scan_timeout_ms: int = _setting(600_000, "time after which a scan ends early and reports that it did", least=1)
    log_search_timeout_ms: int = _setting(
        10_000, "time after which a search in values returns what it has found so far and where to continue", least=1
    )
    log_followers_max: int = _setting(10_000, "concurrent reads that wait for new records", least=1)

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            name, value, limits = variable(field.name), getattr(self, field.name), field.metadata
            setting_checks.require_within(name, value, limits["least"], limits["most"])
            setting_checks.require_one_of(name, value, limits["choices"])
        setting_checks.require_hosts("TRIPTYCH_ALLOWED_HOSTS", self.allowed_hosts)
        setting_checks.require_origins("TRIPTYCH_ALLOWED_ORIGINS", self.allowed_origins)
        setting_checks.require_url("TRIPTYCH_TRACES", self.traces, "http://127.0.0.1:4318")
        setting_checks.require_url("TRIPTYCH_EXTERNAL_URL", self.external_url, "https://metrics.example.org")
        if self.shards and self.workers > self.shards:
            raise ConfigError(
                f"TRIPTYCH_WORKERS is {self.workers}; it must be at most TRIPTYCH_SHARDS, which is {self.shards}"
            )
        if self.vector_storage in ("i8", "b1") and self.vector_metric != "cosine":
            raise ConfigError(
                f"TRIPTYCH_VECTOR_STORAGE is {self.vector_storage!r} and TRIPTYCH_VECTOR_METRIC is "
                f"{self.vector_metric!r}; this storage holds unit vectors only, so the metric must be cosine"
            )
        self.address()

    def address(self) -> tuple[str, int]:
        """(host, port) of `listen`. Raises ConfigError."""
        host, colon, port = self.listen.rpartition(":")
        if not colon or not port.isdecimal() or not 0 <= int(port) <= 65535:
            raise ConfigError(f"TRIPTYCH_LISTEN is {self.listen!r}; it must be host:port, such as 127.0.0.1:9090")
        return host.strip("[]") or "0.0.0.0", int(port)

    def worker_count(self) -> int:
        """`workers`, or one worker per core, but at most one per shard."""
        return self.workers or min(_cores(), self.shards or SHARDS_USUAL_MAX)

    def shard_count(self) -> int:
        """`shards`, or the default for a new data directory. For an existing directory, the manifest has the number
        (`shared.manifest.Manifest.settled`)."""
        workers = self.worker_count()
        usual = min(max(SHARDS_A_WORKER * workers, SHARDS_USUAL_MIN), SHARDS_USUAL_MAX)
        return self.shards or max(usual, workers)

    def has_unusual_shards(self) -> bool:
        """Whether the workers would give a new data directory more shards than `SHARDS_USUAL_MAX`."""
        return not self.shards and self.shard_count() > SHARDS_USUAL_MAX


@cache
def _cores() -> int:
    """CPUs that this process may use, rounded up. The first result is kept: a changed quota does not end workers."""
    return math.ceil(processors.usable())


def variable(name: str) -> str:
    """The environment variable of the field `name`."""
    return "TRIPTYCH_" + name.removesuffix("_ms").upper()


def variables() -> list[str]:
    """The variables of all settings."""
    return [variable(field.name) for field in dataclasses.fields(Settings)]


def table() -> str:
    """The settings as a Markdown table for docs/operations.md."""
    rows = ["| variable | default | meaning |", "|---|---|---|"]
    for field in dataclasses.fields(Settings):
        default = as_text(field.name, field.default)
        shown = f"`{default}`" if default else ""
        rows.append(f"| `{variable(field.name)}` | {shown} | {field.metadata['doc']} |")
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    sys.stdout.write(table())
