"""Scrape jobs: the section `scrape_configs` of the configuration file.

https:

prometheus.io/docs/prometheus/latest/configuration/configuration/#scrape_config. Unsupported settings are refused by
name: other service discoveries, proxies, OAuth 2, and the conversion of classic histograms to native ones with custom
buckets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from coordinator.prometheus_config import http_client as http_client_config
from coordinator.prometheus_config import relabelling
from coordinator.prometheus_config.config_file import Configuration
from coordinator.prometheus_config.http_client import HttpClientConfig
from coordinator.prometheus_config.relabelling import Rule
from coordinator.prometheus_config.yaml_fields import Fields, Section
from shared.errors import ConfigError

JOBS_MAX = 1_000
BODY_BYTES_MAX = 64 << 20
"""The largest answer of a target, decompressed, unless `body_size_limit` is smaller."""
TARGETS_MAX = 10_000
"""Targets of one job, unless `target_limit` is smaller."""
DROPPED_SHOWN_MAX = 1_000
"""Dropped targets of a job that are kept to be shown, unless `keep_dropped_targets` is smaller."""
PROTOCOLS = {
    "PrometheusProto": "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited",
    "OpenMetricsText1.0.0": "application/openmetrics-text;version=1.0.0",
    "OpenMetricsText0.0.1": "application/openmetrics-text;version=0.0.1",
    "PrometheusText1.0.0": "text/plain;version=1.0.0",
    "PrometheusText0.0.4": "text/plain;version=0.0.4",
}
TEXT_PROTOCOLS = ("OpenMetricsText1.0.0", "OpenMetricsText0.0.1", "PrometheusText1.0.0", "PrometheusText0.0.4")
ESCAPINGS = ("allow-utf-8", "underscores", "dots", "values")
_WITH_ESCAPING = ("OpenMetricsText1.0.0", "PrometheusText1.0.0")
NOT_SERVED = (
    "convert_classic_histograms_to_nhcb",
    "native_histogram_bucket_limit",
    "native_histogram_min_bucket_factor",
    "scrape_failure_log_file",
)
FILE_ENDINGS = (".json", ".yml", ".yaml")

Labels = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Group:
    """Addresses of targets, and labels that all of them have."""

    addresses: tuple[str, ...]
    labels: Labels


@dataclass(frozen=True, slots=True)
class FileDiscovery:
    """`patterns`: of files, absolute or from the working directory."""

    patterns: tuple[Path, ...]
    refresh_ms: int


@dataclass(frozen=True, slots=True)
class HttpDiscovery:
    url: str
    refresh_ms: int
    http: HttpClientConfig


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one scrape; 0: only that of the service."""

    body_bytes: int
    samples: int
    labels: int
    name_bytes: int
    value_bytes: int
    targets: int
    dropped_shown: int


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """One of `scrape_configs`. Two jobs with the same `source` are the same."""

    name: str
    interval_ms: int
    timeout_ms: int
    scheme: str
    path: str
    params: tuple[tuple[str, tuple[str, ...]], ...]
    honor_labels: bool
    honor_timestamps: bool
    tracks_timestamped: bool
    has_extra_metrics: bool
    with_native_histograms: bool
    keeps_classic_histograms: bool
    is_compressed: bool
    only_plain_names: bool
    accept: str
    fallback: str
    limits: Limits
    http: HttpClientConfig
    relabel: tuple[Rule, ...]
    metric_relabel: tuple[Rule, ...]
    groups: tuple[Group, ...]
    files: tuple[FileDiscovery, ...]
    urls: tuple[HttpDiscovery, ...]
    source: Any = None


def read(configuration: Configuration) -> tuple[Job, ...]:
    """The jobs of a configuration file. Reads the files of their certificates and secrets. Raises ConfigError."""
    sections = configuration.scrape_configs
    if len(sections) > JOBS_MAX:
        raise sections[0].error(f"is one of {len(sections)} jobs; there may be {JOBS_MAX}")
    jobs = tuple(_job(section, configuration) for section in sections)
    names = set[str]()
    for job, section in zip(jobs, sections, strict=True):
        if job.name in names:
            raise section.error(f"is {job.name[:100]!r}, which is the name of a job before it", "job_name")
        names.add(job.name)
    return jobs


def _job(section: Section, configuration: Configuration) -> Job:
    general = configuration.global_
    own = _with_defaults(section, general.scrape)
    for name in NOT_SERVED:
        if own.take(name) not in (None, "", "0", "false"):
            raise own.error("is not served", name)
    for name in own.fields:
        if name.endswith("_sd_configs") and name not in ("file_sd_configs", "http_sd_configs"):
            raise own.error("is not served; served are static_configs, file_sd_configs and http_sd_configs", name)
    interval_ms = own.duration_ms("scrape_interval") or general.scrape_interval_ms
    timeout_ms = own.duration_ms("scrape_timeout") or min(general.scrape_timeout_ms, interval_ms)
    if timeout_ms > interval_ms:
        raise own.error(f"is {timeout_ms} ms, longer than scrape_interval, {interval_ms} ms", "scrape_timeout")
    with_histograms = own.boolean("scrape_native_histograms")
    files, urls = _files(own), _urls(own)
    job = Job(
        name=own.required("job_name"),
        interval_ms=interval_ms,
        timeout_ms=timeout_ms,
        scheme=own.one_of("scheme", ("http", "https"), "http"),
        path=own.text("metrics_path", "/metrics") or "/metrics",
        params=_params(own.section("params")),
        honor_labels=own.boolean("honor_labels"),
        honor_timestamps=own.boolean("honor_timestamps", True),
        tracks_timestamped=own.boolean("track_timestamps_staleness"),
        has_extra_metrics=own.boolean("extra_scrape_metrics"),
        with_native_histograms=with_histograms,
        keeps_classic_histograms=own.boolean("always_scrape_classic_histograms") or _keeps_classic(own),
        is_compressed=own.boolean("enable_compression", True),
        only_plain_names=own.one_of("metric_name_validation_scheme", ("utf8", "legacy"), "utf8") == "legacy",
        accept=_accept(own, with_histograms),
        fallback=own.one_of("fallback_scrape_protocol", ("", *PROTOCOLS), ""),
        limits=_limits(own),
        http=http_client_config.read(own),
        relabel=relabelling.read(own.sections("relabel_configs")),
        metric_relabel=relabelling.read(own.sections("metric_relabel_configs")),
        groups=tuple(_group(group) for group in own.sections("static_configs")),
        files=files,
        urls=urls,
        # Certificates may have changed in their files.
        source=(dict(own.fields), interval_ms, timeout_ms, object() if "tls_config" in own else None),
    )
    own.finish()
    return job


