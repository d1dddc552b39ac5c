"""Deletion of a key over HTTP: gone from every kind of read at once, and for good."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from loadtest.harness.cluster import Cluster
from proto import log_pb2
from shared.hashing import shard_of
from tests.cluster.log_requests import append, b64, refused, scan, values
from tests.forked_cluster import ForkedCluster

SHARDS = 2


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Cluster]:
    """Killed and started by tests."""
    started = ForkedCluster(tmp_path, shards=SHARDS, workers=2).start()
    yield started
    started.kill()


@pytest.fixture
def key() -> bytes:
    return b"key-" + secrets.token_hex(8).encode()


def delete(cluster: Cluster, key: bytes, **parameters: str) -> dict[str, Any]:
    query = "&".join([f"key={key.decode()}", *(f"{name}={value}" for name, value in parameters.items())])
    answer = cluster.request("DELETE", f"/api/v1/log/keys?{query}")
    assert answer.status == 200, answer.body
    return answer.json()


def sequences(answer: dict[str, Any]) -> list[int]:
    return [record["sequence"] for record in answer["records"]]


def key_list(cluster: Cluster, prefix: bytes) -> list[str]:
    return [row["key"] for row in cluster.get("/api/v1/log/keys", prefix=prefix.decode()).json()["keys"]]


def test_a_deleted_key_is_gone_from_every_read_and_can_be_written_again(cluster: Cluster, key: bytes) -> None:
    other = key + b"-other"
    start = append(cluster, [(key, b"1"), (other, b"2"), (key, b"3")])["startSequence"]
    answer = delete(cluster, key)
    assert answer["recordsDeleted"] == 2 and answer["deletedBeforeSequence"] >= start + 3
    assert scan(cluster, key=key.decode())["records"] == []
    assert sequences(scan(cluster, prefix=key.decode())) == [start + 1]
    assert cluster.get("/api/v1/log/count", key=key.decode()).json()["count"] == 0
    assert cluster.get("/api/v1/log/count", prefix=key.decode()).json()["count"] == 1
    assert cluster.get("/api/v1/log/count", prefix=key.decode(), grep="[13]").json()["count"] == 0
    assert key_list(cluster, key) == [b64(other)]
    headers = {"Accept": "application/protobuf"}
    packed = cluster.request("GET", f"/api/v1/log/scan?prefix={key.decode()}", headers=headers)
    assert sum(len(page.sequences) for page in log_pb2.ScanResponse.FromString(packed.body).pages) == 1
    headers = {"Accept": "text/event-stream"}
    events = cluster.request("GET", f"/api/v1/log/scan?prefix={key.decode()}&limit=1", headers=headers)
    assert f"id: {start + 1}\n" in events.body.decode()
    assert delete(cluster, key)["recordsDeleted"] == 0
    again = append(cluster, [(key, b"new")])["startSequence"]
    assert sequences(scan(cluster, key=key.decode())) == [again]
    assert sequences(scan(cluster, prefix=key.decode())) == [start + 1, again]


def test_a_trim_leaves_what_begins_at_its_number(cluster: Cluster, key: bytes) -> None:
    start = append(cluster, [(key, b"%d" % n) for n in range(10)])["startSequence"]
    answer = delete(cluster, key, before_seq=str(start + 7))
    assert answer == {"status": "success", "deletedBeforeSequence": start + 7, "recordsDeleted": 7}
    assert values(scan(cluster, key=key.decode())) == [b"7", b"8", b"9"]
    assert values(scan(cluster, key=key.decode(), reverse="true", limit="2")) == [b"9", b"8"]
    assert delete(cluster, key, before_seq="0")["recordsDeleted"] == 0


def test_a_repeated_batch_of_a_producer_does_not_bring_its_records_back(cluster: Cluster, key: bytes) -> None:
    numbered = {"producerId": key.decode(), "producerSeq": 1}
    first = append(cluster, [(key, b"a")], **numbered)
    delete(cluster, key)
    assert append(cluster, [(key, b"a")], **numbered) == first
    assert scan(cluster, key=key.decode())["records"] == []


def test_a_reader_that_waits_gets_only_what_comes_after_the_deletion(cluster: Cluster, key: bytes) -> None:
    append(cluster, [(key, b"old")])
    delete(cluster, key)
    late = threading.Timer(0.3, append, (cluster, [(key, b"new")]))
    late.start()
    assert values(scan(cluster, key=key.decode(), follow="true", timeout="10s")) == [b"new"]
    late.join()


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("", "parameter 'key' is missing"),
        ("key=a&prefix=a", "'prefix'"),
        ("key=a&before=5", "parameter 'before' is unknown"),
        ("key=a&key_base64=YQ", "exclude each other"),
        ("key=a&before_seq=x", "parameter 'before_seq' is 'x'"),
        ("key_base64=!", "not base64"),
    ],
)
def test_a_deletion_names_what_is_wrong(cluster: Cluster, query: str, text: str) -> None:
    assert text in refused(cluster.request("DELETE", f"/api/v1/log/keys?{query}"), 400)


def test_a_deletion_survives_the_death_of_everything(own: Cluster) -> None:
    for n in range(5):
        append(own, [(b"gone", b"%d" % n), (b"kept", b"%d" % n)], awaitDurable=True)
    assert delete(own, b"gone")["recordsDeleted"] == 5
    for _ in range(2):
        own.kill()
        own.start()
        assert scan(own, key="gone")["records"] == []
        assert len(scan(own, prefix="")["records"]) == 5
    append(own, [(b"gone", b"new")], awaitDurable=True)
    own.kill()
    own.start()
    assert values(scan(own, key="gone")) == [b"new"]


def test_a_deletion_needs_its_shard(own: Cluster) -> None:
    keys = {shard_of(key, SHARDS): key for key in (b"k%d" % n for n in range(20))}
    append(own, [(key, b"v") for key in keys.values()], awaitDurable=True)
    own.kill_worker(next(iter(own.worker_pids())))
    answers = [own.request("DELETE", f"/api/v1/log/keys?key={key.decode()}").status for key in keys.values()]
    assert sorted(answers) == [200, 503]
