"""The labels of series as JSON text or in another form. Each pair of a name and a value is written once, and copied to
the series that have it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from shared.kernels import inlined, types
from shared.labels import LabelFrame
from shared.promql.model import Int

Bytes = NDArray[np.uint8]

POOL = types.Array(types.uint8, 1, "C", readonly=True)
OFFSETS = types.Array(types.int64, 1, "C", readonly=True)
PIECES = types.Array(types.int32, 2, "C", readonly=True)

_METRIC = np.frombuffer(b',{"metric":{', dtype=np.uint8)
_COMMA = np.uint8(ord(","))


@dataclass(frozen=True, slots=True)
class LabelTexts:
    """The pairs of every series, such as `"name":"value"`, as references into one pool of bytes.

    `pool`: uint8[m]; piece i is pool[offsets[i]:offsets[i+1]]. `pieces`: int32[names, series], -1 where a series lacks
    the label, names in ascending order. `row_bytes`: int64[series], an upper bound of the length of each series'
    labels.
    """

    pool: Bytes
    offsets: Int
    pieces: NDArray[np.int32]
    row_bytes: Int

    @classmethod
    def of(cls, texts: Sequence[bytes], pieces: NDArray[np.int32]) -> LabelTexts:
        """`texts`: the text of each distinct pair; `pieces`: int32[names, series], indices of `texts`, or -1."""
        lengths = np.array([*map(len, texts), 0], dtype=np.int64)  # piece -1 selects the last length
        offsets = np.zeros(len(lengths), dtype=np.int64)
        np.cumsum(lengths[:-1], out=offsets[1:])
        row_bytes = (lengths + 1)[pieces].sum(axis=0, dtype=np.int64)
        return cls(np.frombuffer(b"".join(texts), dtype=np.uint8), offsets, pieces, row_bytes)

    @property
    def size_bytes(self) -> int:
        return self.pool.nbytes + self.offsets.nbytes + self.pieces.nbytes + self.row_bytes.nbytes


def label_texts(labels: LabelFrame) -> LabelTexts:
    """The pairs `"name":"value"` of every series."""
    if labels.derived is not None:
        return labels.derived.get("texts", lambda: label_pairs(labels, _json_pair), lambda texts: texts.size_bytes)
    return label_pairs(labels, _json_pair)


def _json_pair(name: str) -> Callable[[str], bytes]:
    start = orjson.dumps(name) + b":"
    return lambda value: start + orjson.dumps(value)


def label_pairs(
    labels: LabelFrame, pair_with: Callable[[str], Callable[[str], bytes]], names: Sequence[str] | None = None
) -> LabelTexts:
    """The pairs of every series. `pair_with(name)` returns the function that writes the pair of a value. `names`: the
    label names to write, ascending; by default all that any series has."""
    names = sorted(labels.columns) if names is None else names
    texts: list[bytes] = []
    pieces = np.full((len(names), labels.size), -1, dtype=np.int32)
    rows = [row for row, name in enumerate(names) if name in labels.columns]
    for row, (values, value_indices) in zip(rows, labels.values([names[row] for row in rows]), strict=True):
        pair = pair_with(names[row])
        # The value of a series without the label is the empty text.
        piece_ids = [len(texts) + number if value else -1 for number, value in enumerate(values)]
        texts.extend([pair(value) for value in values])
        pieces[row] = np.array(piece_ids, dtype=np.int32)[value_indices]
    return LabelTexts.of(texts, pieces)


@inlined
def copy(out: Any, at: Any, source: Any, start: Any, end: Any) -> Any:
    """Copy source[start:end] to out[at:]. Returns the position after it."""
    # The indices are unsigned, because signed ones would be checked for negative values at every byte.
    begin, to = np.uint64(start), np.uint64(at)
    for i in range(np.uint64(end - start)):
        out[to + i] = source[begin + i]
    return at + (end - start)


@inlined
def write_labels(out: Any, at: Any, pool: Any, pool_offsets: Any, pieces: Any, series: Any) -> Any:
    """Write the beginning of a series, up to the brace that closes its labels. Returns the position after it."""
    at = copy(out, at, _METRIC, 0, len(_METRIC))
    begun = False
    for name in range(pieces.shape[0]):
        piece = pieces[name, series]
        if piece >= 0:
            if begun:
                out[at] = _COMMA
                at += 1
            begun = True
            at = copy(out, at, pool, pool_offsets[piece], pool_offsets[piece + 1])
    return at
