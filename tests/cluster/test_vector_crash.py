"""SIGKILL to workers, the coordinator or everything during vector writes, indexing, rebuilding and snapshotting.

Every acknowledged vector is there with its last value, every deleted one is gone, and searches agree with brute force.
20 rounds: `VECTOR_CRASH_ROUNDS=20 python -m pytest tests/cluster/test_vector_crash.py`.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from loadtest.harness.cluster import READY_WITHIN_S, Cluster
from proto import vector_pb2

ROUNDS = int(os.environ.get("VECTOR_CRASH_ROUNDS", "4"))
WRITERS = 3
IDS_EACH = 1500
BATCH = 100
DIMENSION = 8
K = 10
QUERIES = np.random.default_rng(7).standard_normal((40, DIMENSION)).astype(np.float32)
SETTINGS = {"TRIPTYCH_VECTOR_SNAPSHOT": "50ms"}  # so that kills often meet one

Value = int | None
"""A version of a vector, or None where there is none."""


def vectors(numbers: list[int], version: int) -> np.ndarray:
    random_ = np.random.default_rng(version)
    table = random_.standard_normal((IDS_EACH * WRITERS, DIMENSION), dtype=np.float32)
    return table[numbers]


class Writer(threading.Thread):
    """Writes and deletes its own ids until told to stop or refused. `states`: id → the values it may have."""

    def __init__(self, cluster: Cluster, number: int, seed: int, states: dict[int, set[Value]]) -> None:
        super().__init__()
        self.cluster, self.states = cluster, states
        self.own = range(number * IDS_EACH, (number + 1) * IDS_EACH)
        self.random = random.Random(f"{seed} {number}")
        self.version = seed * 1000 + number * 300
        self.stopping = threading.Event()
        self.acknowledged = 0
        self.refused = 503

    def run(self) -> None:
        while not self.stopping.is_set():
            numbers = self.random.sample(self.own, BATCH)
            value: Value = None
            if self.random.random() < 0.8:
                self.version += 1
                value = self.version
            for number in numbers:
                self.states.setdefault(number, {None}).add(value)
            try:
                status = self.send(numbers, value)
            except (OSError, http.client.HTTPException):
                return
            if status != 200:
                self.refused = status
                return
            for number in numbers:
                self.states[number] = {value}
            self.acknowledged += 1

    def send(self, numbers: list[int], value: Value) -> int:
        headers = {"Content-Type": "application/protobuf"}
        if value is None:
            body = vector_pb2.DeleteRequest(ids=map(str, numbers)).SerializeToString()
            return self.cluster.request("POST", "/api/v1/vector/delete", body, headers).status
        request = vector_pb2.WriteRequest()
        for number, row in zip(numbers, vectors(numbers, value).tolist(), strict=True):
            vector = request.upsert_vectors.add(id=str(number))
            vector.attributes["vector"].vector_value.values.extend(row)
            vector.attributes["version"].int64_value = value
        return self.cluster.request("POST", "/api/v1/vector/write", request.SerializeToString(), headers).status


def kill_coordinator(cluster: Cluster) -> None:
    assert cluster.coordinator is not None
    cluster.coordinator.kill()
    cluster.coordinator.wait()


def strike(cluster: Cluster, choice: random.Random) -> Callable[[], object]:
    """Kill something; returns what starts it again."""
    victim = choice.choice(["worker-0", "worker-1", "workers", "coordinator", "all", "all"])
    if victim == "all":
        cluster.kill()
        return cluster.start
    if victim == "coordinator":
        kill_coordinator(cluster)
        return cluster.start_coordinator
    pids = cluster.worker_pids()
    names = ["worker-0", "worker-1"] if victim == "workers" else [victim]
    for name in names:
        os.kill(pids[name], signal.SIGKILL)
    return lambda: wait_restarted(cluster, {name: pids[name] for name in names})


def wait_restarted(cluster: Cluster, old: dict[str, int]) -> None:
    """The supervisor does it; until they call, the coordinator may still take the dead for ready."""
    give_up = time.monotonic() + READY_WITHIN_S
    while any(cluster.worker_pids().get(name, pid) == pid for name, pid in old.items()):
        assert time.monotonic() < give_up, cluster.log("worker")
        time.sleep(0.05)


def check(cluster: Cluster, states: dict[int, set[Value]]) -> None:
    numbers = sorted(states)
    answer = cluster.post_json("/api/v1/vector/get", {"ids": [str(number) for number in numbers]}).json()
    assert "warnings" not in answer
    found = {int(entry["id"]): entry["attributes"] for entry in answer["vectors"]}
    drawn: dict[int, np.ndarray] = {}
    for number in numbers:
        value = found[number]["version"] if number in found else None
        assert value in states[number], f"{number} is {value}; it should be one of {states[number]}"
        if value is not None:
            table = drawn.setdefault(value, vectors(list(range(IDS_EACH * WRITERS)), value))
            assert np.array_equal(np.array(found[number]["vector"], np.float32), table[number])
        states[number] = {value}
    there = np.array(sorted(found))
    table = np.stack([drawn[found[number]["version"]][number] for number in there.tolist()])
    near = (QUERIES @ table.T) / np.linalg.norm(table, axis=1)
    best = [set(there[np.argsort(-row)[:K]].tolist()) for row in near]
    for exact, least in ((True, 0.999), (False, 0.95)):
        assert recall(searched(cluster, exact), best) >= least


def searched(cluster: Cluster, exact: bool) -> list[set[int]]:
    body: dict[str, Any] = {"vectors": QUERIES.tolist(), "k": K, "includeFields": [], "exact": exact}
    answer = cluster.post_json("/api/v1/vector/search", body)
    assert answer.status == 200, answer.body
    content = json.loads(answer.body)
    assert "warnings" not in content
    return [{int(hit["vector"]["id"]) for hit in entry["results"]} for entry in content["resultSets"]]


def recall(found: list[set[int]], expected: list[set[int]]) -> float:
    return float(np.mean([len(a & b) / K for a, b in zip(found, expected, strict=True)]))


def test_kills_of_a_cluster_lose_nothing_acknowledged_and_bring_nothing_back(
    new_cluster: Callable[..., Cluster],
) -> None:
    cluster = new_cluster(shards=4, workers=2, settings=SETTINGS).start()
    choice = random.Random(6)
    states: dict[int, set[Value]] = {}
    acknowledged = 0
    for seed in range(1, ROUNDS + 1):
        writers = [Writer(cluster, number, seed, states) for number in range(WRITERS)]
        for writer in writers:
            writer.start()
        time.sleep(choice.uniform(0.3, 1.5))
        again = strike(cluster, choice)
        for writer in writers:
            writer.stopping.set()
        for writer in writers:
            writer.join(60)
            acknowledged += writer.acknowledged
            assert writer.refused == 503
        again()
        cluster.wait_ready()
        check(cluster, states)
    assert acknowledged >= ROUNDS
    assert len(states) >= IDS_EACH
