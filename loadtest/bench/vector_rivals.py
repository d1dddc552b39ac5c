"""The libraries that search vectors in process, on the benchmark's data.

usearch is measured with the candidates it keeps of itself, and with the fewest that have the service's recall; hnswlib,
whose own number is too small for any, with the fewest.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from usearch.index import Index

from loadtest.bench.vector_data import Data, K, recall

ROUNDS = 3  # the best of so many: other work on the machine only ever slows


USEARCH_DEFAULT = 64
"""Candidates usearch keeps when not told."""
LADDER = (10, 12, 16, 20, 24, 32, 40, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048)


def _least(data: Data, wanted: float, search: Callable[[int], list[list[int]]]) -> int:
    """The least expansion whose answers have the recall wanted, else the greatest."""
    return next((rung for rung in LADDER if recall(search(rung), data.expected) >= wanted), LADDER[-1])


def usearch(data: Data, wanted: float) -> dict[str, float]:
    index = Index(ndim=data.vectors.shape[1], metric="ip", dtype="f32")
    started = time.perf_counter()
    index.add(np.arange(len(data.vectors)), data.vectors, threads=0)
    result = {"add": time.perf_counter() - started}

    def at(expansion: int) -> list[list[int]]:
        index.expansion_search = expansion
        return index.search(data.queries, K, threads=1).keys.tolist()

    least = _least(data, wanted, at)
    fewest = _timed(data, index, least)
    own = _timed(data, index, USEARCH_DEFAULT)
    return {**result, **own, "least": least, "least one": fewest["one"], "least recall": fewest["recall"]}


def _timed(data: Data, index: Index, expansion: int) -> dict[str, float]:
    """Searches a second one at a time on one core and all at once on all, best of some rounds, and their recall."""
    index.expansion_search = expansion
    one, batch = [], []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        found = [index.search(query, K, threads=1).keys.tolist() for query in data.queries]
        one.append(len(data.queries) / (time.perf_counter() - started))
        started = time.perf_counter()
        index.search(data.queries, K, threads=0)
        batch.append(len(data.queries) / (time.perf_counter() - started))
    return {"one": max(one), "batch": max(batch), "recall": recall(found, data.expected)}


def hnswlib(data: Data, wanted: float) -> dict[str, float] | None:
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

    def at(expansion: int) -> list[list[int]]:
        graph.set_ef(expansion)
        return graph.knn_query(data.queries, K, num_threads=1)[0].tolist()

    expansion = _least(data, wanted, at)
    graph.set_ef(expansion)
    one = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        found = [graph.knn_query(query, K, num_threads=1)[0][0].tolist() for query in data.queries]
        one.append(len(data.queries) / (time.perf_counter() - started))
    return {"add": add, "one": max(one), "recall": recall(found, data.expected), "expansion": expansion}
