"""The workers' answers to a search merged into one, and a hybrid's two rankings fused."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numba import njit
from numpy.typing import NDArray

from shared import wire
from shared.messages.vectors import Floats, FoundBody, unpack_blobs
from shared.wire import Reply

FUSION_CONSTANT = 60
"""Reciprocal rank fusion: score = Σ 1 / (60 + rank) (Cormack, Clarke and Büttcher, SIGIR 2009)."""


@dataclass(slots=True)
class Hits:
    """The results of one query, best first, as columns.

    `near` float32[n] are the similarities as workers give them (higher is nearer), `attributes` packed ones, empty
    where none were asked for, `vectors` float32[n, dimension] or None.
    """

    near: Floats
    ids: list[bytes]
    attributes: list[bytes]
    vectors: Floats | None

    def __iter__(self) -> Iterator[tuple[np.float32, bytes, bytes, Floats | None]]:
        """(similarity, id, attributes, vector) of each."""
        attributes = self.attributes or [b""] * len(self.ids)
        vectors = self.vectors if self.vectors is not None else [None] * len(self.ids)
        return zip(self.near, self.ids, attributes, vectors, strict=True)

    def take(self, order: NDArray[np.integer]) -> Hits:
        """Those at these places, in their order."""
        places = order.tolist()
        return Hits(
            self.near[order],
            [self.ids[place] for place in places],
            [self.attributes[place] for place in places] if self.attributes else [],
            self.vectors[order] if self.vectors is not None else None,
        )

    def part(self, start: int, end: int) -> Hits:
        return Hits(
            self.near[start:end],
            self.ids[start:end],
            self.attributes[start:end],
            self.vectors[start:end] if self.vectors is not None else None,
        )


NO_HITS = Hits(np.zeros(0, dtype=np.float32), [], [], None)


@dataclass(slots=True)
class Found:
    """What workers found: the hits of each query (and, last, of the text). `unknown` are fields of the filter that no
    worker knows, `vectors` how many vectors they have."""

    lists: list[Hits]
    unknown: set[str] = field(default_factory=set)
    vectors: int = 0


@njit(cache=True, nogil=True)
def _merge(near, counts, k, order, merged, tied):  # type: ignore[no-untyped-def]
    """Lists of several workers, each in descending order, into one a query.

    `near` has one worker's lists after the other's, `counts` int32[workers, queries] long. The places of the `k`
    greatest of each query go to `order`, query after query, and their number to `merged`; `tied` tells where equal
    values of different workers were met.
    """
    workers, queries = counts.shape
    at = np.zeros(workers, dtype=np.int64)
    for w in range(1, workers):
        at[w] = at[w - 1] + counts[w - 1].sum()
    end = np.empty(workers, dtype=np.int64)
    out = 0
    for q in range(queries):
        for w in range(workers):
            end[w] = at[w] + counts[w, q]
        merged[q] = 0
        while merged[q] < k:
            best = -1
            for w in range(workers):
                if at[w] == end[w]:
                    continue
                if best < 0 or near[at[w]] > near[at[best]]:
                    best = w
                elif near[at[w]] == near[at[best]]:
                    tied[q] = True
            if best < 0:
                break
            order[out] = at[best]
            at[best] += 1
            merged[q] += 1
            out += 1
        at[:] = end
    return out


def merge(replies: Sequence[Reply], lists: int, dimension: int, k: int) -> Found:
    """One answer of all workers' answers: by similarity, equal ones by id."""
    unknown: list[set[str]] = []
    vectors = 0
    for reply in replies:
        body = wire.unpack(reply.body, FoundBody)
        vectors += body.vectors
        if body.vectors:
            unknown.append(set(body.unknown))
    found = Found([NO_HITS] * lists, set.intersection(*unknown) if unknown else set(), vectors)
    # Only a worker without any vector sends none of a column that others send.
    there = [reply for reply in replies if len(reply.frames[1])]
    if there:
        counts = np.array([np.frombuffer(reply.frames[0], dtype=np.int32) for reply in there])
        found.lists = _merged(_joined(there, dimension), counts, k)
    return found


def _joined(replies: Sequence[Reply], dimension: int) -> Hits:
    """All hits, one worker's after the other's."""
    columns = [b"".join(frames) for frames in zip(*(reply.frames for reply in replies), strict=True)]
    _, near, ids, id_lengths, attributes, attribute_lengths, vectors = columns
    return Hits(
        np.frombuffer(near, dtype=np.float32),
        unpack_blobs(ids, id_lengths),
        unpack_blobs(attributes, attribute_lengths) if attribute_lengths else [],
        np.frombuffer(vectors, dtype=np.float32).reshape(-1, dimension) if vectors else None,
    )


def _merged(hits: Hits, counts: NDArray[np.int32], k: int) -> list[Hits]:
    queries = counts.shape[1]
    order = np.empty(len(hits.near), dtype=np.int64)
    merged = np.empty(queries, dtype=np.int64)
    tied = np.zeros(queries, dtype=np.bool_)
    total = _merge(hits.near, counts, k, order, merged, tied)
    order = order[:total]
    ends = np.cumsum(merged).tolist()
    starts = [0, *ends[:-1]]
    for place in np.flatnonzero(tied).tolist():
        order[starts[place] : ends[place]] = _by_id(hits, counts, place)[: ends[place] - starts[place]]
    best = hits.take(order)
    return [best] if queries == 1 else list(map(best.part, starts, ends))


def _by_id(hits: Hits, counts: NDArray[np.int32], query: int) -> list[int]:
    """The places of all of one query's hits by similarity, equal ones by id."""
    flat = np.cumsum(counts.ravel())
    places: list[int] = []
    for worker in range(len(counts)):
        end = int(flat[worker * counts.shape[1] + query])
        places += range(end - int(counts[worker, query]), end)
    return sorted(places, key=lambda place: (-hits.near[place], hits.ids[place]))


def fuse(rankings: Sequence[Hits], k: int) -> Hits:
    """Reciprocal rank fusion of rankings; a hit's similarity becomes its fused score."""
    scores: dict[bytes, float] = {}
    places: dict[bytes, int] = {}
    first = 0
    for ranking in rankings:
        for place, name in enumerate(ranking.ids):
            scores[name] = scores.get(name, 0.0) + 1 / (FUSION_CONSTANT + place + 1)
            places[name] = first + place
        first += len(ranking.ids)
    best = sorted(scores, key=lambda name: (-scores[name], name))[:k]
    tables = [ranking.vectors for ranking in rankings if ranking.vectors is not None and len(ranking.ids)]
    every = Hits(
        np.concatenate([ranking.near for ranking in rankings]),
        [name for ranking in rankings for name in ranking.ids],
        [packed for ranking in rankings for packed in ranking.attributes],
        np.concatenate(tables) if tables else None,
    )
    fused = every.take(np.array([places[name] for name in best], dtype=np.int64))
    fused.near = np.array([scores[name] for name in best], dtype=np.float32)
    return fused


def compile_kernels() -> None:
    """Compile, or load from the cache on disk, so that no request waits for it."""
    near = np.frombuffer(b"", dtype=np.float32)  # read-only, as what comes over the wire: to numba another type
    _merged(Hits(near, [], [], None), np.zeros((1, 1), np.int32), 1)
