"""A mixed load for a running cluster: dashboards, writers, appenders and searches side by side.

make load                      # 20 users for a minute against http://127.0.0.1:9090
locust -f loadtest/locustfile.py --host http://127.0.0.1:9090     # with locust's own page
"""

from __future__ import annotations

import base64
import random
import time

import snappy
from locust import HttpUser, between, constant_pacing, task

from proto import remote_write_pb2

SERIES = 500
DIMENSION = 64
KEYS = 100
WRITE_HEADERS = {"Content-Type": "application/x-protobuf", "Content-Encoding": "snappy"}


class Writer(HttpUser):
    """A scraper: every series of one job once a second."""

    wait_time = constant_pacing(1)
    weight = 1

    def on_start(self) -> None:
        self.job = f"load-{random.randrange(10)}"

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
        self.client.post("/api/v1/write", data=body, headers=WRITE_HEADERS, name="write")


class Dashboard(HttpUser):
    """A panel that refreshes."""

    wait_time = between(0.5, 1.5)
    weight = 2

    @task(3)
    def range_query(self) -> None:
        end = time.time()
        query = {"query": "sum by (job) (rate(load_total[1m]))", "start": end - 900, "end": end, "step": "15s"}
        self.client.get("/api/v1/query_range", params=query, name="query_range")

    @task(1)
    def instant_query(self) -> None:
        self.client.get("/api/v1/query", params={"query": "topk(5, load_total)"}, name="query")


class Appender(HttpUser):
    wait_time = between(0.05, 0.2)
    weight = 1

    @task(4)
    def append(self) -> None:
        key = base64.b64encode(f"load-{random.randrange(KEYS)}".encode()).decode()
        records = [{"key": key, "value": base64.b64encode(random.randbytes(100)).decode()} for _ in range(20)]
        self.client.post("/api/v1/log/append", json={"records": records, "awaitDurable": True}, name="append")

    @task(1)
    def scan(self) -> None:
        self.client.get("/api/v1/log/scan", params={"key": f"load-{random.randrange(KEYS)}", "limit": 100}, name="scan")


class Searcher(HttpUser):
    """Keeps a collection of its own, so that whatever the default collection's dimension is does not matter."""

    wait_time = between(0.05, 0.2)
    weight = 1

    def on_start(self) -> None:
        self.client.put("/api/v1/vector/collections/load", json={"dimension": DIMENSION}, name="make collection")

    @task(1)
    def write(self) -> None:
        items = [
            {
                "id": f"v-{random.randrange(10_000)}",
                "attributes": {"vector": [random.gauss(0, 1) for _ in range(DIMENSION)]},
            }
            for _ in range(20)
        ]
        self.client.post("/api/v1/vector/write", json={"collection": "load", "upsertVectors": items}, name="upsert")

    @task(4)
    def search(self) -> None:
        vector = [random.gauss(0, 1) for _ in range(DIMENSION)]
        self.client.post("/api/v1/vector/search", json={"collection": "load", "vector": vector, "k": 10}, name="search")
