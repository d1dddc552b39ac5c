"""A mixed load for a running cluster: all kinds of users of metrics, log and vectors side by side.

    make load HOST=http://127.0.0.1:9090                        # 20 users for a minute
    make load SHAPE=ramp USERS=200 SECONDS=300                  # more and more users, until the cluster is saturated
    locust -f loadtest/locustfile.py --host http://127.0.0.1:9090   # with locust's own page

The environment decides how many users there are at what time: LOAD_SHAPE (a key of SHAPES), LOAD_USERS (at most) and
LOAD_SECONDS. Requests are named after their area and what they do, such as `log append`, and a table at the end has
rates and percentiles by area. docs/load.md has a run.
"""

from __future__ import annotations

import base64
import json
import os
import random
import signal
import sys
import time
import uuid
from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

import gevent
import snappy
from locust import FastHttpUser, LoadTestShape, between, constant_pacing, events, task
from locust.env import Environment
from locust.stats import StatsEntry

from proto import remote_write_pb2

SERIES = 500
JOBS = 10
DIMENSION = 64
COLLECTION = "load"
KEYS = 100
BATCH_RECORDS = 20
REPEATED_SHARE = 0.05
"""Of the batches that a producer sends a second time, as if it had not received the answer."""
FOLLOW_S = 5
WAITING = "waiting"
"""The area of requests that wait for something to happen: their times say nothing about the cluster."""
AREAS = ("metrics", "log", "vectors")
SATURATED_MS = 2_000
"""A ramp ends when the 95th percentile of the last seconds is above this."""
STEPS = 10
JSON = {"Content-Type": "application/json"}
WRITE_HEADERS = {"Content-Type": "application/x-protobuf", "Content-Encoding": "snappy"}


def base64_text(data: bytes) -> str:
    return base64.b64encode(data).decode()


class User(FastHttpUser):
    abstract = True
    connection_timeout = 30.0
    network_timeout = 30.0

    def ask(self, name: str, path: str, **parameters: Any) -> None:
        self.client.get(path + "?" + urlencode(parameters, doseq=True), name=name)

    def send(self, name: str, path: str, body: Any) -> None:
        self.client.post(path, data=json.dumps(body), headers=JSON, name=name)


