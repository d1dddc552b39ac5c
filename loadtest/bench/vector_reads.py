"""`python -m loadtest.bench.vector_reads`: scrolls, counts, facets, grouped searches, and changes by filter.

Over HTTP, on a cluster of its own with 2 workers, one request at a time; medians, printed as a table."""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from loadtest.harness.cluster import Cluster
from proto import vector_pb2

COLLECTION = "reads"
WRITE_BATCH = 5000
SETTLED_WITHIN_S = 600.0
TAGS = 1000


class Bench:
    """A cluster with `count` vectors, asked one request at a time."""

    def __init__(self, cluster: Cluster, count: int, dimension: int) -> None:
        self._cluster = cluster
        self._count = count
        self.dimension = dimension
        random = np.random.default_rng(1)
        self._table = random.standard_normal((count, dimension)).astype(np.float32)
        self._order = random.permutation(count).tolist()

    def post(self, name: str, **fields: Any) -> dict[str, Any]:
        answer = self._cluster.post_json(f"/api/v1/vector/{name}", {"collection": COLLECTION, **fields})
        assert answer.status == 200, answer.body[:300]
        return answer.json()

    def fill(self) -> None:
        """Write the vectors: `n` is unique, `tag` one of TAGS, `half` and `hundredth` are shares."""
        settings = json.dumps({"dimension": self._table.shape[1], "metric": "cosine"}).encode()
        path, head = f"/api/v1/vector/collections/{COLLECTION}", {"Content-Type": "application/json"}
        assert self._cluster.request("PUT", path, settings, head).status == 200
        for start in range(0, self._count, WRITE_BATCH):
            request = vector_pb2.WriteRequest(collection=COLLECTION)
            for n in self._order[start : start + WRITE_BATCH]:
                vector = request.upsert_vectors.add(id=f"v{n:08}")
                vector.attributes["vector"].vector_value.values.extend(self._table[n].tolist())
                vector.attributes["n"].int64_value = n
                vector.attributes["tag"].string_value = f"tag{n % TAGS}"
                vector.attributes["half"].bool_value = n % 2 == 0
                vector.attributes["hundredth"].int64_value = n % 100
            body, head = request.SerializeToString(), {"Content-Type": "application/protobuf"}
            assert self._cluster.request("POST", "/api/v1/vector/write", body, head).status == 200
        self.settle()

    def settle(self) -> float:
        """Seconds until everything is indexed."""
        began = time.perf_counter()
        while self._cluster.get("/api/v1/vector/stats").json()["collections"][COLLECTION]["pending"]:
            assert time.perf_counter() - began < SETTLED_WITHIN_S
            time.sleep(0.1)
        return time.perf_counter() - began

    def median_ms(self, work: Callable[[], Any], rounds: int = 15) -> float:
        work()
        times = []
        for _ in range(rounds):
            began = time.perf_counter()
            work()
            times.append((time.perf_counter() - began) * 1000)
        return statistics.median(times)

    def seconds(self, work: Callable[..., Any], *arguments: Any, **fields: Any) -> float:
        began = time.perf_counter()
        work(*arguments, **fields)
        return time.perf_counter() - began

    def page_in_the_middle(self, **fields: Any) -> dict[str, Any]:
        """The request for a page some pages behind the first."""
        token = self.post("scroll", **{**fields, "limit": 1000})["nextPageToken"]
        return {**fields, "pageToken": token}

    def scroll_all(self, **fields: Any) -> int:
        count = 0
        token: dict[str, Any] = {}
        while True:
            page = self.post("scroll", **fields, **token)
            count += len(page["vectors"])
            if "nextPageToken" not in page:
                return count
            token = {"pageToken": page["nextPageToken"]}


def shares() -> dict[str, dict[str, Any]]:
    half = {"eq": {"field": "half", "value": True}}
    hundredth = {"eq": {"field": "hundredth", "value": 7}}
    return {"no filter": {}, "a filter of 50 %": {"filter": half}, "a filter of 1 %": {"filter": hundredth}}


def measure(bench: Bench, show: Callable[[str, float, str], None]) -> None:
    def median(name: str, endpoint: str, **fields: Any) -> None:
        show(name, bench.median_ms(lambda: bench.post(endpoint, **fields)), "ms")

    for name, fields in shares().items():
        for order in ("id", "n", "tag", "half"):
            asked = {**fields, **({} if order == "id" else {"orderBy": {"field": order}}), "includeFields": ["n"]}
            if name == "a filter of 1 %":
                median(f"page of 10 by {order}, {name}", "scroll", limit=10, **asked)
                continue
            later = bench.page_in_the_middle(**asked)
            median(f"page of 10 by {order}, {name}", "scroll", limit=10, **later)
            median(f"page of 1,000 by {order}, {name}", "scroll", limit=1000, **later)
        median(f"count, {name}", "count", **fields)
    show("all in pages of 1,000, one attribute", bench.seconds(bench.scroll_all, limit=1000, includeFields=["n"]), "s")
    show("all in pages of 1,000, whole", bench.seconds(bench.scroll_all, limit=1000), "s")
    for field in ("half", "hundredth", "tag", "n"):
        median(f"facets of {field}", "facets", field=field)
    near = {"vector": [1.0] * bench.dimension, "includeFields": []}
    median("search", "search", **near)
    for field in ("tag", "half"):
        median(f"search grouped by {field}", "search", groupBy={"field": field, "groups": 10, "perGroup": 3}, **near)
    tenth = {"filter": {"lt": {"field": "hundredth", "value": 10}}}
    show("update of 10 % by filter", bench.seconds(bench.post, "update", set={"new": 1}, **tenth), "s")
    show("until its vectors are indexed again", bench.settle(), "s")
    show("the same update again", bench.seconds(bench.post, "update", set={"new": 1}, **tenth), "s")
    show("delete of 10 % by filter", bench.seconds(bench.post, "delete", **tenth), "s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vectors", type=int, default=100_000)
    parser.add_argument("--dimension", type=int, default=64)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        cluster = Cluster(Path(directory), workers=2)
        try:
            bench = Bench(cluster.start(), options.vectors, options.dimension)
            print(f"written and indexed in {bench.seconds(bench.fill):.1f} s")
            measure(bench, lambda name, value, unit: print(f"{name:52}{value:9.2f} {unit}", flush=True))
        finally:
            cluster.kill()


if __name__ == "__main__":
    main()
