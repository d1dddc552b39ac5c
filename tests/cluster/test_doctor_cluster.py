"""`triptych doctor --url` beside a real cluster."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable

import pytest

from coordinator import cli
from loadtest.harness.cluster import Cluster


def of_cluster(running: Cluster, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, dict[str, str]]]:
    """The exit code, and the findings about the cluster and its data by name."""
    code = cli.main(["doctor", str(running.directory / "data"), "--url", running.url, "--json"])
    findings = json.loads(capsys.readouterr().out)["findings"]
    return code, {found["name"]: found for found in findings if found["about"] in ("cluster", "data")}


def test_it_finds_a_cluster_well_and_its_missing_shards(
    new_cluster: Callable[..., Cluster], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    running = new_cluster(shards=1, workers=1).start()
    monkeypatch.setenv("TRIPTYCH_SHARDS", "1")
    _, findings = of_cluster(running, capsys)
    assert {found["level"] for found in findings.values()} == {"ok"}, findings
    assert findings["shards"]["seen"] == "1 shard in 1 worker, all ready"
    assert "in use" in findings["use"]["seen"]
    assert running.supervisor is not None
    running.supervisor.send_signal(signal.SIGTERM)
    give_up = time.monotonic() + 20
    while running.get("/-/ready").status == 200:
        assert time.monotonic() < give_up
        time.sleep(0.05)
    code, findings = of_cluster(running, capsys)
    assert (code, findings["shard 0"]["level"]) == (1, "problem")
