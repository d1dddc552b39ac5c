"""Targets: the discovered groups, relabelled, and their addresses.

https:

prometheus.io/docs/prometheus/latest/configuration/configuration/#relabel_config describes the labels that begin with
`__`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from urllib.parse import urlencode

from coordinator.prometheus_config import relabelling
from coordinator.scraping.jobs import Group, Job
from shared.durations import format_duration, parse_duration_ms
from shared.errors import BadData, TriptychError
from shared.hashing import hash64

ADDRESS, SCHEME, PATH = "__address__", "__scheme__", "__metrics_path__"
INTERVAL, TIMEOUT, PARAM, META = "__scrape_interval__", "__scrape_timeout__", "__param_", "__meta_"
JOB, INSTANCE = "job", "instance"
URL_CHARS_MAX = 8_000
"""The longest URL that most servers accept."""

Key = tuple[frozenset[tuple[str, str]], str]


@dataclass(frozen=True, slots=True)
class Target:
    """`labels`: those of its series; `discovered`: before relabelling."""

    labels: Mapping[str, str]
    discovered: Mapping[str, str]
    url: str
    interval_ms: int
    timeout_ms: int

    @property
    def key(self) -> Key:
        """The identity of the target, by which a later discovery recognises it."""
        return frozenset(self.labels.items()), self.url

    @property
    def times_ms(self) -> tuple[int, int]:
        """The interval and the timeout, which a discovery may change."""
        return self.interval_ms, self.timeout_ms

    def offset_ms(self) -> int:
        """When within its interval the target is scraped. Targets are spread evenly, and each is always scraped at the
        same moment."""
        labels, url = self.key
        return hash64(repr((sorted(labels), url)).encode()) % self.interval_ms


@dataclass(frozen=True, slots=True)
class DiscoveredTargets:
    """The targets of a job; the labels of those that relabelling drops, as many as are shown, and how many they are;
    and what is wrong with others."""

    targets: tuple[Target, ...]
    dropped: tuple[Mapping[str, str], ...]
    dropped_count: int
    problems: tuple[str, ...]
    left_out: int
    """The number of targets above the limit of the service."""


def targets_of(job: Job, groups: Iterable[Group], most: int) -> DiscoveredTargets:
    """The distinct targets in these groups, at most `most`."""
    targets: dict[Key, Target] = {}
    dropped: list[Mapping[str, str]] = []
    problems: list[str] = []
    dropped_count = left_out = 0
    for group in groups:
        for address in group.addresses:
            discovered = _discovered(job, address, group.labels)
            try:
                target = _target(job, discovered)
            except TriptychError as error:
                problems.append(f"{address[:100]}: {error}")
                continue
            if target is None:
                dropped_count += 1
                if len(dropped) < job.limits.dropped_shown:
                    dropped.append(discovered)
            elif target.key not in targets and len(targets) >= most:
                left_out += 1
            else:
                targets.setdefault(target.key, target)
    return DiscoveredTargets(tuple(targets.values()), tuple(dropped), dropped_count, tuple(problems), left_out)


def _discovered(job: Job, address: str, labels: Mapping[str, str]) -> dict[str, str]:
    defaults = {
        JOB: job.name,
        INTERVAL: format_duration(job.interval_ms),
        TIMEOUT: format_duration(job.timeout_ms),
        PATH: job.path,
        SCHEME: job.scheme,
        **{PARAM + name: values[0] for name, values in job.params if values},
    }
    target_labels = {name: value for name, value in labels.items() if value}
    return {**defaults, **target_labels, ADDRESS: address}


def _target(job: Job, discovered: Mapping[str, str]) -> Target | None:
    """The target with these labels; None if relabelling drops it. Raises BadData if it cannot be scraped."""
    labels = relabelling.apply(discovered, job.relabel, only_plain_names=job.only_plain_names)
    if not labels:
        return None
    address, scheme = labels.get(ADDRESS, ""), labels.get(SCHEME, "")
    if not address:
        raise BadData(f"it has no label {ADDRESS}")
    if any(character in address for character in "/?#@\\ ") or not address.isprintable():
        raise BadData(f"{ADDRESS} is {address[:100]!r}; it must be a host and a port such as localhost:9100")
    if scheme not in ("http", "https"):
        raise BadData(f"{SCHEME} is {scheme[:100]!r}; it must be http or https")
    interval_ms, timeout_ms = (_duration_ms(labels, name) for name in (INTERVAL, TIMEOUT))
    if timeout_ms > interval_ms:
        raise BadData(f"{TIMEOUT} is longer than {INTERVAL}")
    series_labels = {name: value for name, value in labels.items() if not name.startswith("__")}
    series_labels.setdefault(INSTANCE, address)
    return Target(series_labels, discovered, _url(job, labels, scheme, address), interval_ms, timeout_ms)


def _duration_ms(labels: Mapping[str, str], name: str) -> int:
    text = labels.get(name, "")
    try:
        milliseconds = parse_duration_ms(text)
    except ValueError:
        milliseconds = 0
    if milliseconds <= 0:
        raise BadData(f"{name} is {text[:100]!r}; it must be a duration such as 15s, longer than 0")
    return milliseconds


def _url(job: Job, labels: Mapping[str, str], scheme: str, address: str) -> str:
    path = labels.get(PATH, "")
    params = {name: list(values) for name, values in job.params}
    for name, value in labels.items():
        if name.startswith(PARAM):
            params.setdefault(name.removeprefix(PARAM), [""])[:1] = [value]
    path, _, own_query = (path if path.startswith("/") else "/" + path).partition("?")
    query = "&".join(part for part in (own_query, urlencode(sorted(params.items()), doseq=True)) if part)
    url = f"{scheme}://{address}{path}{'?' if query else ''}{query}"
    if len(url) > URL_CHARS_MAX or not url.isprintable() or " " in url:
        raise BadData(
            f"its URL {url[:100]!r} is longer than {URL_CHARS_MAX} characters, or has one that no URL may have"
        )
    return url
