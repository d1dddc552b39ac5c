"""Seeded vectors, queries and their true neighbours."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from proto import vector_pb2

CLUSTERS = 1000
QUERIES = 500
K = 10
WRITE_BATCH = 1000
CONNECTIONS = 8  # of single searches at once


@dataclass(slots=True)
class Data:
    """`vectors` float32[n, d] and `queries` float32[q, d] of unit length; `expected`: the K nearest rows."""

    name: str
    vectors: np.ndarray
    queries: np.ndarray
    expected: list[set[int]]


def clustered(count: int, dimension: int, seed: int) -> np.ndarray:
    """float32[count, dimension] around centres that every seed shares."""
    centres = np.random.default_rng(0).standard_normal((CLUSTERS, dimension)).astype(np.float32)
    random = np.random.default_rng(seed)
    noise = random.standard_normal((count, dimension), dtype=np.float32)
    vectors = centres[random.integers(0, CLUSTERS, count)] + 0.7 * noise
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def gaussian(count: int, dimension: int, seed: int) -> np.ndarray:
    """float32[count, dimension] without structure, the hardest case for a graph."""
    vectors = np.random.default_rng((9, seed)).standard_normal((count, dimension), dtype=np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def make(count: int, dimension: int, *, structured: bool = True) -> Data:
    draw = clustered if structured else gaussian
    vectors, queries = draw(count, dimension, 1), draw(QUERIES, dimension, 2)
    expected = [set(np.argpartition(-(vectors @ query), K)[:K].tolist()) for query in queries]
    return Data(f"{count:,} × {dimension}, {'clustered' if structured else 'Gaussian'}", vectors, queries, expected)


def recall(found: list[list[int]], expected: list[set[int]]) -> float:
    return float(np.mean([len(set(a) & b) / K for a, b in zip(found, expected, strict=True)]))


def write_bodies(vectors: np.ndarray, first: int = 0) -> Iterator[bytes]:
    """Binary write requests of ids `first` and on."""
    for start in range(0, len(vectors), WRITE_BATCH):
        request = vector_pb2.WriteRequest()
        for row, vector in enumerate(vectors[start : start + WRITE_BATCH].tolist(), first + start):
            request.upsert_vectors.add(id=f"{row}").attributes["vector"].vector_value.values.extend(vector)
        yield request.SerializeToString()


def search_body(vector: np.ndarray) -> bytes:
    return b'{"k":10,"includeFields":[],"vector":' + _numbers(vector) + b"}"


def batch_body(vectors: np.ndarray) -> bytes:
    return b'{"k":10,"includeFields":[],"vectors":[' + b",".join(map(_numbers, vectors)) + b"]}"


def _numbers(vector: np.ndarray) -> bytes:
    return b"[" + ",".join(f"{x:.8g}" for x in vector.tolist()).encode() + b"]"
