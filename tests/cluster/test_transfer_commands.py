"""`triptych import` and `triptych export` as they are typed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from coordinator import cli
from coordinator.command_client import Client
from coordinator.transfer import log_files
from loadtest.harness.cluster import Cluster


def test_what_is_exported_by_a_command_is_imported_by_one(
    cluster: Cluster, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    lines = tmp_path / "in.jsonl"
    lines.write_text(json.dumps({"metric": {"__name__": "typed"}, "values": [1, 2], "timestamps": [1000, 2000]}))
    assert cli.main(["import", "metrics", str(lines), "--url", cluster.url]) == 0
    assert capfd.readouterr().out == "2 samples imported\n"
    table = tmp_path / "out.csv"
    assert cli.main(["export", "metrics", str(table), "--match", "typed", "--url", cluster.url]) == 0
    assert table.read_text() == "__name__,__timestamp__,__value__\ntyped,1000,1\ntyped,2000,2\n"
    assert cli.main(["export", "metrics", "-", "--match", "typed", "--start", "2", "--url", cluster.url]) == 0
    assert json.loads(capfd.readouterr().out)["values"] == [2]
    lines.write_text('nonsense\n{"metric":{"__name__":"typed"},"values":[3],"timestamps":[3000]}\n')
    assert cli.main(["import", "metrics", str(lines), "--url", cluster.url]) == 3
    assert "line 1: it is no JSON object" in capfd.readouterr().err


def test_an_export_that_is_refused_shows_the_message_only(
    cluster: Cluster, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["export", "metrics", str(tmp_path / "x.csv"), "--match", "a{", "--url", cluster.url]) == 1
    shown = capfd.readouterr().err
    assert "parse error" in shown and '"errorType"' not in shown


@pytest.mark.parametrize(
    ("arguments", "code", "reason"),
    [
        (["export", "metrics", "x.unknown", "--match", "up"], 2, "give it with --format"),
        (["export", "metrics", "x.csv"], 2, "--match"),
        (["export", "log", "x.csv"], 2, "give it with --format"),
        (["export", "log", "x.jsonl", "--key", "a", "--prefix", "b"], 2, "exclude each other"),
        (["export", "vectors", "x.jsonl", "--filter", "{"], 1, "--filter is not JSON"),
        (["import", "metrics", "/nothing/there.jsonl"], 1, "/nothing/there.jsonl"),
        (["import", "log", "/nothing/there.jsonl"], 1, "/nothing/there.jsonl"),
    ],
)
def test_a_wrong_command_is_told(
    arguments: list[str], code: int, reason: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(arguments) == code
    assert reason in capfd.readouterr().err


@pytest.mark.parametrize(("count", "length", "batch"), [(6000, 1, 6000), (24, 3_000_000, 8)])
def test_an_export_reads_large_records_few_at_a_time(cluster: Cluster, count: int, length: int, batch: int) -> None:
    name = f"large/{length}"
    records = [{"keyText": name, "text": "x" * length}] * batch
    for _ in range(count // batch):
        assert cluster.post_json("/api/v1/log/append", {"records": records}).status == 200
    pages = list(log_files.scanned(Client(cluster.url), {"key": name}, {}))
    assert sum(map(len, pages)) == count
    assert max(sum(len(record["value"]) for record in page) for page in pages[1:]) <= log_files.PAGE_BYTES
    assert len(pages) < 10


def test_ids_that_a_file_of_lines_cannot_have_are_refused(
    cluster: Cluster, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    content = {"Content-Type": "application/json"}
    assert cluster.request("PUT", "/api/v1/vector/collections/odd_ids", b'{"dimension": 1}', content).status == 200
    body = {"collection": "odd_ids", "upsertVectors": [{"id": "a\u2028b", "attributes": {"vector": [1.0]}}]}
    assert cluster.post_json("/api/v1/vector/write", body).status == 200
    path = str(tmp_path / "x.npy")
    assert cli.main(["export", "vectors", path, "--collection", "odd_ids", "--url", cluster.url]) == 1
    assert "line break" in capfd.readouterr().err
