"""The section `alerting` of the configuration file: the Alertmanagers that get alerts, and how alerts are relabelled.

https:

prometheus.io/docs/prometheus/latest/configuration/configuration/#alertmanager_config. Alertmanagers are named in
`static_configs`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from coordinator.prometheus_config import http_client as http_client_config
from coordinator.prometheus_config import relabelling
from coordinator.prometheus_config.http_client import HttpClientConfig
from coordinator.prometheus_config.yaml_fields import Section

ALERTMANAGERS_MAX = 100
NOT_SERVED = (
    "file_sd_configs",
    "http_sd_configs",
    "dns_sd_configs",
    "kubernetes_sd_configs",
    "consul_sd_configs",
    "ec2_sd_configs",
)
API_PATH = "/api/v2/alerts"


@dataclass(frozen=True, slots=True)
class Alertmanager:
    """`url`: where alerts are posted. `relabelling`: of the alerts for this Alertmanager, after the relabelling for
    all."""

    url: str
    timeout_ms: int
    client: HttpClientConfig = field(compare=False)
    relabelling: tuple[relabelling.Rule, ...] = ()


@dataclass(frozen=True, slots=True)
class Alerting:
    """`dropped`: URLs of Alertmanagers that relabelling drops."""

    alertmanagers: Sequence[Alertmanager] = ()
    dropped: Sequence[str] = ()
    relabelling: tuple[relabelling.Rule, ...] = ()
    external_labels: Mapping[str, str] = field(default_factory=dict)


def read(section: Section | None, external_labels: Mapping[str, str]) -> Alerting:
    """Raises ConfigError."""
    if section is None:
        return Alerting(external_labels=external_labels)
    rules = relabelling.read(section.sections("alert_relabel_configs"))
    managers: dict[str, Alertmanager] = {}
    dropped: dict[str, None] = {}
    for one in section.sections("alertmanagers"):
        _read_one(one, managers, dropped)
    section.finish()
    if len(managers) + len(dropped) > ALERTMANAGERS_MAX:
        raise section.error(f"names more than {ALERTMANAGERS_MAX} Alertmanagers", "alertmanagers")
    return Alerting(list(managers.values()), list(dropped), rules, external_labels)


def _read_one(section: Section, managers: dict[str, Alertmanager], dropped: dict[str, None]) -> None:
    for name in NOT_SERVED:
        if section.take(name) is not None:
            raise section.error("is not served; name the Alertmanagers in static_configs", name)
    scheme = section.one_of("scheme", ("http", "https"), "http")
    prefix = section.text("path_prefix").rstrip("/")
    timeout_ms = section.duration_ms("timeout") or 10_000
    if section.text("api_version", "v2") != "v2":
        raise section.error("must be v2; Alertmanagers have had it since 0.16", "api_version")
    client = http_client_config.read(section)
    rules = relabelling.read(section.sections("relabel_configs"))
    alert_rules = relabelling.read(section.sections("alert_relabel_configs"))
    for static in section.sections("static_configs"):
        targets, labels = static.texts("targets"), static.mapping("labels")
        static.finish()
        for target in targets:
            target_labels = {
                **labels,
                "__address__": target,
                "__scheme__": scheme,
                "__alerts_path__": f"/{prefix.strip('/')}{API_PATH}" if prefix else API_PATH,
            }
            relabelled = relabelling.apply(target_labels, rules)
            url = _url(static, relabelled or target_labels)
            if relabelled is None:
                dropped[url] = None
            else:
                managers[url] = Alertmanager(url, timeout_ms, client, alert_rules)
    section.finish()


def _url(section: Section, labels: Mapping[str, str]) -> str:
    address = labels.get("__address__", "")
    url = f"{labels.get('__scheme__', 'http')}://{address}{labels.get('__alerts_path__', API_PATH)}"
    try:
        parts = urlsplit(url)
        is_right = bool(parts.hostname) and parts.port != 0 and "/" not in address and "@" not in address
    except ValueError:
        is_right = False
    if not is_right or not url.isprintable() or " " in url:
        raise section.error(f"has {address[:100]!r}; it must be host:port, such as alertmanager:9093", "targets")
    return url