class RemoteWriteAgent(User):
    """Sends every series of one job once a second."""

    wait_time = constant_pacing(1)
    weight = 3

    def on_start(self) -> None:
        self.job = f"load-{random.randrange(JOBS)}"

    @task
    def write(self) -> None:
        request = remote_write_pb2.WriteRequest()
        now_ms = int(time.time() * 1000)
        for number in range(SERIES):
            series = request.timeseries.add()
            for name, value in (("__name__", "load_total"), ("instance", f"host-{number}"), ("job", self.job)):
                series.labels.add(name=name, value=value)
            series.samples.add(value=float(now_ms // 1000 + number), timestamp=now_ms)
        body = snappy.compress(request.SerializeToString())
        self.client.post("/api/v1/write", data=body, headers=WRITE_HEADERS, name="metrics write")


class Dashboard(User):
    """Panels of the last quarter of an hour, which refresh."""

    wait_time = between(0.5, 1.5)
    weight = 3
    panels = (
        "sum by (job) (rate(load_total[1m]))",
        "max by (job) (load_total)",
        'load_total{{job="load-{job}", instance=~"host-1.?"}}',
        'quantile(0.9, rate(load_total{{job="load-{job}"}}[2m]))',
    )

    @task
    def refresh(self) -> None:
        end = time.time()
        query = random.choice(self.panels).format(job=random.randrange(JOBS))
        self.ask("metrics query_range", "/api/v1/query_range", query=query, start=end - 900, end=end, step=15)


class AlertRules(User):
    """Instant queries, at the same interval for ever."""

    wait_time = constant_pacing(0.5)
    weight = 2
    rules = (
        "topk(5, load_total)",
        "sum by (job) (increase(load_total[1m])) < 1",
        'absent(load_total{job="load-0"})',
        "count by (job) (changes(load_total[2m]) == 0) > 10",
    )

    @task
    def evaluate(self) -> None:
        self.ask("metrics query", "/api/v1/query", query=random.choice(self.rules))


class LabelBrowser(User):
    """Somebody who looks for series by hand."""

    wait_time = between(1, 3)
    weight = 1

    @task(2)
    def values(self) -> None:
        name = random.choice(("job", "instance", "__name__"))
        self.ask("metrics label values", f"/api/v1/label/{name}/values", limit=1000)

    @task(1)
    def names(self) -> None:
        self.ask("metrics labels", "/api/v1/labels", **{"match[]": "load_total"})

    @task(1)
    def series(self) -> None:
        selectors = [f'load_total{{job="load-{random.randrange(JOBS)}"}}', "up"]
        self.ask("metrics series", "/api/v1/series", limit=500, **{"match[]": selectors})


class Producer(User):
    """Appends numbered batches; some of them twice, which must be answered as the first time."""

    wait_time = between(0.05, 0.2)
    weight = 2

    def on_start(self) -> None:
        self.producer = f"load/{uuid.uuid4()}"
        self.number = 0

    @task
    def append(self) -> None:
        key = base64_text(f"load-{random.randrange(KEYS)}".encode())
        records = [{"key": key, "value": base64_text(random.randbytes(100))} for _ in range(BATCH_RECORDS)]
        batch = {
            "records": records,
            "awaitDurable": True,
            "producerId": self.producer,
            "producerSeq": self.number,
        }
        self.number += 1
        first = self._append(batch, "log append")
        if first is not None and random.random() < REPEATED_SHARE:
            self._append(batch, "log append again", first)

    def _append(self, batch: dict[str, Any], name: str, expected: int | None = None) -> int | None:
        """The sequence number that was answered; a failure if it is another one than expected."""
        data = json.dumps(batch)
        with self.client.post(
            "/api/v1/log/append", data=data, headers=JSON, name=name, catch_response=True
        ) as response:
            if response.status_code != 200:
                response.failure(f"status {response.status_code}")
                return None
            start: int = response.json()["startSequence"]
            if expected is not None and start != expected:
                response.failure(f"the repeated batch got number {start} instead of {expected}")
            return start


class Scanner(User):
    """Reads keys from their beginning or the newest records, counts them, and lists keys."""

    wait_time = between(0.1, 0.4)
    weight = 1

    @task(4)
    def scan(self) -> None:
        self.ask("log scan", "/api/v1/log/scan", key=f"load-{random.randrange(KEYS)}", limit=100)

    @task(2)
    def newest(self) -> None:
        self.ask("log scan newest", "/api/v1/log/scan", key=f"load-{random.randrange(KEYS)}", limit=10, reverse="true")

    @task(1)
    def count(self) -> None:
        self.ask("log count", "/api/v1/log/count", key=f"load-{random.randrange(KEYS)}")

    @task(1)
    def keys(self) -> None:
        self.ask("log keys", "/api/v1/log/keys", prefix="load-")


class Follower(User):
    """Waits for the next records of one key, again and again."""

    wait_time = between(0, 0.1)
    weight = 1

    def on_start(self) -> None:
        self.key = f"load-{random.randrange(KEYS)}"
        self.position = 0

    @task
    def follow(self) -> None:
        parameters = {"key": self.key, "start_seq": self.position, "follow": "true", "timeout": f"{FOLLOW_S}s"}
        path = "/api/v1/log/scan?" + urlencode(parameters)
        with self.client.get(path, name=f"{WAITING} follow", catch_response=True) as response:
            if response.status_code == 200:
                self.position = response.json()["nextSequence"]
            else:
                response.failure(f"status {response.status_code}")


class VectorUser(User):
    """Keeps a collection of its own, so that whatever the default collection's dimension is does not matter."""

    abstract = True

    def on_start(self) -> None:
        settings = json.dumps({"dimension": DIMENSION})
        path = f"/api/v1/vector/collections/{COLLECTION}"
        self.client.put(path, data=settings, headers=JSON, name="vectors make collection")

    def vector(self) -> list[float]:
        return [random.gauss(0, 1) for _ in range(DIMENSION)]


class VectorWriter(VectorUser):
    """Replaces vectors, and deletes a few."""

    wait_time = between(0.2, 0.6)
    weight = 1

    @task(9)
    def upsert(self) -> None:
        vectors = [
            {
                "id": f"v-{random.randrange(10_000)}",
                "attributes": {"vector": self.vector(), "colour": random.choice("abcd")},
            }
            for _ in range(20)
        ]
        self.send("vectors upsert", "/api/v1/vector/write", {"collection": COLLECTION, "upsertVectors": vectors})

    @task(1)
    def delete(self) -> None:
        ids = [f"v-{random.randrange(10_000)}" for _ in range(5)]
        self.send("vectors delete", "/api/v1/vector/delete", {"collection": COLLECTION, "ids": ids})


class Searcher(VectorUser):
    """Looks for neighbours, some of them of one colour only."""

    wait_time = between(0.05, 0.2)
    weight = 2

    @task(3)
    def search(self) -> None:
        self.send("vectors search", "/api/v1/vector/search", self._query())

    @task(1)
    def search_filtered(self) -> None:
        colour = {"exists": {"field": "colour"}}
        self.send("vectors search filtered", "/api/v1/vector/search", {**self._query(), "filter": colour})

    def _query(self) -> dict[str, Any]:
        return {"collection": COLLECTION, "vector": self.vector(), "k": 10, "includeFields": ["colour"]}


# How many users there are, by the share of the time that has passed; always at most all of them.


def steady(share: float, users: int) -> int:
    return users


def ramp(share: float, users: int) -> int:
    """A tenth more at every tenth of the time."""
    return max(1, users * (int(share * STEPS) + 1) // STEPS)


def spike(share: float, users: int) -> int:
    """A tenth of the users, all of them for the middle fifth of the time, and a tenth again."""
    return users if 0.4 <= share < 0.6 else max(1, users // 10)


def soak(share: float, users: int) -> int:
    """All users come during the first twentieth, and stay: for hours."""
    return max(1, min(users, round(users * share * 20)))


SHAPES: dict[str, Callable[[float, int], int]] = {"steady": steady, "ramp": ramp, "spike": spike, "soak": soak}


class Shape(LoadTestShape):
    """As the environment says. Raises KeyError for a shape that is not in SHAPES."""

    def __init__(self) -> None:
        super().__init__()
        self._name = os.environ.get("LOAD_SHAPE", "steady")
        self._users_at = SHAPES[self._name]
        self._users = int(os.environ.get("LOAD_USERS", "20"))
        self._seconds = float(os.environ.get("LOAD_SECONDS", "60"))
        self._shown = 0

    def tick(self) -> tuple[int, float] | None:
        """(users, how many come each second); None when the time is over or the ramp has reached saturation."""
        run_time_s = self.get_run_time()
        if run_time_s >= self._seconds:
            return None
        users = self._users_at(run_time_s / self._seconds, self._users)
        if self._name == "ramp" and self._shown and users != self._shown and self._saturated():
            return None
        self._shown = users
        return users, float(max(users, 1))

    def _saturated(self) -> bool:
        """Whether the last step was too much; what it reached is shown."""
        assert self.runner is not None
        total = self.runner.stats.total
        p95_ms = total.get_current_response_time_percentile(0.95) or 0
        sys.stdout.write(f"{self._shown} users: {total.current_rps:.0f} requests/s, p95 {p95_ms:.0f} ms\n")
        return p95_ms > SATURATED_MS


def summary(environment: Environment) -> str:
    """Rates and percentiles by area, as a table in Markdown."""
    assert environment.stats is not None
    rows = [
        "| area | requests | failed | requests/s | p50 ms | p95 ms | p99 ms | longest ms |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for area in AREAS:
        total = StatsEntry(environment.stats, area, "")
        for (name, _), entry in environment.stats.entries.items():
            if name.startswith(area + " "):
                total.extend(entry)
        p50, p95, p99 = (total.get_response_time_percentile(share) for share in (0.5, 0.95, 0.99))
        rows.append(
            f"| {area} | {total.num_requests:,} | {total.num_failures:,} | {total.total_rps:.1f}"
            f" | {p50:.0f} | {p95:.0f} | {p99:.0f} | {total.max_response_time:.0f} |"
        )
    return "\n".join(rows) + "\n"


@events.init.add_listener
def _end_in_order(environment: Environment, **_: Any) -> None:
    """On SIGTERM too, for which locust itself has no handler yet while a shape runs."""
    if environment.runner is not None:
        gevent.signal_handler(signal.SIGTERM, environment.runner.quit)


@events.init.add_listener
def _show_summary(environment: Environment, **_: Any) -> None:
    """After locust's own tables, which it prints between `quitting` and `quit`."""
    events.quit.add_listener(lambda **_: sys.stdout.write("\n" + summary(environment)))
