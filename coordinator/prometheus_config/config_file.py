"""The configuration file in Prometheus's format: rules, Alertmanagers and scrape jobs. Reloaded without a restart.

https://prometheus.io/docs/prometheus/latest/configuration/configuration/. Prometheus's sections `remote_write`,
`remote_read`, `storage`, `tracing` and `otlp` are refused with an error that names the setting to use instead, if any.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import yaml

from coordinator.prometheus_config import yaml_fields
from coordinator.prometheus_config.yaml_fields import Fields, Section
from shared.errors import ConfigError
from shared.labels import METRIC_NAME
from shared.measurements import Values
from shared.telemetry import event

READ_TIMEOUT_S = 30.0
"""Files on a network file system may take long to read, or hang."""
SECRETS = ("password", "credentials", "bearer_token", "client_secret", "secrets")
HIDDEN = "<secret>"
ELSEWHERE = {
    "remote_write": "what this service stores is not sent on",
    "remote_read": "this service reads only what it stores",
    "storage": "use the settings, such as TRIPTYCH_RETENTION",
    "tracing": "use TRIPTYCH_TRACES",
    "otlp": "use the settings",
    "scrape_config_files": "write the jobs into scrape_configs",
}


@dataclass(frozen=True, slots=True)
class Global:
    """The section `global`. `scrape`: its raw fields about scraping other than interval and timeout."""

    scrape_interval_ms: int = 60_000
    scrape_timeout_ms: int = 10_000
    evaluation_interval_ms: int = 60_000
    rule_query_offset_ms: int = 0
    external_labels: Mapping[str, str] = field(default_factory=dict)
    scrape: Mapping[str, Any] = field(default_factory=dict)


SCRAPE_DEFAULTS = (
    "body_size_limit",
    "sample_limit",
    "label_limit",
    "label_name_length_limit",
    "label_value_length_limit",
    "target_limit",
    "keep_dropped_targets",
    "metric_name_validation_scheme",
    "metric_name_escaping_scheme",
    "scrape_native_histograms",
    "convert_classic_histograms_to_nhcb",
    "always_scrape_classic_histograms",
    "extra_scrape_metrics",
    "scrape_protocols",
    "scrape_failure_log_file",
)


@dataclass(frozen=True, slots=True)
class Configuration:
    """The parsed file. `rule_files`: patterns, absolute or relative to the working directory. `alerting` and
    `scrape_configs`: unparsed, for the parts that they concern. `document`: the whole file, for display."""

    path: Path | None = None
    global_: Global = field(default_factory=Global)
    rule_files: Sequence[str] = ()
    alerting: Section | None = None
    scrape_configs: Sequence[Section] = ()
    document: Fields = field(default_factory=lambda: Fields(1))

    def shown(self) -> str:
        """The file as YAML, without secrets and comments, and with default intervals where it has none."""
        global_ = self.global_
        general: dict[str, Any] = {
            "scrape_interval": f"{global_.scrape_interval_ms}ms",
            "scrape_timeout": f"{global_.scrape_timeout_ms}ms",
            "evaluation_interval": f"{global_.evaluation_interval_ms}ms",
        }
        general |= _without_secrets(self.document.get("global")) or {}
        others = {name: _without_secrets(value) for name, value in self.document.items() if name != "global"}
        return yaml.safe_dump({"global": general, **others}, sort_keys=False, allow_unicode=True)


def parse(content: bytes, path: Path) -> Configuration:
    """Parse the content of the file. Raises ConfigError, which names file, line and field."""
    root = yaml_fields.parse(content, path)
    for name, instead in ELSEWHERE.items():
        if root.take(name) is not None:
            raise root.error(f"is not served; {instead}", name)
    root.take("runtime")  # of the Go runtime
    rule_files = [str(path.parent / pattern) for pattern in root.texts("rule_files")]
    configuration = Configuration(
        path, _global(root), rule_files, root.section("alerting"), root.sections("scrape_configs"), root.fields
    )
    root.finish()
    return configuration


def read(path: Path) -> Configuration:
    """Read and parse the file. Raises ConfigError."""
    return parse(yaml_fields.read(path, "the configuration file"), path)


def _global(root: Section) -> Global:
    section = root.section("global")
    if section is None:
        return Global()
    interval_ms = _positive(section, "scrape_interval", 60_000)
    timeout_ms = _positive(section, "scrape_timeout", min(10_000, interval_ms))
    if timeout_ms > interval_ms:
        raise section.error("is longer than scrape_interval", "scrape_timeout")
    external_labels = section.mapping("external_labels")
    for name in external_labels:
        if not name or name == METRIC_NAME:
            raise section.error(f"{name!r} is not a label name", "external_labels")
    for name in ("query_log_file", "runtime"):
        section.take(name)
    global_ = Global(
        interval_ms,
        timeout_ms,
        _positive(section, "evaluation_interval", 60_000),
        section.duration_ms("rule_query_offset"),
        external_labels,
        {name: value for name in SCRAPE_DEFAULTS if (value := section.take(name)) is not None},
    )
    section.finish()
    return global_


def _positive(section: Section, name: str, default_ms: int) -> int:
    """A duration in ms. As in Prometheus, 0 means the default."""
    return section.duration_ms(name, default_ms) or default_ms


def _without_secrets(value: Any, is_secret: bool = False) -> Any:
    if isinstance(value, Mapping):
        return {name: _without_secrets(one, is_secret or name in SECRETS) for name, one in value.items()}
    if isinstance(value, list):
        return [_without_secrets(one, is_secret) for one in value]
    if isinstance(value, str) and "://" in value and "@" in value:
        scheme, _, rest = value.partition("://")
        return f"{scheme}://{HIDDEN}@{rest.rpartition('@')[2]}"
    return HIDDEN if is_secret and value else value


class ConfiguredPart(Protocol):
    """A part of the service that the file configures."""

    def prepare(self, configuration: Configuration) -> Any:
        """Prepare the argument of `use`. Called in a thread; may read files. If it raises ConfigError, nothing
        changes."""

    def use(self, prepared: Any) -> None:
        """Apply the prepared configuration. Called in the event loop's thread; must not raise."""


