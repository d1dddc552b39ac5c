"""The libraries that search vectors in process, on the benchmark's data."""

from __future__ import annotations

import time

import numpy as np
from usearch.index import Index

from loadtest.bench.vector_data import Data, K, recall

ROUNDS = 3  # the best of so many: other work on the machine only ever slows


def usearch(data: Data, expansion: int) -> dict[str, float]:
    index = Index(ndim=data.vectors.shape[1], metric="ip", dtype="f32")
    started = time.perf_counter()
    index.add(np.arange(len(data.vectors)), data.vectors, threads=0)
    result = {"add": time.perf_counter() - started}
    index.expansion_search = expansion
    index.search(data.queries[:20], K, threads=1)
    one, batch = [], []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        found = [index.search(query, K).keys.tolist() for query in data.queries]
        one.append(len(data.queries) / (time.perf_counter() - started))
        started = time.perf_counter()
        index.search(data.queries, K, threads=0)
        batch.append(len(data.queries) / (time.perf_counter() - started))
    return {**result, "one": max(one), "batch": max(batch), "recall": recall(found, data.expected)}


def hnswlib(data: Data, expansion: int) -> dict[str, float] | None:
    """None where it is not installed."""
    try:
        import hnswlib
    except ImportError:
        return None
    graph = hnswlib.Index("ip", data.vectors.shape[1])
    graph.init_index(len(data.vectors), ef_construction=128, M=16)
    started = time.perf_counter()
    graph.add_items(data.vectors, np.arange(len(data.vectors)))
    add = time.perf_counter() - started
    graph.set_ef(expansion)
    one = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        found = [graph.knn_query(query, K, num_threads=1)[0][0].tolist() for query in data.queries]
        one.append(len(data.queries) / (time.perf_counter() - started))
    return {"add": add, "one": max(one), "recall": recall(found, data.expected)}
