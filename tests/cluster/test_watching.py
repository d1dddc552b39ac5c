"""What a cluster says about itself: all metrics, its own copy of them, and the alerts that fire when it is unwell."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.parser import text_string_to_metric_families as plain_families

from coordinator.watching.catalogue import METRICS, SCRAPE_SERIES
from loadtest.harness.cluster import ROOT, Cluster, freeze
from loadtest.harness.remote_write_bodies import HEADERS, compressed
from tests.forked_cluster import ForkedCluster

NOT_OF_THE_WELL = {"triptych_tls_certificate_expiry_timestamp_seconds", "triptych_worker_last_exit_timestamp_seconds"}
"""Only with TLS, and only of workers that have ended."""
SCRAPED = {"TRIPTYCH_SELF_SCRAPE": "250ms"}
FIRES_WITHIN_S = 20.0
GROUPS = yaml.safe_load((ROOT / "deploy" / "prometheus" / "alerts.yml").read_text())["groups"]
RULES = {rule["alert"]: rule["expr"] for group in GROUPS for rule in group["rules"]}
PANELS = json.loads((ROOT / "deploy" / "grafana" / "triptych.json").read_text())["panels"]


def result_of(cluster: Cluster, expression: str) -> list[dict[str, object]]:
    """The vector that the expression has now; empty while queries are refused."""
    answer = cluster.get("/api/v1/query", query=expression)
    assert answer.status in (200, 503), f"{expression}: {answer.body!r}"
    return list(answer.json()["data"]["result"]) if answer.status == 200 else []


def wait_until(condition: Callable[[], object], what: str) -> None:
    give_up = time.monotonic() + FIRES_WITHIN_S
    while not condition():
        assert time.monotonic() < give_up, what
        time.sleep(0.1)


def wait_for_alert(cluster: Cluster, name: str) -> None:
    """Until the rule's expression, over what the cluster has stored about itself, gives something."""
    wait_until(lambda: result_of(cluster, RULES[name]), f"{name} does not fire: {cluster.log('coordinator')[-2000:]}")


def wait_until_quiet(cluster: Cluster, name: str) -> None:
    """Until the rule gives nothing, in an answer of all shards: neither a refusal nor half an answer counts."""

    def is_quiet() -> bool:
        answer = cluster.get("/api/v1/query", query=RULES[name])
        return answer.status == 200 and "warnings" not in answer.json() and not answer.json()["data"]["result"]

    wait_until(is_quiet, f"{name} goes on: {cluster.log('coordinator')[-2000:]}")


def write(cluster: Cluster, series: int = 1, samples: int = 1) -> int:
    now_ms = int(time.time() * 1000) - 600_000
    times = [(now_ms + 1000 * i, float(i)) for i in range(samples)]
    body = compressed([({"__name__": "m", "i": str(i)}, times) for i in range(series)])
    return cluster.request("POST", "/api/v1/write", body, HEADERS).status


