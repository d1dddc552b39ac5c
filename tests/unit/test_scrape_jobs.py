"""Scrape jobs and their targets: what the configuration says, what relabelling makes of targets, what is refused."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import orjson
import pytest

from coordinator.prometheus_config import config_file
from coordinator.scraping import discovery, jobs, targets
from coordinator.scraping.jobs import BODY_BYTES_MAX, Group, Job
from coordinator.scraping.targets import DiscoveredTargets
from shared.errors import ConfigError


def read(*scrape_configs: dict[str, Any], directory: Path = Path("/etc"), **general: Any) -> tuple[Job, ...]:
    content = orjson.dumps({"global": general, "scrape_configs": scrape_configs})
    return jobs.read(config_file.parse(content, directory / "prometheus.yml"))


def job(**fields: Any) -> Job:
    (own,) = read({"job_name": "j", **fields})
    return own


def found(own: Job, *addresses: str, most: int = 100, **labels: str) -> DiscoveredTargets:
    return targets.targets_of(own, [Group(addresses, labels)], most)


def test_what_a_job_does_not_say_is_the_default() -> None:
    own = job()
    assert (own.interval_ms, own.timeout_ms, own.path, own.scheme) == (60_000, 10_000, "/metrics", "http")
    assert own.honor_timestamps and not own.honor_labels and own.is_compressed
    assert own.limits.body_bytes == BODY_BYTES_MAX and own.limits.samples == 0
    assert own.accept.startswith("application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.9,")
    assert job(scrape_native_histograms=True).accept.startswith("application/vnd.google.protobuf;")


def test_global_fields_hold_where_a_job_says_nothing() -> None:
    first, second = read(
        {"job_name": "a"}, {"job_name": "b", "scrape_interval": "5s", "sample_limit": 7}, sample_limit=3,
        scrape_interval="20s", body_size_limit="1MB",
    )  # fmt: skip
    assert (first.interval_ms, first.timeout_ms, first.limits.samples) == (20_000, 10_000, 3)
    assert (second.interval_ms, second.timeout_ms, second.limits.samples) == (5_000, 5_000, 7)
    assert second.limits.body_bytes == 1 << 20


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"scrape_intervall": "5s"}, "did you mean scrape_interval?"),
        ({"scrape_interval": "5s", "scrape_timeout": "6s"}, "longer than scrape_interval"),
        ({"proxy_url": "http://a"}, "proxy_url: is not served"),
        ({"kubernetes_sd_configs": [{}]}, "served are static_configs, file_sd_configs and http_sd_configs"),
        ({"convert_classic_histograms_to_nhcb": True}, "is not served"),
        ({"scheme": "ftp"}, "must be one of http, https"),
        ({"scrape_protocols": ["Text"]}, "must be one of PrometheusProto"),
        ({"scrape_protocols": ["PrometheusProto", "PrometheusProto"]}, "twice"),
        ({"file_sd_configs": [{"files": ["a.txt"]}]}, "must end in .json"),
        ({"http_sd_configs": [{"url": "file:///a"}]}, "begins with http:// or https://"),
        ({"relabel_configs": [{"action": "kep"}]}, "must be one of"),
        ({"basic_auth": {"username": "a"}, "authorization": {"credentials": "b"}}, "at most one of"),
        ({"static_configs": [{"target": ["a"]}]}, "did you mean targets?"),
    ],
)
def test_wrong_jobs_are_named_with_line_and_field(fields: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=r"prometheus\.yml: line 1: scrape_configs\[0\]") as refused:
        job(**fields)
    assert why in str(refused.value)


def test_a_name_of_a_job_is_given_once() -> None:
    with pytest.raises(ConfigError, match="the name of a job before it"):
        read({"job_name": "a"}, {"job_name": "a"})
    with pytest.raises(ConfigError, match="job_name is missing"):
        read({})


def test_a_target_has_the_labels_of_its_group_and_of_its_job() -> None:
    own = job(params={"module": ["a b", "c"], "x": ["1"]}, scrape_timeout="3s")
    (target,) = found(own, "host:1", env="prod", __param_x="2").targets
    assert target.labels == {"job": "j", "instance": "host:1", "env": "prod"}
    assert target.url == "http://host:1/metrics?module=a+b&module=c&x=2"
    assert target.discovered["__scrape_timeout__"] == "3s" and target.timeout_ms == 3000
    assert 0 <= target.offset_ms() < target.interval_ms


def test_relabelling_sets_only_plain_labels_of_targets_where_the_job_requires_them() -> None:
    rule = {"target_label": "my.zone", "replacement": "b"}
    for scheme, own in (("utf8", {"my.zone": "b"}), ("legacy", {})):
        (target,) = found(job(relabel_configs=[rule], metric_name_validation_scheme=scheme), "h:1").targets
        assert target.labels == {"job": "j", "instance": "h:1", **own}


def test_relabelling_changes_addresses_paths_and_times_and_drops_targets() -> None:
    own = job(
        relabel_configs=[
            {"source_labels": ["__address__"], "regex": "drop.*", "action": "drop"},
            {"source_labels": ["__address__"], "target_label": "__param_target"},
            {"source_labels": ["__address__"], "target_label": "instance"},
            {"target_label": "__address__", "replacement": "proxy:9"},
            {"target_label": "__metrics_path__", "replacement": "/probe"},
            {"target_label": "__scrape_interval__", "replacement": "30s"},
            {"target_label": "__scheme__", "replacement": "https"},
        ],
        keep_dropped_targets=1,
    )
    some = found(own, "a", "drop1", "drop2", "a")
    (target,) = some.targets
    assert target.url == "https://proxy:9/probe?target=a" and target.labels["instance"] == "a"
    assert target.interval_ms == 30_000
    assert some.dropped_count == 2 and [labels["__address__"] for labels in some.dropped] == ["drop1"]


@pytest.mark.parametrize("address", ["", "host/path", "user@host:1", "ho st"])
def test_targets_without_an_address_are_told(address: str) -> None:
    some = found(job(), address, "good:1")
    assert len(some.targets) == 1 and "__address__" in some.problems[0]


def test_targets_are_bounded() -> None:
    some = found(job(), *(f"host:{i}" for i in range(10)), most=4)
    assert len(some.targets) == 4 and some.left_out == 6


def test_files_of_targets_are_lists_in_yaml_or_json(tmp_path: Path) -> None:
    (tmp_path / "a.yml").write_text("- targets: [a:1, b:2]\n  labels: {port: 9100}\n- targets: [c:3]\n")
    (tmp_path / "a.json").write_text('[{"targets": ["d:4"], "labels": {"e": "f"}}]')
    first, second = discovery.groups_of_file(tmp_path / "a.yml")
    assert first.addresses == ("a:1", "b:2") and first.labels["port"] == "9100" and second.addresses == ("c:3",)
    assert first.labels["__meta_filepath"] == str(tmp_path / "a.yml")
    (third,) = discovery.groups_of_file(tmp_path / "a.json")
    assert third.addresses == ("d:4",) and third.labels["e"] == "f"


@pytest.mark.parametrize(("name", "shown"), [(b"caf\xe9.yml", "caf\\xe9.yml"), (b"caf\xe9.json", "caf\\xe9.json")])
def test_the_name_of_a_file_of_targets_is_valid_text(name: bytes, shown: str, tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(name)
    path.write_text('[{"targets": ["a:1"]}]')
    (group,) = discovery.groups_of_file(path)
    assert group.labels["__meta_filepath"] == str(tmp_path / shown)
    path.write_text("{}")
    with pytest.raises(ConfigError) as refused:
        discovery.groups_of_file(path)
    assert shown in str(refused.value)


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("a.yml", "targets: [a]", "must be a list of mappings"),
        ("a.yml", "- target: [a]", "did you mean targets?"),
        ("a.yml", "- [", "a.yml: line"),
        ("a.json", "{}", "must be a list of groups"),
        ("a.json", '[{"targets": [1]}]', "not a list of texts"),
        ("a.json", '[{"labels": {"a": 1}}]', "not texts by name"),
        ("a.json", "[", "not JSON"),
    ],
)
def test_files_of_targets_that_are_wrong_are_named(tmp_path: Path, name: str, content: str, why: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(ConfigError, match=name) as refused:
        discovery.groups_of_file(tmp_path / name)
    assert why in str(refused.value)


async def test_a_file_that_changes_changes_the_targets_and_a_wrong_one_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discovery, "LOOK_S", 0.01)
    path = tmp_path / "a.yml"
    path.write_text("- targets: [a]")
    import asyncio

    changed = asyncio.Event()
    files = discovery.Files(jobs.FileDiscovery((tmp_path / "*.yml",), 1000), "j", changed.set)
    task = asyncio.create_task(files.run())
    try:
        for content, addresses in (("", ("a",)), ("- targets: [b, c]", ("b", "c"))):
            if content:
                path.write_text(content)
            await asyncio.wait_for(changed.wait(), 5)
            changed.clear()
            assert files.groups[0].addresses == addresses
        path.write_text("- [")
        while not files.failures:
            await asyncio.sleep(0.01)
        assert files.groups[0].addresses == ("b", "c") and files.tried.is_set()
        path.unlink()
        await asyncio.wait_for(changed.wait(), 5)
        assert files.groups == ()
    finally:
        task.cancel()