class ConfigFile:
    """Holds the configuration in force. A new configuration is applied to all parts or to none. For the event loop's
    thread only.

    If `path` is None, there is no file, and the configuration is empty.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.parts: list[ConfiguredPart] = []
        self.in_force = Configuration()
        self.is_current = True
        """Whether the configuration in force is that of the last read of the file."""
        self.loaded_at = time.time()
        """Unix time of the last successful load."""
        self._reading: asyncio.Task[tuple[Configuration, list[Any]]] | None = None

    async def load(self) -> None:
        """Read the file and apply it to all parts. If this raises ConfigError, nothing has changed. Also raises if the
        file is already being read."""
        if self.path is None:
            raise ConfigError("there is no configuration file; TRIPTYCH_PROMETHEUS_CONFIG names one")
        if self._reading is not None and not self._reading.done():
            raise ConfigError(f"{self.path} is still being read for a reload before this one; try again later")
        try:
            configuration, prepared = await self._read(self.path)
        except ConfigError as error:
            self.is_current = False
            event(logging.ERROR, "the configuration file cannot be used", path=self.path, why=error)
            raise
        self.in_force = configuration
        for part, prepared_part in zip(self.parts, prepared, strict=True):
            part.use(prepared_part)
        self.is_current, self.loaded_at = True, time.time()
        event(logging.INFO, "configuration file read", path=self.path, rule_files=len(configuration.rule_files))

    async def _read(self, path: Path) -> tuple[Configuration, list[Any]]:
        self._reading = asyncio.create_task(asyncio.to_thread(_prepared, path, tuple(self.parts)))
        self._reading.add_done_callback(_retrieved)
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                return await asyncio.shield(self._reading)
        except TimeoutError:
            raise ConfigError(f"{path} and the files that it names were not read within {READ_TIMEOUT_S:g} s") from None

    def put(self, values: Values) -> None:
        """Add the metrics about the configuration file."""
        values.put("triptych_config_last_reload_successful", self.is_current)
        values.put("triptych_config_last_reload_success_timestamp_seconds", self.loaded_at)


def _prepared(path: Path, parts: Sequence[ConfiguredPart]) -> tuple[Configuration, list[Any]]:
    configuration = read(path)
    return configuration, [part.prepare(configuration) for part in parts]


def _retrieved(reading: asyncio.Task[Any]) -> None:
    """Mark the exception of a read as retrieved, so that asyncio does not log it if the read came too late."""
    if not reading.cancelled():
        reading.exception()