@pytest.fixture(scope="module")
def well(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster that was used a little in all areas, evaluates the shipped rules, and has stored its metrics several
    times since."""
    directory = tmp_path_factory.mktemp("well")
    config = {
        "rule_files": [str(ROOT / "deploy" / "prometheus" / "alerts.yml")],
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": ["127.0.0.1:9"]}]}]},
    }
    (directory / "prometheus.yml").write_text(yaml.safe_dump(config))
    settings = SCRAPED | {"TRIPTYCH_PROMETHEUS_CONFIG": str(directory / "prometheus.yml")}
    cluster = ForkedCluster(directory, settings=settings).start()
    assert write(cluster, 10, 3) == 204
    cluster.post_json("/api/v1/log/append", {"records": [{"key": "YQ==", "value": "Yg=="}], "awaitDurable": True})
    cluster.post_json("/api/v1/vector/write", {"upsertVectors": [{"id": "a", "attributes": {"vector": [1, 2]}}]})
    result_of(cluster, "m")
    assert cluster.get("/api/v1/query", query="m +").status == 400
    wait_until(lambda: result_of(cluster, "triptych_self_scrapes_total > 8"), cluster.log("coordinator"))
    yield cluster
    cluster.kill()


def test_every_metric_is_exposed_with_its_type_labels_and_help(well: Cluster) -> None:
    text = well.get("/metrics").body.decode()
    families = {family.name: family for family in plain_families(text)}
    assert "_created" not in text
    shown = {name: metric for name, metric in METRICS.items() if name not in NOT_OF_THE_WELL}
    for metric in shown.values():
        family = families[metric.name.removesuffix("_total")]
        assert (family.type, family.documentation) == (metric.type, metric.help)
        for sample in family.samples:
            assert sample.name in metric.series_names()
            assert set(sample.labels) - {"le"} == set(metric.labels), sample
    assert len(families) == len(shown)


def test_openmetrics_is_given_to_whoever_asks_for_it(well: Cluster) -> None:
    accept = {"Accept": "application/openmetrics-text;version=1.0.0,text/plain;q=0.5"}
    answer = well.request("GET", "/metrics", None, accept)
    assert answer.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    families = list(text_string_to_metric_families(answer.body.decode()))
    assert {"triptych_build", "triptych_build_info"} & {family.name for family in families}


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_finds_the_exposition_valid(well: Cluster) -> None:
    text = well.get("/metrics").body
    done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, timeout=30, check=False)
    assert done.returncode in (0, 3), done.stderr  # 3: something that it would name in another way
    assert b"error" not in done.stderr.lower()


def test_workers_and_shards_have_numbers_of_their_own(well: Cluster) -> None:
    for name, labels in (
        ("triptych_wal_fsync_seconds_count", {"worker": 2}),
        ("triptych_process_pss_bytes", {"process": 3}),
        ("triptych_head_samples", {"shard": 4}),
    ):
        for label, count in labels.items():
            series = result_of(well, f'count by ({label}) ({name}{{job="triptych"}} >= 0)')
            assert len(series) == count, name
    assert result_of(well, 'sum(triptych_samples_stored_total{job="triptych"}) >= 30')
    assert result_of(well, 'sum(triptych_wal_fsync_seconds_count{job="triptych"}) > 0')
    assert result_of(well, 'triptych_requests_refused_total{job="triptych", reason="invalid"} > 0')


def test_stored_metrics_have_a_target_and_what_a_scrape_adds(well: Cluster) -> None:
    for name in SCRAPE_SERIES:
        [series] = result_of(well, name)
        assert series["metric"] == {"__name__": name, "job": "triptych", "instance": f"127.0.0.1:{well.port}"}
    assert result_of(well, "up == 1") and result_of(well, "scrape_samples_scraped > 300")
    metadata = well.get("/api/v1/metadata", metric="triptych_wal_fsync_seconds").json()["data"]
    assert metadata["triptych_wal_fsync_seconds"][0]["type"] == "histogram"


def test_no_alert_fires_while_all_is_well(well: Cluster) -> None:
    firing = {name: found for name, expression in RULES.items() if (found := result_of(well, expression))}
    # What depends on the machine and on what else runs there; the interval is so short that a write may take longer.
    for on_a_busy_machine in ("DiskFull", "DiskSlow", "MemoryShort", "MetricsDropped", "Slow"):
        firing.pop("Triptych" + on_a_busy_machine, None)
    assert firing == {}


def test_every_panel_of_the_dashboard_shows_something(well: Cluster) -> None:
    for panel in PANELS:
        for target in panel.get("targets", ()):
            expression = target["expr"].replace("$__rate_interval", "1m").replace("$instance", ".*")
            expression = expression.replace("$job", "triptych")
            if "block_cache" not in expression:  # nothing was read from blocks: 0 / 0
                assert result_of(well, expression), f"{panel['title']}: {expression}"


@pytest.fixture(scope="module")
def unwell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = ForkedCluster(tmp_path_factory.mktemp("unwell"), shards=8, settings=SCRAPED).start()
    wait_until(lambda: result_of(cluster, "triptych_self_scrapes_total > 2"), cluster.log("coordinator"))
    yield cluster
    cluster.kill()


def test_a_worker_that_was_killed_is_told(unwell: Cluster) -> None:
    assert not result_of(unwell, RULES["TriptychWorkerRestarts"])
    unwell.kill_worker("worker-1")
    wait_for_alert(unwell, "TriptychWorkerRestarts")
    unwell.wait_ready()
    wait_until_quiet(unwell, "TriptychShardMissing")
    text = unwell.get("/metrics").body.decode()
    assert 'triptych_worker_exits_total{worker="worker-1"} 1' in text
    assert 'triptych_worker_last_exit_timestamp_seconds{reason="SIGKILL",worker="worker-1"}' in text
    assert not result_of(unwell, RULES["TriptychWorkerCrashes"])
    for _ in range(2):
        pid = unwell.worker_pids()["worker-1"]
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda pid=pid: unwell.worker_pids().get("worker-1", pid) != pid, "worker-1 does not come back")
    wait_for_alert(unwell, "TriptychWorkerCrashes")
    wait_until_quiet(unwell, "TriptychShardMissing")


def test_a_cluster_that_is_half_gone_says_so_and_when_it_is_whole_again(unwell: Cluster) -> None:
    assert not result_of(unwell, RULES["TriptychShardMissing"])
    frozen = unwell.worker_pids()["worker-0"]
    freeze(frozen)
    try:
        wait_for_alert(unwell, "TriptychShardMissing")
        dropped = 'triptych_self_scrape_dropped_total{reason="shard"} '
        assert float(unwell.get("/metrics").body.decode().partition(dropped)[2].split("\n")[0]) > 0
    finally:
        os.kill(frozen, signal.SIGCONT)
    unwell.wait_ready()
    wait_until_quiet(unwell, "TriptychShardMissing")
    # Long before the 5 minutes of the lookback are over. A slow machine may miss a worker's heartbeat once more.
    wait_until(lambda: len(result_of(unwell, "triptych_shard_ready")) == 8, "states that have ended go on")


def test_a_damaged_block_is_told(new_cluster: Callable[..., Cluster]) -> None:
    small = {"TRIPTYCH_HEAD_BYTES": "8192", "TRIPTYCH_BLOCK_WINDOW": "10s"}
    cluster = new_cluster(shards=2, workers=1, settings=small).start()
    assert write(cluster, 40, 100) == 204
    blocks = cluster.directory / "data" / "shards"
    wait_until(lambda: list(blocks.glob("*/blocks/*.block")), cluster.log("worker"))
    cluster.stop()
    block = max(blocks.glob("*/blocks/*.block"), key=lambda path: path.stat().st_size)
    data = bytearray(block.read_bytes())
    data[20] ^= 0xFF
    block.write_bytes(bytes(data))
    cluster.settings = SCRAPED
    cluster.start()
    cluster.get("/api/v1/query", query="sum(count_over_time(m[1h]))")
    wait_for_alert(cluster, "TriptychDamaged")


def test_a_disk_is_told_that_fills_and_that_is_full(small_disk: Path, new_cluster: Callable[..., Cluster]) -> None:
    settings = {**SCRAPED, "TRIPTYCH_DATA": str(small_disk / "data")}
    cluster = new_cluster(shards=2, workers=1, settings=settings).start()
    wait_until(lambda: result_of(cluster, "triptych_self_scrapes_total > 2"), cluster.log("coordinator"))
    assert not result_of(cluster, RULES["TriptychDiskFull"])
    with open(small_disk / "filler", "wb", buffering=0) as filler:
        os.posix_fallocate(filler.fileno(), 0, shutil.disk_usage(small_disk).free - (3 << 20))
        wait_for_alert(cluster, "TriptychDiskFull")
        # A cluster with no space at all cannot store what it measures: who asks for it still gets it.
        filler.seek(0, os.SEEK_END)
        with pytest.raises(OSError, match="No space left"):
            while True:
                filler.write(bytes(1 << 12))
        wait_until(lambda: free_bytes(cluster) < 1 << 16, f"free: {free_bytes(cluster)}")


def free_bytes(cluster: Cluster) -> float:
    text = cluster.get("/metrics").body.decode()
    return float(re.findall(r"(?m)^triptych_disk_free_bytes(?:{[^}]*})? (.*)$", text)[0])


def test_overload_is_told_although_writes_are_refused(new_cluster: Callable[..., Cluster]) -> None:
    cluster = new_cluster(settings={**SCRAPED, "TRIPTYCH_MEMORY_RESERVE_BYTES": "1000TB"}).start()
    assert write(cluster) == 503
    wait_for_alert(cluster, "TriptychOverloaded")
    wait_for_alert(cluster, "TriptychMemoryShort")
    # What a scrape dropped is in the next one.
    dropped = 'triptych_self_scrape_dropped_total{reason="overload"} > 0'
    wait_until(lambda: result_of(cluster, dropped), cluster.log("coordinator"))
    text = cluster.get("/metrics").body.decode()
    assert re.search(r'triptych_requests_refused_total{reason="memory"} [1-9]', text)


def test_the_memory_of_each_process_is_shown_by_owner(well: Cluster) -> None:
    def workers_report() -> bool:
        names = {entry["process"] for entry in well.get("/api/v1/status/memory").json()["data"]["processes"]}
        return {"worker-0", "worker-1"} <= names

    wait_until(workers_report, "the workers' memory is not shown")
    entries = {entry["process"]: entry for entry in well.get("/api/v1/status/memory").json()["data"]["processes"]}
    assert list(entries) == ["coordinator", "supervisor", "worker-0", "worker-1"]
    for name, entry in entries.items():
        assert 10 << 20 < entry["anonymousBytes"] <= entry["residentBytes"] < 2 << 30, name
    for name in ("coordinator", "worker-0", "worker-1"):
        entry = entries[name]
        assert entry["sharedBytes"] > 1 << 20 and 0 < entry["proportionalBytes"] <= entry["residentBytes"]
        assert sum(entry["owners"].values()) + entry["unattributedBytes"] >= entry["anonymousBytes"]
        assert entry["owners"]["program"] > 10 << 20
    assert {"known_labels", "series_references", "bodies", "queries"} <= set(entries["coordinator"]["owners"])
    for name in ("worker-0", "worker-1"):
        owners = entries[name]["owners"]
        assert {"index", "head", "rows", "log", "vectors", "block_cache", "exemplars", "queries"} <= set(owners)
        assert owners["index"] > 0 and owners["head"] > 0
    assert result_of(well, 'triptych_memory_bytes{job="triptych", process="worker-0", owner="other"}')
