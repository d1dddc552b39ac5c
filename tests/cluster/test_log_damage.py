"""What a damaged record of the write-ahead log costs is said in every answer about its shard, whatever its form."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from loadtest.harness.cluster import READY_WITHIN_S, ROOT, Cluster
from proto import log_pb2
from shared.hashing import shard_of
from tests.forked_cluster import ForkedCluster

SHARDS = 2
DAMAGED, SOUND = 0, 1
LOST = b"this value will be damaged"
PROTOBUF, EVENTS = {"Accept": "application/protobuf"}, {"Accept": "text/event-stream"}


def on(shard: int, name: str) -> str:
    return next(key for i in range(1000) if shard_of((key := f"{name}-{i}").encode(), SHARDS) == shard)


KEY, OTHER_KEY = on(DAMAGED, "key"), on(SOUND, "key")


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def append(cluster: Cluster, *values: bytes) -> None:
    """Each value under both keys, on the disk."""
    records = [{"key": b64(key.encode()), "value": b64(value)} for value in values for key in (KEY, OTHER_KEY)]
    answer = cluster.post_json("/api/v1/log/append", {"records": records, "awaitDurable": True})
    assert answer.status == 200, answer.body


def flip_a_byte_of_what_was_lost(data: Path) -> None:
    """In the records of one shard: the first place is in the lower shard's."""
    (path,) = [path for path in data.glob("wal/*/*.wal") if LOST in path.read_bytes()]
    content = bytearray(path.read_bytes())
    content[content.index(LOST) + 3] ^= 1
    path.write_bytes(content)


def wait_until_readable(cluster: Cluster, upto: int) -> None:
    """Readers stop below a batch until all its shards have reported, which may be a moment after they are ready."""
    give_up = time.monotonic() + READY_WITHIN_S
    while get(cluster, "frontier")["readableSequence"] < upto:
        assert time.monotonic() < give_up
        time.sleep(0.02)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster that was killed, and started again over a record that is damaged on the disk."""
    settings = {"TRIPTYCH_LOG_SEGMENT_BYTES": "1024"}
    made = ForkedCluster(tmp_path_factory.mktemp("damaged"), shards=SHARDS, workers=1, settings=settings).start()
    try:
        append(made, b"before")
        append(made, LOST)
        for i in range(5):
            append(made, b"%d" % i * 600)
        for shard in (DAMAGED, SOUND):
            positions = {"positions": [{"key": b64(b"k"), "sequence": 1}]}
            body = json.dumps(positions).encode()
            put = made.request("PUT", f"/api/v1/log/cursors/{on(shard, 'reader')}", body)
            assert put.status == 200, put.body
        made.kill()
        flip_a_byte_of_what_was_lost(made.directory / "data")
        made.start()
        wait_until_readable(made, 14)
        yield made
    finally:
        made.kill()


def get(cluster: Cluster, path: str, **parameters: str) -> dict[str, Any]:
    answer = cluster.get(f"/api/v1/log/{path}", **parameters)
    assert answer.status == 200, answer.body
    body = answer.json()
    assert isinstance(body, dict)
    return body


def is_about_the_damage(warnings: list[str]) -> bool:
    return len(warnings) > 0 and all("damaged" in text for text in warnings)


def test_scans_say_what_is_missing(cluster: Cluster) -> None:
    for parameters in ({"key": KEY}, {"prefix": ""}, {"prefix": KEY}, {"key": KEY, "reverse": "true"}):
        answer = get(cluster, "scan", **parameters)
        assert is_about_the_damage(answer["warnings"]), parameters
        values = [base64.b64decode(r["value"]) for r in answer["records"] if base64.b64decode(r["key"]) == KEY.encode()]
        assert LOST not in values
        assert len(values) == 6


def test_a_key_of_a_sound_shard_has_no_warning(cluster: Cluster) -> None:
    answer = get(cluster, "scan", key=OTHER_KEY)
    assert "warnings" not in answer
    assert LOST in [base64.b64decode(r["value"]) for r in answer["records"]]
    assert "warnings" not in get(cluster, "count", key=OTHER_KEY)
    assert "warnings" not in get(cluster, f"cursors/{on(SOUND, 'reader')}")


@pytest.mark.parametrize(("path", "parameters"), [("count", {}), ("count", {"key": KEY}), ("keys", {})])
def test_counts_and_keys_say_what_is_missing(cluster: Cluster, path: str, parameters: dict[str, str]) -> None:
    assert is_about_the_damage(get(cluster, path, **parameters)["warnings"])


def test_a_cursor_of_a_damaged_shard_says_so(cluster: Cluster) -> None:
    answer = get(cluster, f"cursors/{on(DAMAGED, 'reader')}")
    assert is_about_the_damage(answer["warnings"])
    assert answer["positions"] == [{"key": b64(b"k"), "sequence": 1}]


def test_a_scan_in_protobuf_says_what_is_missing(cluster: Cluster) -> None:
    answer = cluster.request("GET", f"/api/v1/log/scan?key={KEY}", headers=PROTOBUF)
    assert answer.status == 200
    message = log_pb2.ScanResponse.FromString(answer.body)
    assert is_about_the_damage(list(message.warnings))
    assert message.status == "success"


def test_a_stream_of_events_says_what_is_missing_in_events_without_an_id(cluster: Cluster) -> None:
    answer = cluster.request("GET", f"/api/v1/log/scan?key={KEY}&timeout=500ms", headers=EVENTS)
    events = [event for event in answer.body.decode().split("\n\n") if event and not event.startswith(":")]
    warnings = [event for event in events if event.startswith("event: warning\n")]
    assert is_about_the_damage([json.loads(event.removeprefix("event: warning\ndata: ")) for event in warnings])
    assert not any("id:" in event for event in warnings)
    assert len(events) - len(warnings) == 6
    assert len(warnings) == len(set(warnings)), "each is said once"


def test_the_shell_shows_what_is_missing_beside_the_records(cluster: Cluster) -> None:
    for arguments in (["scan", "--key", KEY, "--values"], ["keys"]):
        command = [sys.executable, "-m", "coordinator.cli", "log", *arguments, "--url", cluster.url]
        shown = subprocess.run(command, capture_output=True, cwd=ROOT, timeout=60)
        assert shown.returncode == 0
        assert shown.stderr.startswith(b"warning: "), arguments
        assert b"damaged" in shown.stderr
        assert b"warning" not in shown.stdout


def test_pages_of_segments_are_all_of_them(cluster: Cluster) -> None:
    everything = get(cluster, "segments")
    assert "more" not in everything
    assert len(everything["segments"]) > 3
    pages: list[dict[str, Any]] = [get(cluster, "segments", limit="2")]
    while pages[-1].get("more"):
        pages.append(get(cluster, "segments", limit="2", start_seq=str(pages[-1]["nextSequence"])))
    assert [segment for page in pages for segment in page["segments"]] == everything["segments"]
    assert pages[0]["more"] is True
    assert "nextSequence" not in pages[-1]


def test_the_state_of_the_cluster_counts_what_is_damaged(cluster: Cluster) -> None:
    shards = cluster.get("/api/v1/cluster").json()["data"]["shards"]
    damaged = {shard["shard"]: shard["counts"]["damaged"] for shard in shards}
    assert damaged[DAMAGED] == 1
    assert damaged[SOUND] == 0
