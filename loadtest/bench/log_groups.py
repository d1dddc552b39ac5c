"""Consumer groups of the log over HTTP, on a cluster of its own: `python -m loadtest.bench.log_groups`.

Members are processes that poll (protobuf) and commit; the load generator shares the machine's cores. Measured are the
records a second of all members together, and the time from a member's death until others have its slots.
"""

from __future__ import annotations

import argparse
import http.client
import json
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from typing import Any

from loadtest.bench import log_load as load
from loadtest.harness.cluster import Cluster
from proto import log_pb2

MEMBERS = 4
SESSION_MS = 2000
DEATHS = 5
WITHIN_S = 60.0
PROTOBUF = {"Content-Type": "application/json", "Accept": "application/protobuf"}


class Consumer:
    """A member of a group over one connection."""

    def __init__(self, port: int, group: str, member: str) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self._path = f"/api/v1/log/groups/{group}/"
        self.member = {"member": member}
        joined = json.loads(self.post("join", sessionTimeoutMs=SESSION_MS)[1])
        self.member["generation"] = joined["generation"]

    def post(self, act: str, **body: Any) -> tuple[int, bytes]:
        self._connection.request("POST", self._path + act, json.dumps({**self.member, **body}), PROTOBUF)
        answer = self._connection.getresponse()
        return answer.status, answer.read()

    def consume(self, records_max: int, done: Callable[[int], bool]) -> None:
        """Poll, and commit with the next poll, until `done`, which is told how many records came, says so."""
        position: dict[str, int] = {}
        while True:
            status, content = self.post("poll", **position, max=records_max, waitMs=500)
            if status == 409:
                self.member["generation"] = json.loads(content)["generation"]
                position = {}
                continue
            assert status == 200, content
            page = log_pb2.ScanResponse.FromString(content)
            position = {"commit": page.next_sequence}
            if done(sum(len(columns.sequences) for columns in page.pages)):
                self.post("commit", upTo=page.next_sequence)
                return


def _count(port: int, number: int, total: int, records_max: int, read: Synchronized[int]) -> None:
    consumer = Consumer(port, "rate", f"member-{number}")

    def done(records: int) -> bool:
        with read.get_lock():
            read.value += records
            return read.value >= total

    consumer.consume(records_max, done)


def rate(cluster: Cluster, total: int, records_max: int) -> float:
    """Records a second of MEMBERS members that begin together with a log of `total` records."""
    read = multiprocessing.Value("q", 0)
    started = time.perf_counter()
    members = [
        multiprocessing.Process(target=_count, daemon=True, args=(cluster.port, number, total, records_max, read))
        for number in range(MEMBERS)
    ]
    for member in members:
        member.start()
    give_up = time.monotonic() + WITHIN_S
    while read.value < total:
        assert time.monotonic() < give_up, f"{read.value} of {total} records within {WITHIN_S:g} s"
        time.sleep(0.005)
    took = time.perf_counter() - started
    for member in members:
        member.join()
    again = read.value - total
    sys.stdout.write(f"  {again:,} records came twice, while members joined one after the other\n")
    return total / took


def _idle(port: int, number: int) -> None:
    Consumer(port, "deaths", f"member-{number}").consume(1000, lambda records: False)


def deaths(cluster: Cluster) -> list[float]:
    """Seconds from the SIGKILL of a member until the others have its slots."""
    times = []
    members = {number: _started(cluster, number) for number in range(MEMBERS)}
    for number in range(DEATHS):
        _wait_for(cluster, MEMBERS)
        time.sleep(1.0)
        victim = members.pop(number)
        assert victim.pid is not None
        os.kill(victim.pid, signal.SIGKILL)
        died = time.perf_counter()
        _wait_for(cluster, MEMBERS - 1)
        times.append(time.perf_counter() - died)
        members[number + MEMBERS] = _started(cluster, number + MEMBERS)
    for member in members.values():
        member.kill()
    return times


def _started(cluster: Cluster, number: int) -> multiprocessing.Process:
    member = multiprocessing.Process(target=_idle, daemon=True, args=(cluster.port, number))
    member.start()
    return member


def _wait_for(cluster: Cluster, members: int) -> None:
    """Return when the group has so many members, who have all of its slots."""
    give_up = time.monotonic() + WITHIN_S
    while True:
        answer = cluster.get("/api/v1/log/groups/deaths", lag="false")
        state = answer.json() if answer.status == 200 else {"members": []}
        slots = sum(member["slots"] for member in state["members"])
        if len(state["members"]) == members and slots == state["slotCount"]:
            return
        assert time.monotonic() < give_up, state
        time.sleep(0.01)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--max", type=int, default=10_000, help="records a poll")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--no-deaths", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        cluster = Cluster(Path(directory), shards=0, workers=0).start()
        try:
            load.fill(cluster, lambda number: b"key-%06d" % (number % load.KEYS), range(options.records))
            for _ in range(options.runs):
                before = load.cpu_seconds(cluster)
                measured = rate(cluster, options.records, options.max)
                own, workers = (
                    (after - since) / options.records * 1e6
                    for after, since in zip(load.cpu_seconds(cluster), before, strict=True)
                )
                sys.stdout.write(
                    f"{MEMBERS} members, {load.KEYS} keys, at most {options.max} records a poll: "
                    f"{measured:,.0f} records/s; CPU: coordinator {own:.2f}, workers {workers:.2f} µs a record\n"
                )
                sys.stdout.flush()
                assert cluster.request("DELETE", "/api/v1/log/groups/rate").status == 200
            if not options.no_deaths:
                times = deaths(cluster)
                sys.stdout.write(
                    f"slots of a killed member (session {SESSION_MS} ms) are others' after "
                    f"{', '.join(f'{took:.2f}' for took in times)} s\n"
                )
        finally:
            cluster.stop()


if __name__ == "__main__":
    main()
