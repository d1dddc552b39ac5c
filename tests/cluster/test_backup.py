"""Backups of a cluster that takes writes of all areas, and of one whose processes are killed meanwhile.

Each writer writes numbers, one after the other, each time to another area and to another shard, and writes the next
number when the last one has been acknowledged. A backup of one moment therefore has all numbers of a writer up to some
number, and none above it.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from coordinator import check
from coordinator.backup import restoring, sending
from coordinator.backup.destination import open_place
from coordinator.backup.inventory import BackupError
from coordinator.backup.sources import RemoteSource
from coordinator.backup.views import LEASE_S
from coordinator.command_client import Client, CommandError
from loadtest.harness.cluster import Cluster, freeze
from loadtest.harness.remote_write_bodies import HEADERS, compressed
from tests.cluster.log_requests import b64

ROOT = Path(__file__).resolve().parents[2]
WRITERS = 4
SERIES = KEYS = 7
SETTINGS = {
    "TRIPTYCH_ADMIN_API": "true",
    "TRIPTYCH_HEAD_BYTES": "20000",  # so that samples are sealed, merged and dropped from the log all the time
    "TRIPTYCH_BLOCK_WINDOW": "2s",
    "TRIPTYCH_VECTOR_SNAPSHOT": "50ms",
    "TRIPTYCH_LOG_SEGMENT_BYTES": "4096",
}
KILLS = int(os.environ.get("BACKUP_KILLS", "2"))
SEED = int(os.environ.get("BACKUP_SEED", "20261122"))


@dataclass
class Writer(threading.Thread):
    """`acknowledged`: every number up to this one was answered."""

    cluster: Cluster
    name_of: str
    acknowledged: int = 0
    stopping: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        super().__init__(daemon=True)

    __hash__ = threading.Thread.__hash__

    def run(self) -> None:
        number = 1
        while not self.stopping.is_set():
            try:
                status = (self.sample, self.record, self.vector)[number % 3](number)
            except OSError:
                status = 0
            if status in (200, 204):
                self.acknowledged = number
                number += 1
            else:
                time.sleep(0.01)  # and again: all writes are idempotent

    def sample(self, number: int) -> int:
        labels = {"__name__": "backup", "writer": self.name_of, "series": str(number % SERIES)}
        body = compressed([(labels, [(number * 100, float(number))])])
        return self.cluster.request("POST", "/api/v1/write", body, HEADERS, timeout_s=5).status

    def record(self, number: int) -> int:
        rows = [
            {"key": b64(b"%d" % (number % KEYS)), "value": b64(f"{self.name_of} {number}".encode())},
            {"key": b64(b"%d" % ((number + 1) % KEYS)), "value": b64(f"{self.name_of} {number}".encode())},
        ]
        body = {
            "records": rows,
            "awaitDurable": number % 2 == 0,
            "producerId": f"writer {self.name_of}",
            "producerSeq": number,
        }
        return self.cluster.post_json("/api/v1/log/append", body).status

    def vector(self, number: int) -> int:
        """A new vector, and another version of one that is there."""
        rows = [
            {"id": f"{self.name_of} {number}", "attributes": {"vector": [float(number), 1.0], "number": number}},
            {"id": f"last {self.name_of}", "attributes": {"vector": [float(number), 2.0], "number": number}},
        ]
        body = {"upsertVectors": rows}
        return self.cluster.post_json("/api/v1/vector/write", body, "application/protobuf+json").status


def start_writers(cluster: Cluster) -> list[Writer]:
    writers = [Writer(cluster, f"w{n}") for n in range(WRITERS)]
    for writer in writers:
        writer.start()
    return writers


def stop_writers(writers: list[Writer]) -> None:
    for writer in writers:
        writer.stopping.set()
    for writer in writers:
        writer.join()


def wait_for(condition: Callable[[], bool], within_s: float = 30.0) -> None:
    give_up = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < give_up
        time.sleep(0.01)


def numbers_in(cluster: Cluster, writers: list[Writer]) -> dict[str, set[int]]:
    """Writer → the numbers that the cluster has of it, each in its area. Asserts that none is there in part."""
    found: dict[str, set[int]] = {writer.name_of: set() for writer in writers}
    answer = cluster.get("/api/v1/query", query="backup[100d]", time="8000000").json()
    assert "warnings" not in answer, answer["warnings"]
    for series in answer["data"]["result"]:
        for seconds, value in series["values"]:
            number = int(value)
            assert (round(seconds * 1000), number % SERIES) == (number * 100, int(series["metric"]["series"]))
            found[series["metric"]["writer"]].add(number)
    records: dict[str, list[int]] = {name: [] for name in found}
    scanned = cluster.get("/api/v1/log/scan", prefix_base64="", limit="10000").json()
    assert "warnings" not in scanned, scanned["warnings"]
    for row in scanned["records"]:
        name, number = base64.b64decode(row["value"]).decode().split()
        records[name].append(int(number))
    for name, numbers in records.items():
        assert all(numbers.count(number) == 2 for number in set(numbers)), "a batch is there in part, or twice"
        found[name].update(numbers)
    stored = vectors_in(cluster, [f"{name} {n}" for name in found for n in range(2, 3000, 3)])
    for vector_id, number in stored.items():
        found[vector_id.split()[0]].add(number)
    last = vectors_in(cluster, [f"last {name}" for name in found])
    for name, numbers in found.items():
        written = [number for number in numbers if number % 3 == 2]
        assert last.get(f"last {name}") == max(written, default=None)
    return found


def vectors_in(cluster: Cluster, ids: list[str]) -> dict[str, int]:
    give_up = time.monotonic() + 30
    while (answer := cluster.post_json("/api/v1/vector/get", {"ids": ids})).status == 503:  # of a busy machine
        assert time.monotonic() < give_up, answer.body
        time.sleep(0.1)
    assert answer.status == 200, answer.body
    return {row["id"]: int(row["attributes"]["number"]) for row in answer.json()["vectors"]}


def assert_one_moment(cluster: Cluster, writers: list[Writer], at_least: dict[str, int]) -> None:
    for name, numbers in numbers_in(cluster, writers).items():
        assert numbers == set(range(1, len(numbers) + 1)), f"{name} has gaps: {sorted(numbers)}"
        assert len(numbers) >= at_least[name]


def nothing(what: str, done: int, total: int) -> None:
    """No progress is shown."""


def back_up(cluster: Cluster, place: Path) -> sending.FinishedBackup:
    return sending.backup(Client(cluster.url), open_place(str(place), create=True), nothing)


def restored(new_cluster: Callable[..., Cluster], place: Path, name: str | None = None, *, workers: int = 2) -> Cluster:
    """A cluster with what this backup has."""
    cluster = new_cluster(workers=workers, settings=SETTINGS)
    opened = open_place(str(place))
    restoring.restore(opened, restoring.choose(opened, name), cluster.directory / "data", nothing)
    return cluster


def acknowledged(writers: list[Writer]) -> dict[str, int]:
    return {writer.name_of: writer.acknowledged for writer in writers}


def staged(cluster: Cluster) -> list[str]:
    staging = cluster.directory / "data/backup.staging"
    return os.listdir(staging) if staging.exists() else []


def test_backups_under_writes_are_of_one_moment_and_restored_with_other_numbers_of_workers(
    new_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    cluster, place = new_cluster(settings=SETTINGS).start(), tmp_path / "place"
    writers = start_writers(cluster)
    wait_for(lambda: all(writer.acknowledged > 30 for writer in writers))
    wait_for(lambda: any((cluster.directory / "data/shards").glob("*/blocks/*.block")))
    before: dict[str, dict[str, int]] = {}
    for _ in range(3):
        asked = acknowledged(writers)
        sent = back_up(cluster, place)
        before[sent.inventory.name] = asked
        assert sent.held_back_ms < 2000
        more = {name: number + 10 for name, number in acknowledged(writers).items()}
        wait_for(lambda more=more: all(writer.acknowledged > more[writer.name_of] for writer in writers))
    stop_writers(writers)
    assert staged(cluster) == []
    wait_for(lambda: back_up(cluster, place).copied < 64 << 10)  # blocks are still merged for a while
    again = sending.inventories(open_place(str(place)))[-1]
    everything = numbers_in(cluster, writers)
    cluster.kill()
    first, *_ = before
    for name, workers in ((first, 1), (again.name, 3)):
        copy = restored(new_cluster, place, name, workers=workers)
        if name == first:
            assert check.check(copy.directory / "data").damage == []
        copy.start()
        if name == first:
            assert_one_moment(copy, writers, before[first])
        else:
            there = numbers_in(copy, writers)
            assert {name: sorted(everything[name] ^ there[name]) for name in there} == {name: [] for name in there}
        copy.kill()


def test_a_restored_log_gives_no_number_twice_and_answers_producers_as_before(
    new_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    cluster = new_cluster(settings=SETTINGS).start()
    batch = {"records": [{"key": "YQ==", "value": "YQ=="}], "producerId": "p", "producerSeq": 1}
    first = cluster.post_json("/api/v1/log/append", batch).json()["startSequence"]
    back_up(cluster, tmp_path / "place")
    later = cluster.post_json("/api/v1/log/append", {**batch, "producerSeq": 2}).json()["startSequence"]
    copy = restored(new_cluster, tmp_path / "place").start()
    ids = [c.get("/api/v1/cluster").json()["data"].get("clusterId") for c in (cluster, copy)]
    assert ids == [None, None] or ids[0] != ids[1]
    assert copy.post_json("/api/v1/log/append", batch).json()["startSequence"] == first
    again = copy.post_json("/api/v1/log/append", {**batch, "producerSeq": 2}).json()["startSequence"]
    assert again > later
    after = copy.get("/api/v1/log/scan", key_base64="YQ==", start_seq=str(later + 1)).json()
    assert [row["sequence"] for row in after["records"]] == [again]


@pytest.mark.parametrize("who", ["worker", "coordinator"])
def test_a_process_that_is_killed_during_a_backup_harms_neither_the_cluster_nor_the_backup_before(
    who: str, new_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    cluster, place = new_cluster(settings=SETTINGS).start(), tmp_path / "place"
    random_ = random.Random(f"{SEED} {who}")
    writers = start_writers(cluster)
    wait_for(lambda: all(writer.acknowledged > 10 for writer in writers))
    back_up(cluster, place)
    names = [inventory.name for inventory in sending.inventories(open_place(str(place)))]
    for _ in range(KILLS):
        asked = acknowledged(writers)
        pids = list(cluster.worker_pids().values())
        pid = random_.choice(pids) if who == "worker" else cluster.coordinator.pid  # type: ignore[union-attr]
        killing = threading.Timer(random_.uniform(0, 0.25), os.kill, (pid, signal.SIGKILL))
        killing.start()
        with contextlib.suppress(BackupError, CommandError, OSError):
            names.append(back_up(cluster, place).inventory.name)
        killing.join()
        if who == "coordinator":
            cluster.coordinator.wait()  # type: ignore[union-attr]
            cluster.start_coordinator()
        time.sleep(0.2)  # until the death of the worker has been noticed
        cluster.wait_ready()
        assert sending.verify(open_place(str(place)), nothing) == []
        assert [inventory.name for inventory in sending.inventories(open_place(str(place)))] == names
        wait_for(lambda: staged(cluster) == [])
        wait_for(lambda asked=asked: all(writer.acknowledged > asked[writer.name_of] for writer in writers))
    asked = acknowledged(writers)
    back_up(cluster, place)
    stop_writers(writers)
    cluster.kill()
    copy = restored(new_cluster, place).start()
    assert_one_moment(copy, writers, asked)


KEEPS_A_VIEW = """
import sys, time
from coordinator.backup.sending import _kept
from coordinator.command_client import Client
api = Client(sys.argv[1])
with _kept(api, api.call("POST", "/api/v1/admin/backup", {})["data"]["view"]):
    time.sleep(3)
    print("kept", flush=True)
    time.sleep(60)
