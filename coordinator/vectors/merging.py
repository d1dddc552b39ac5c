"""The workers' answers to a search merged into one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from coordinator.vectors.ranked_ids import QueryIds, RankedIds
from shared import wire
from shared.kernels import kernel, types
from shared.messages.vector_text import WordStatistics
from shared.messages.vectors import Floats, SearchReply, unpack_blobs, unpack_chosen
from shared.wire import Reply

_FLOATS = types.Array(types.float32, 1, "C", readonly=True)
_COUNTS = types.Array(types.int32, 2, "C", readonly=True)
_INTS = types.int64[::1]
_FLAGS = types.boolean[::1]


@dataclass(slots=True)
class Hits:
    """The results of one query, best first, as columns.

    `near` float32[n] are the similarities as workers give them (higher is nearer), `attributes` packed ones, empty
    where none were asked for, `vectors` float32[n, dimension] or None.
    """

    near: Floats
    ids: Sequence[bytes]
    attributes: list[bytes]
    vectors: Floats | None

    def __iter__(self) -> Iterator[tuple[np.float32, bytes, bytes, Floats | None]]:
        """(similarity, id, attributes, vector) of each."""
        attributes = self.attributes or [b""] * len(self.ids)
        vectors = self.vectors if self.vectors is not None else [None] * len(self.ids)
        return zip(self.near, self.ids, attributes, vectors, strict=True)

    @property
    def contents_bytes(self) -> int:
        """Of the attributes and vectors, as the workers send them. JSON has half of the bytes of a vector at least."""
        return sum(map(len, self.attributes)) + (self.vectors.nbytes // 2 if self.vectors is not None else 0)

    def take(self, order: NDArray[np.integer]) -> Hits:
        """Those at these places, in their order."""
        places = order.tolist()
        return Hits(
            self.near[order],
            [self.ids[place] for place in places],
            [self.attributes[place] for place in places] if self.attributes else [],
            self.vectors[order] if self.vectors is not None else None,
        )

    def without(self, name: bytes) -> Hits:
        """Those of other ids."""
        if name not in self.ids:
            return self
        return self.take(np.array([place for place, own in enumerate(self.ids) if own != name], dtype=np.int64))

    def part(self, start: int, end: int) -> Hits:
        return Hits(
            self.near[start:end],
            self.ids[start:end],
            self.attributes[start:end],
            self.vectors[start:end] if self.vectors is not None else None,
        )


NO_HITS = Hits(np.zeros(0, dtype=np.float32), [], [], None)


@dataclass(slots=True)
class MergedHits:
    """What all workers found: the hits of each query (and, last, of the text). `unknown` are fields of the filter that
    no worker knows, `vectors` how many vectors they have. `nearest`: unknown field → one with a similar name.
    `words`: the workers' statistics of the text query's words, if they were asked for."""

    lists: list[Hits]
    unknown: set[str] = field(default_factory=set)
    vectors: int = 0
    nearest: dict[str, str] = field(default_factory=dict)
    words: list[WordStatistics] = field(default_factory=list)


@kernel(types.boolean(_FLOATS, _COUNTS, types.int64, _INTS, _INTS, _FLAGS))
def _merge(near, counts, k, order, ends, tied):  # type: ignore[no-untyped-def]
    """Lists of several workers, each in descending order, into one a query.

    `near` has one worker's lists after the other's, `counts` int32[workers, queries] long. The places of the `k`
    greatest of each query go to `order`, query after query, and where they end there to `ends`; `tied` tells where
    equal values of different workers were met, and what is returned whether anywhere.
    """
    workers, queries = counts.shape
    at = np.zeros(workers, dtype=np.int64)
    for w in range(1, workers):
        at[w] = at[w - 1] + counts[w - 1].sum()
    end = np.empty(workers, dtype=np.int64)
    out = 0
    any_tied = False
    for q in range(queries):
        for w in range(workers):
            end[w] = at[w] + counts[w, q]
        for _ in range(k):
            best = -1
            for w in range(workers):
                if at[w] == end[w]:
                    continue
                if best < 0 or near[at[w]] > near[at[best]]:
                    best = w
                elif near[at[w]] == near[at[best]]:
                    tied[q] = any_tied = True
            if best < 0:
                break
            order[out] = at[best]
            at[best] += 1
            out += 1
        ends[q] = out
        at[:] = end
    return any_tied


def merge(replies: Sequence[Reply], lists: int, dimension: int, k: int) -> MergedHits:
    """One answer of all workers' answers: by similarity, equal ones by id."""
    unknown: list[set[str]] = []
    nearest: dict[str, str] = {}
    words: list[WordStatistics] = []
    vectors = 0
    for reply in replies:
        body = wire.unpack(reply.body, SearchReply)
        vectors += body.vectors
        if body.vectors:
            unknown.append(set(body.unknown))
            nearest.update(body.nearest)
        if body.words is not None:
            words.append(body.words)
    merged = MergedHits([NO_HITS] * lists, set.intersection(*unknown) if unknown else set(), vectors, nearest, words)
    # Only a worker without any vector sends none of a column that others send.
    with_hits = [reply.frames for reply in replies if len(reply.frames[1])]
    if with_hits:
        counts, *columns = [b"".join(frames) for frames in zip(*with_hits, strict=True)]
        merged.lists = _merged(np.frombuffer(counts, dtype=np.int32).reshape(len(with_hits), -1), columns, dimension, k)
    return merged


def _merged(counts: NDArray[np.int32], columns: Sequence[bytes], dimension: int, k: int) -> list[Hits]:
    """The best of each query. `columns` are those of `SearchReply` after the counts, one worker's after the other's."""
    all_near, ids, id_lengths, attributes, attribute_lengths, vectors = columns
    values = np.frombuffer(all_near, dtype=np.float32)
    order = np.empty(len(values), dtype=np.int64)
    bounds = np.zeros(counts.shape[1] + 1, dtype=np.int64)
    tied = np.zeros(counts.shape[1], dtype=np.bool_)
    any_tied = _merge(values, counts, k, order, bounds[1:], tied)
    spans = list(pairwise(bounds.tolist()))
    if any_tied:
        names = unpack_blobs(ids, id_lengths)
        for query in np.flatnonzero(tied).tolist():
            start, end = spans[query]
            order[start:end] = _by_id(values, names, counts, query)[: end - start]
    order = order[: bounds[-1]]
    if not attribute_lengths and not vectors:
        near = values[order]
        ranked = RankedIds(near, ids, id_lengths, order, bounds)
        return [Hits(near[start:end], QueryIds(ranked, query), [], None) for query, (start, end) in enumerate(spans)]
    best = Hits(
        values[order],
        unpack_chosen(ids, id_lengths, order),
        unpack_chosen(attributes, attribute_lengths, order) if attribute_lengths else [],
        np.frombuffer(vectors, dtype=np.float32).reshape(-1, dimension)[order] if vectors else None,
    )
    return [best] if len(spans) == 1 else [best.part(start, end) for start, end in spans]


def _by_id(near: Floats, names: Sequence[bytes], counts: NDArray[np.int32], query: int) -> list[int]:
    """The places of all of one query's hits by similarity, equal ones by id."""
    flat = np.cumsum(counts.ravel())
    places: list[int] = []
    for worker in range(len(counts)):
        end = int(flat[worker * counts.shape[1] + query])
        places += range(end - int(counts[worker, query]), end)
    return sorted(places, key=lambda place: (-near[place], names[place]))
