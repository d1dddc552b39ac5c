"""Results that show ids and scores only: the columns in which workers send them, and their JSON.

A batch of searches is rendered by one call of a kernel, which makes no object for a result.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, overload

import numpy as np
import orjson
from numpy.typing import NDArray

from shared.kernels import kernel, types
from shared.messages.vectors import Floats, blob_bounds
from shared.wire import Frame
from shared.xxh64 import Bytes

Ints = NDArray[np.int64]

_INTS = types.Array(types.int64, 1, "C", readonly=True)
_OUT = types.uint8[::1]

_SCORE, _ID, _END = (
    np.frombuffer(text, np.uint8) for text in (b'{"score":', b',"vector":{"id":"', b'","attributes":{}}}')
)
_RESULT_BYTES = len(_SCORE) + len(_ID) + len(_END)
"""Of a result without its score and its id; the comma behind it is one of those between the scores."""


@kernel(types.int64(_OUT, types.int64, Bytes))
def _put(out, at, text):  # type: ignore[no-untyped-def]
    """Write `text` at `at`; returns where it ends."""
    for place in range(len(text)):
        out[at + place] = text[place]
    return at + len(text)


@kernel(types.boolean(Bytes, Bytes, _INTS, _INTS, _INTS, _OUT, types.int64[::1]))
def _render(scores, joined, starts, ends, bounds, out, out_ends):  # type: ignore[no-untyped-def]
    """Write the results of each query as a JSON array to `out`, one query after the other, and where each ends to
    `out_ends`. `scores` is a JSON array of all scores; the rest is as in `RankedIds`. False if an id has a character
    that JSON escapes; what is written is worth nothing then."""
    score_at, at = 1, 0
    for query in range(len(out_ends)):
        out[at] = 91  # [
        at += 1
        for place in range(bounds[query], bounds[query + 1]):
            if place > bounds[query]:
                out[at] = 44  # ,
                at += 1
            at = _put(out, at, _SCORE)
            while scores[score_at] != 44 and scores[score_at] != 93:
                out[at] = scores[score_at]
                at += 1
                score_at += 1
            score_at += 1
            at = _put(out, at, _ID)
            for byte_at in range(starts[place], ends[place]):
                byte = joined[byte_at]
                if byte < 32 or byte == 34 or byte == 92:
                    return False
                out[at] = byte
                at += 1
            at = _put(out, at, _END)
        out[at] = 93  # ]
        at += 1
        out_ends[query] = at
    return True


class RankedIds:
    """The results of several queries, one query after the other, best first. Result i has the similarity `near[i]`,
    float32[n], and the id `joined[starts[i]:ends[i]]`; those of query q are bounds[q] ≤ i < bounds[q + 1]."""

    __slots__ = ("_bounds", "_ends", "_joined", "_near", "_starts", "_texts")

    def __init__(self, near: Floats, joined: bytes, lengths: Frame, order: Ints, bounds: Ints) -> None:
        """`joined` and `lengths` are ids as `pack_blobs` packs them, `order` the places of the results' ids in them."""
        self._near, self._joined, self._bounds = near, joined, bounds
        self._starts, self._ends = blob_bounds(joined, lengths, order)
        self._texts: dict[str, list[str] | None] = {}

    def count(self, query: int) -> int:
        """How many results the query has."""
        return int(self._bounds[query + 1] - self._bounds[query])

    def ids(self, query: int) -> list[bytes]:
        """Those of one query."""
        own = slice(self._bounds[query], self._bounds[query + 1])
        spans = zip(self._starts[own].tolist(), self._ends[own].tolist(), strict=True)
        return [self._joined[start:end] for start, end in spans]

    def json(self, query: int, metric: str) -> str | None:
        """The results of one query as a JSON array, None if an id has to be escaped. `metric`: as in `shown_scores`.
        The first call renders those of all queries."""
        if metric not in self._texts:
            self._texts[metric] = self._rendered(shown_scores(self._near, metric))
        texts = self._texts[metric]
        return None if texts is None else texts[query]

    def _rendered(self, shown: Floats) -> list[str] | None:
        scores = scores_json(shown)
        id_bytes = int((self._ends - self._starts).sum())
        out = np.empty(_RESULT_BYTES * len(shown) + len(scores) + id_bytes + 2 * len(self._bounds), np.uint8)
        ends = np.empty(len(self._bounds) - 1, np.int64)
        joined = np.frombuffer(self._joined, np.uint8)
        if not _render(np.frombuffer(scores, np.uint8), joined, self._starts, self._ends, self._bounds, out, ends):
            return None
        text, stops = out.tobytes(), ends.tolist()
        return [text[start:stop].decode() for start, stop in zip([0, *stops], stops, strict=False)]


class QueryIds(Sequence[bytes]):
    """The ids of one query's results, equal to a list of the same ids. Objects are made of them when they are first
    asked for."""

    __slots__ = ("_ids", "_of", "_query")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, of: RankedIds, query: int) -> None:
        self._of, self._query = of, query
        self._ids: list[bytes] | None = None

    def json(self, metric: str) -> str | None:
        """See `RankedIds.json`."""
        return self._of.json(self._query, metric)

    def _all(self) -> list[bytes]:
        if self._ids is None:
            self._ids = self._of.ids(self._query)
        return self._ids

    def __len__(self) -> int:
        return self._of.count(self._query)

    @overload
    def __getitem__(self, place: int) -> bytes: ...

    @overload
    def __getitem__(self, place: slice) -> list[bytes]: ...

    def __getitem__(self, place: Any) -> Any:
        return self._all()[place]

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._all())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self._all() == list(other)

    def __repr__(self) -> str:
        return repr(self._all())


def shown_scores(near: Floats, metric: str) -> Floats:
    """The scores in the answer: the similarities; for l2 the distances."""
    return np.float32(0) - near if metric == "l2" else near


def scores_json(scores: Floats) -> bytes:
    """A JSON array. orjson writes a float32 of an array with as many digits as it needs, but a Python float with those
    of a double."""
    return orjson.dumps(scores, option=orjson.OPT_SERIALIZE_NUMPY)