"""


def test_the_next_backup_need_not_wait_for_a_command_that_was_killed(
    new_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    cluster = new_cluster(settings=SETTINGS).start()
    arguments = [sys.executable, "-c", KEEPS_A_VIEW, cluster.url]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, cwd=ROOT) as command:
        assert command.stdout is not None
        assert command.stdout.readline() == b"kept\n"
        with pytest.raises(CommandError, match="is being copied"):
            back_up(cluster, tmp_path / "place")
        command.kill()
    killed_at = time.monotonic()
    wait_for(lambda: staged(cluster) == [])
    back_up(cluster, tmp_path / "place")
    assert time.monotonic() - killed_at < LEASE_S / 2
    assert "the command of a backup is gone" in cluster.log("coordinator")


def test_a_worker_that_does_not_answer_ends_the_backup_and_writes_go_on(
    new_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    cluster = new_cluster(settings=SETTINGS).start()
    writers = start_writers(cluster)
    writer = writers[0]
    wait_for(lambda: writer.acknowledged > 5)
    pid = cluster.worker_pids()["worker-0"]
    freeze(pid)
    try:
        with pytest.raises((CommandError, BackupError)):
            back_up(cluster, tmp_path / "place")
    finally:
        os.kill(pid, signal.SIGCONT)
    cluster.wait_ready()
    number = writer.acknowledged
    wait_for(lambda: writer.acknowledged > number)
    stop_writers(writers)
    wait_for(lambda: staged(cluster) == [])
    assert sending.inventories(open_place(str(tmp_path / "place"), create=True)) == []
    back_up(cluster, tmp_path / "place")


def test_a_view_is_read_through_http_as_from_the_disk(
    new_cluster: Callable[..., Cluster], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = new_cluster(settings=SETTINGS).start()
    writers = start_writers(cluster)
    wait_for(lambda: all(writer.acknowledged > 10 for writer in writers))
    stop_writers(writers)
    with monkeypatch.context() as patch:
        patch.setattr(sending, "source_of", lambda api, view, path: RemoteSource(api, view))
        back_up(cluster, tmp_path / "place")
    view = cluster.request("POST", "/api/v1/admin/backup", b"").json()["data"]["view"]
    for path in ("../../../manifest.json", "/etc/passwd", "shards/../../x", "", "shards"):
        answer = cluster.get(f"/api/v1/admin/backup/{view}/content", name=path)
        assert answer.status in (400, 404), path
    refused = cluster.request("POST", "/api/v1/admin/backup", b"")
    assert refused.status == 503 and view in refused.json()["error"]
    assert cluster.request("DELETE", f"/api/v1/admin/backup/{view}").status == 200
    assert cluster.request("DELETE", f"/api/v1/admin/backup/{view}").status == 404
    everything = numbers_in(cluster, writers)
    cluster.kill()
    assert numbers_in(restored(new_cluster, tmp_path / "place").start(), writers) == everything


def test_a_snapshot_is_a_data_directory_that_later_writes_do_not_change(
    new_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    cluster = new_cluster(settings=SETTINGS).start()
    writers = start_writers(cluster)
    wait_for(lambda: all(writer.acknowledged > 20 for writer in writers))
    asked = acknowledged(writers)
    answers = [cluster.request(method, "/api/v1/admin/tsdb/snapshot").json() for method in ("POST", "PUT")]
    names = [answer["data"]["name"] for answer in answers]
    assert all(re.fullmatch(r"\d{8}T\d{6}Z-[0-9a-f]{16}", name) for name in names), json.dumps(answers)
    more = acknowledged(writers)
    wait_for(lambda: all(writer.acknowledged > more[writer.name_of] + 40 for writer in writers))
    stop_writers(writers)
    cluster.kill()
    copy = new_cluster(settings=SETTINGS)
    shutil.copytree(cluster.directory / "data/snapshots" / names[0], copy.directory / "data")
    assert check.check(copy.directory / "data").damage == []
    assert_one_moment(copy.start(), writers, asked)
    cluster.start()  # beside its snapshots, which it does not touch
    assert sorted(os.listdir(cluster.directory / "data/snapshots")) == sorted(names)


def test_a_snapshot_without_the_head_has_the_samples_of_blocks_and_everything_else(
    new_cluster: Callable[..., Cluster],
) -> None:
    settings = {"TRIPTYCH_ADMIN_API": "true", "TRIPTYCH_BLOCK_WINDOW": "1s"}
    cluster = new_cluster(settings=settings).start()
    body = compressed([({"__name__": "old"}, [(1000, 1.0)])])
    assert cluster.request("POST", "/api/v1/write", body, HEADERS).status == 204
    wait_for(lambda: any((cluster.directory / "data/shards").glob("*/blocks/*.block")))
    later_ms = int(time.time() + 3600) * 1000  # its window is not over
    body = compressed([({"__name__": "new"}, [(later_ms, 1.0)])])
    assert cluster.request("POST", "/api/v1/write", body, HEADERS).status == 204
    append = {"records": [{"key": "YQ==", "value": "YQ=="}]}
    assert cluster.post_json("/api/v1/log/append", append).status == 200
    name = cluster.request("POST", "/api/v1/admin/tsdb/snapshot?skip_head=true").json()["data"]["name"]
    answer = cluster.request("POST", "/api/v1/admin/tsdb/snapshot?skip_head=maybe")
    assert answer.status == 400 and "skip_head" in answer.json()["error"]
    cluster.kill()
    copy = new_cluster(settings=settings)
    shutil.copytree(cluster.directory / "data/snapshots" / name, copy.directory / "data")
    assert check.check(copy.directory / "data").damage == []
    copy.start()
    old = copy.get("/api/v1/query", query="old[1h]", time="1800").json()
    new = copy.get("/api/v1/query", query="new[1h]", time=str(later_ms / 1000)).json()
    assert "warnings" not in old and "warnings" not in new
    assert [len(answer["data"]["result"]) for answer in (old, new)] == [1, 0]
    assert copy.get("/api/v1/log/count", prefix_base64="").json()["count"] == 1
