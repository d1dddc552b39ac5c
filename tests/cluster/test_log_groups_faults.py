"""Consumer groups while members and the coordinator are killed: no record is lost, no stale member commits anything."""

from __future__ import annotations

import base64
import http.client
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from loadtest.harness.cluster import Cluster
from tests.cluster.log_groups import Consumer
from tests.cluster.log_requests import b64

KEYS = 40
RECORDS = 3000
BATCH = 50
MEMBERS = 4
SESSION_MS = 1500
KILLS = 3
WITHIN_S = 90.0


@dataclass
class Processed:
    """What members have done. `times`: key → the values in the order in which they were processed; `committed`: values
    whose commit was answered."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    values: dict[bytes, list[int]] = field(default_factory=dict)
    committed: set[int] = field(default_factory=set)
    repeated_after_commit: list[int] = field(default_factory=list)

    def add(self, records: list[tuple[bytes, int]]) -> None:
        with self.lock:
            for key, value in records:
                self.values.setdefault(key, []).append(value)
                if value in self.committed:
                    self.repeated_after_commit.append(value)

    def commit(self, records: list[tuple[bytes, int]]) -> None:
        with self.lock:
            self.committed.update(value for _, value in records)

    @property
    def distinct(self) -> int:
        with self.lock:
            return len({value for values in self.values.values() for value in values})


def produce(cluster: Cluster) -> None:
    """Each batch once, although the coordinator is killed meanwhile: by a producer's numbers."""
    for number in range(RECORDS // BATCH):
        values = range(number * BATCH, (number + 1) * BATCH)
        records = [{"key": b64(b"k%d" % (value % KEYS)), "value": b64(b"%d" % value)} for value in values]
        body = {"records": records, "producerId": "p", "producerSeq": number}
        give_up = time.monotonic() + WITHIN_S
        while True:
            try:
                if cluster.post_json("/api/v1/log/append", body).status == 200:
                    break
            except (OSError, http.client.HTTPException):
                pass
            assert time.monotonic() < give_up
            time.sleep(0.05)


def consume(cluster: Cluster, name: str, processed: Processed, stop: threading.Event, dies: threading.Event) -> None:
    """A member, until it is told to stop, or dies: between processing records and committing them, without a word."""
    consumer = Consumer(cluster, "g", name, {"sessionTimeoutMs": SESSION_MS})
    while not stop.is_set():
        status, body = consumer.patiently("poll", max=100, waitMs=300)
        if status == 409:
            if "generation" in body:
                consumer.generation = body["generation"]
            else:
                status, body = consumer.patiently("join", sessionTimeoutMs=SESSION_MS)
                consumer.generation = body["generation"]
            continue
        assert status == 200, body
        records = [(base64.b64decode(r["key"]), int(base64.b64decode(r["value"]))) for r in body["records"]]
        processed.add(records)
        if dies.is_set():
            return
        if consumer.patiently("commit", upTo=body["nextSequence"])[0] == 200:
            processed.commit(records)


def test_nothing_is_lost_when_members_and_the_coordinator_die(new_cluster: Callable[..., Cluster]) -> None:
    cluster = new_cluster().start()
    processed, stop, choose = Processed(), threading.Event(), random.Random(7)
    deaths = [threading.Event() for _ in range(MEMBERS + KILLS)]

    def started(number: int) -> threading.Thread:
        arguments = (cluster, f"m{number}", processed, stop, deaths[number])
        thread = threading.Thread(target=consume, args=arguments, daemon=True)
        thread.start()
        return thread

    members = {number: started(number) for number in range(MEMBERS)}
    producer = threading.Thread(target=produce, args=(cluster,), daemon=True)
    producer.start()
    for kill in range(KILLS):
        time.sleep(0.5)
        victim = choose.choice(list(members))
        deaths[victim].set()
        members.pop(victim).join(WITHIN_S)
        assert cluster.coordinator is not None
        cluster.coordinator.kill()
        cluster.coordinator.wait()
        cluster.start_coordinator()
        cluster.wait_ready()
        members[MEMBERS + kill] = started(MEMBERS + kill)
    producer.join(WITHIN_S)
    give_up = time.monotonic() + WITHIN_S
    while processed.distinct < RECORDS:
        assert time.monotonic() < give_up, f"{processed.distinct} of {RECORDS} records were processed"
        time.sleep(0.1)
    stop.set()
    for member in members.values():
        member.join(WITHIN_S)
    assert processed.repeated_after_commit == []
    for key, values in processed.values.items():
        firsts = list(dict.fromkeys(values))
        assert firsts == sorted(firsts), f"{key!r} was not processed in order"


def test_a_member_that_was_replaced_commits_nothing_over_a_restart(new_cluster: Callable[..., Cluster]) -> None:
    cluster = new_cluster().start()
    append = {"records": [{"key": b64(b"k%d" % n), "value": ""} for n in range(100)]}
    assert cluster.post_json("/api/v1/log/append", append).status == 200
    stale = Consumer(cluster, "g", "a", {"sessionTimeoutMs": 60_000})
    upto = stale.poll()["nextSequence"]
    for act in ("replace", "restart", "delete"):
        if act == "replace":
            current = Consumer(cluster, "g", "a")
        elif act == "restart":
            assert cluster.coordinator is not None
            cluster.coordinator.kill()
            cluster.coordinator.wait()
            cluster.start_coordinator()
            cluster.wait_ready()
        else:
            assert cluster.request("DELETE", "/api/v1/log/groups/g").status == 200
            current = Consumer(cluster, "g", "a")
        status, body = stale.act("commit", upTo=upto)
        assert status == 409, (act, body)
        assert len(current.poll()["records"]) == 100