def _with_defaults(section: Section, defaults: Mapping[str, Any]) -> Section:
    """The section, with the values of `global` for settings that it does not have."""
    fields = Fields(section.fields.line)
    fields.update({**defaults, **{name: value for name, value in section.fields.items() if value is not None}})
    fields.lines.update(section.fields.lines)
    return Section(fields, section.path, section.where)


def _keeps_classic(section: Section) -> bool:
    """The name that the setting had in Prometheus 2."""
    return section.boolean("scrape_classic_histograms")


def _params(section: Section | None) -> tuple[tuple[str, tuple[str, ...]], ...]:
    if section is None:
        return ()
    return tuple((name, tuple(section.texts(name))) for name in list(section.fields))


def _accept(section: Section, with_histograms: bool) -> str:
    """The header Accept, of which each media type has a lower quality than the one before it."""
    default = ("PrometheusProto", *TEXT_PROTOCOLS) if with_histograms else TEXT_PROTOCOLS
    names: Sequence[str] = section.texts("scrape_protocols") or default
    escaping = section.one_of("metric_name_escaping_scheme", ESCAPINGS, "allow-utf-8")
    for name in names:
        if name not in PROTOCOLS:
            raise section.error(f"has {name[:100]!r}; it must be one of {', '.join(PROTOCOLS)}", "scrape_protocols")
    if len(set(names)) < len(names):
        raise section.error("names a protocol twice", "scrape_protocols")
    types = []
    for at, name in enumerate(names):
        escaped = f";escaping={escaping}" if name in _WITH_ESCAPING else ""
        types.append(f"{PROTOCOLS[name]}{escaped};q=0.{9 - at}")
    return ",".join([*types, "*/*;q=0.1"])


def _limits(section: Section) -> Limits:
    return Limits(
        _lower(section.size_bytes("body_size_limit"), BODY_BYTES_MAX),
        section.whole("sample_limit"),
        section.whole("label_limit"),
        section.whole("label_name_length_limit"),
        section.whole("label_value_length_limit"),
        _lower(section.whole("target_limit"), TARGETS_MAX),
        _lower(section.whole("keep_dropped_targets"), DROPPED_SHOWN_MAX),
    )


def _lower(limit: int, most: int) -> int:
    return min(limit or most, most)


def _group(section: Section) -> Group:
    """An item of static_configs, or of a file of targets."""
    group = Group(tuple(section.texts("targets")), section.mapping("labels"))
    section.finish()
    return group


def group_of(item: Any) -> Group:
    """An item of a list in JSON: {"targets": […], "labels": {…}}. Raises ConfigError."""
    if not isinstance(item, dict) or item.keys() - {"targets", "labels"}:
        raise ConfigError(f'{str(item)[:100]} is not a group of targets such as {{"targets": ["host:9100"]}}')
    targets, labels = item.get("targets") or [], item.get("labels") or {}
    if not isinstance(targets, list) or not all(isinstance(target, str) for target in targets):
        raise ConfigError(f"the targets {str(targets)[:100]} are not a list of texts")
    if not isinstance(labels, dict) or not all(isinstance(value, str) for value in labels.values()):
        raise ConfigError(f"the labels {str(labels)[:100]} are not texts by name")
    return Group(tuple(targets), labels)


def _files(section: Section) -> tuple[FileDiscovery, ...]:
    found = []
    for one in section.sections("file_sd_configs"):
        patterns = tuple(Path(section.path).parent / text for text in one.texts("files"))
        for pattern in patterns:
            if pattern.suffix not in FILE_ENDINGS:
                raise one.error(f"has {str(pattern)!r}; a file must end in {', '.join(FILE_ENDINGS)}", "files")
        if not patterns:
            raise one.error("files is missing")
        found.append(FileDiscovery(patterns, one.duration_ms("refresh_interval", 300_000) or 300_000))
        one.finish()
    return tuple(found)


def _urls(section: Section) -> tuple[HttpDiscovery, ...]:
    found = []
    for one in section.sections("http_sd_configs"):
        url = one.required("url")
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise one.error(f"is {url[:100]!r}; it must be a URL that begins with http:// or https://", "url")
        refresh_ms = one.duration_ms("refresh_interval", 60_000) or 60_000
        found.append(HttpDiscovery(url, refresh_ms, http_client_config.read(one)))
        one.finish()
    return tuple(found)
