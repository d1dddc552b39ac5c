"""The libraries that search vectors in process, on the benchmark's data.

usearch is measured with its default number of candidates, and with the fewest that reach the service's recall; hnswlib,
whose default is too small, only with the fewest.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from usearch.index import Index

from loadtest.bench.vector_data import Data, K, recall

USEARCH_DEFAULT = 64
"""Candidates usearch keeps when not told."""
LADDER = (10, 12, 16, 20, 24, 32, 40, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048)


def _least(data: Data, wanted: float, search: Callable[[int], list[list[int]]]) -> tuple[int, float]:
    """(the least expansion whose answers have the recall wanted, else the greatest; its recall)."""
    for rung in LADDER:
        found = recall(search(rung), data.expected)
        if found >= wanted:
            break
    return rung, found


class Usearch:
    """usearch with the data: `add` seconds to index it on all cores; `recall` with the candidates it keeps of itself,
    `least` candidates with which its recall is `wanted`, and that recall."""

    def __init__(self, data: Data, wanted: float) -> None:
        self._data = data
        self._index = Index(ndim=data.vectors.shape[1], metric="ip", dtype="f32")
        started = time.perf_counter()
        self._index.add(np.arange(len(data.vectors)), data.vectors, threads=0)
        self.add = time.perf_counter() - started
        self.least, self.least_recall = _least(data, wanted, self._search)
        self.recall = recall(self._search(USEARCH_DEFAULT), data.expected)

    def _set_expansion(self, expansion: int) -> None:
        self._index.expansion_search = expansion  # type: ignore[misc]  # usearch's stubs know no setter

    def _search(self, expansion: int) -> list[list[int]]:
        self._set_expansion(expansion)
        return self._index.search(self._data.queries, K, threads=1).keys.tolist()

    def one(self, expansion: int = USEARCH_DEFAULT) -> float:
        """Searches a second, one at a time on one core."""
        self._set_expansion(expansion)
        started = time.perf_counter()
        for query in self._data.queries:
            self._index.search(query, K, threads=1).keys.tolist()
        return len(self._data.queries) / (time.perf_counter() - started)

    def batch(self) -> float:
        """Searches a second, all at once on all cores."""
        self._set_expansion(USEARCH_DEFAULT)
        started = time.perf_counter()
        self._index.search(self._data.queries, K, threads=0)
        return len(self._data.queries) / (time.perf_counter() - started)


class Hnswlib:
    """hnswlib with the data, where it is installed (else ImportError): `add` and `recall` as of `Usearch`, with as few
    candidates as have the recall `wanted`."""

    def __init__(self, data: Data, wanted: float) -> None:
        import hnswlib

        self._data = data
        self._graph = hnswlib.Index("ip", data.vectors.shape[1])
        self._graph.init_index(len(data.vectors), ef_construction=128, M=16)
        started = time.perf_counter()
        self._graph.add_items(data.vectors, np.arange(len(data.vectors)))
        self.add = time.perf_counter() - started
        expansion, self.recall = _least(data, wanted, self._search)
        self._graph.set_ef(expansion)

    def _search(self, expansion: int) -> list[list[int]]:
        self._graph.set_ef(expansion)
        return self._graph.knn_query(self._data.queries, K, num_threads=1)[0].tolist()

    def one(self) -> float:
        """Searches a second, one at a time on one core."""
        started = time.perf_counter()
        for query in self._data.queries:
            self._graph.knn_query(query, K, num_threads=1)[0][0].tolist()
        return len(self._data.queries) / (time.perf_counter() - started)


class _Rival:
    """A library with the vectors float32[n, d] of unit length in it; `build_s` seconds to index them on all cores."""

    build_s: float

    def least(self, queries: np.ndarray, expected: list[set[int]], wanted: float) -> tuple[int, float]:
        """(the fewest candidates with this recall, else the most tried; the recall)."""
        for rung in LADDER:
            self.keep(rung)
            found = recall([self.one(query) for query in queries], expected)
            if found >= wanted:
                break
        return rung, found

    def rate(self, queries: np.ndarray, candidates: int) -> float:
        """Searches a second, one at a time on one core."""
        self.keep(candidates)
        started = time.perf_counter()
        for query in queries:
            self.one(query)
        return len(queries) / (time.perf_counter() - started)

    def keep(self, candidates: int) -> None:
        raise NotImplementedError

    def one(self, query: np.ndarray) -> list[int]:
        """The K nearest."""
        raise NotImplementedError


class LargeUsearch(_Rival):
    """usearch with the service's components (bfloat16) and connections."""

    def __init__(self, vectors: np.ndarray) -> None:
        self._index = Index(ndim=vectors.shape[1], metric="ip", dtype="bf16", connectivity=16, expansion_add=128)
        started = time.perf_counter()
        self._index.add(np.arange(len(vectors)), vectors, threads=0)
        self.build_s = time.perf_counter() - started

    def keep(self, candidates: int) -> None:
        self._index.expansion_search = candidates  # type: ignore[misc]  # usearch's stubs know no setter

    def one(self, query: np.ndarray) -> list[int]:
        return self._index.search(query, K, threads=1).keys.tolist()


class LargeHnswlib(_Rival):
    """hnswlib. Raises ImportError."""

    def __init__(self, vectors: np.ndarray) -> None:
        import hnswlib

        self._graph = hnswlib.Index("ip", vectors.shape[1])
        self._graph.init_index(len(vectors), ef_construction=128, M=16)
        started = time.perf_counter()
        self._graph.add_items(vectors, np.arange(len(vectors)))
        self.build_s = time.perf_counter() - started

    def keep(self, candidates: int) -> None:
        self._graph.set_ef(candidates)

    def one(self, query: np.ndarray) -> list[int]:
        return self._graph.knn_query(query, K, num_threads=1)[0][0].tolist()


class LargeFaiss(_Rival):
    """faiss's HNSW. Raises ImportError."""

    def __init__(self, vectors: np.ndarray) -> None:
        import faiss

        self._faiss = faiss
        self._index = faiss.IndexHNSWFlat(vectors.shape[1], 16, faiss.METRIC_INNER_PRODUCT)
        self._index.hnsw.efConstruction = 128
        started = time.perf_counter()
        self._index.add(vectors)
        self.build_s = time.perf_counter() - started
        faiss.omp_set_num_threads(1)

    def keep(self, candidates: int) -> None:
        self._index.hnsw.efSearch = candidates

    def one(self, query: np.ndarray) -> list[int]:
        return self._index.search(query[None], K)[1][0].tolist()


RIVALS: dict[str, Callable[[np.ndarray], _Rival]] = {
    "usearch": LargeUsearch,
    "hnswlib": LargeHnswlib,
    "faiss": LargeFaiss,
}
"""Of `vector_large`, by name."""
