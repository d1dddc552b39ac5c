"""Label sets: single ones as sorted tuples and canonical bytes, many as columns of interned codes."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from threading import Lock

import msgspec
import numpy as np
from numpy.typing import NDArray

from shared.derived import Derived
from shared.protobuf_fields import read_varint, varint
from shared.text_order import ascending

METRIC_NAME = "__name__"

Labels = tuple[tuple[str, str], ...]
"""One label set: (name, value) pairs sorted by name, names unique, no empty values."""

Codes = NDArray[np.int32]
Rows = NDArray[np.int64]

ENTRY_BYTES = 100
"""The memory that a symbol table needs for a text, in addition to the text itself."""
COUNTED_AT_ONCE = 1 << 18
"""New texts of a query are counted in steps of this many bytes, with one array each."""


def encode(labels: Labels) -> bytes:
    """Canonical bytes of a label set. Their hash decides the shard of a series, and comparing them identifies it.

    They are the `labels` fields of a remote-write `TimeSeries` with minimal varints, sorted by the UTF-8 bytes of the
    name. So the bytes of a well-formed request are already canonical.
    """
    parts = []
    for name, value in sorted((n.encode(), v.encode()) for n, v in labels):
        label = b"\x0a" + varint(len(name)) + name + b"\x12" + varint(len(value)) + value
        parts.append(b"\x0a" + varint(len(label)) + label)
    return b"".join(parts)


def decode(data: bytes) -> Labels:
    """Inverse of `encode`; the bytes must be canonical."""
    pairs = []
    at = 0
    while at < len(data):
        _, at = read_varint(data, at + 1)
        length, at = read_varint(data, at + 1)
        name = data[at : at + length].decode()
        length, at = read_varint(data, at + length + 1)
        pairs.append((name, data[at : at + length].decode()))
        at += length
    return tuple(pairs)


class Symbols:
    """Interned strings: a string's code is an int32; code 0 is the empty string, which means "no such label".

    A table may extend a parent (the worker's table of the labels of all its series): texts of the parent keep the
    parent's codes, new texts of one evaluation get negative codes in this table, and nothing is added to the parent.
    The parent may grow meanwhile; `adopt` translates codes that the parent assigned after this table was created.
    """

    def __init__(self, parent: Symbols | None = None) -> None:
        self._parent = parent
        self._parent_size = len(parent) if parent is not None else 0
        self._texts: list[str] = [""]
        self._codes: dict[str, int] = {"": 0}
        self._lock = Lock()
        self._uncounted_bytes = 0  # of texts from `code_of_made`
        self._counted: list[NDArray[np.uint8]] = []

    def __len__(self) -> int:
        return len(self._texts)

    def knows(self, codes_end: int) -> bool:
        """Whether all of the parent's codes below `codes_end` are codes of this table too. `adopt` leaves those
        unchanged."""
        return self._parent is None or codes_end <= self._parent_size

    def code(self, text: str) -> int:
        """The code of `text`; a new text gets a new code."""
        code = self.find(text)
        if code is not None:
            return code
        with self._lock:
            code = self._codes.get(text)
            if code is None:
                code = len(self._texts) if self._parent is None else -len(self._texts)
                self._texts.append(text)
                self._codes[text] = code
            return code

    def code_of_made(self, text: str) -> int:
        """As `code`, for a text that a query created. A new text counts in the open memory account
        (`shared.process.array_memory`) as long as this table exists: an array of the same size, never written to,
        stands for it. Raises MemoryError past the account's limit. Not thread-safe."""
        size_before = len(self._texts)
        code = self.code(text)
        if len(self._texts) > size_before:
            self._uncounted_bytes += sys.getsizeof(text) + ENTRY_BYTES
            if self._uncounted_bytes >= COUNTED_AT_ONCE:
                self._counted.append(np.empty(self._uncounted_bytes, dtype=np.uint8))
                self._uncounted_bytes = 0
        return code

    def codes(self, texts: Sequence[str]) -> Codes:
        """The codes of n texts: int32[n]. New texts get new codes."""
        if self._parent is not None:
            return np.array([self.code(text) for text in texts], dtype=np.int32)
        out = []
        with self._lock:
            for text in texts:
                code = self._codes.setdefault(text, len(self._texts))
                if code == len(self._texts):
                    self._texts.append(text)
                out.append(code)
        return np.array(out, dtype=np.int32)

    def codes_of(self, data: NDArray[np.uint8], starts: Rows, ends: Rows, hashes: NDArray[np.uint64]) -> Codes:
        """int32[n]: the codes of the UTF-8 texts data[starts[i]:ends[i]], whose xxh64 hashes are hashes[i]."""
        raw = data.tobytes()
        return self.codes([raw[a:b].decode() for a, b in zip(starts.tolist(), ends.tolist(), strict=True)])

    def find(self, text: str) -> int | None:
        """The code of `text`, or None if it has none."""
        if self._parent is not None:
            code = self._parent.find(text)
            if code is not None and code < self._parent_size:
                return code
        return self._codes.get(text)

    def text(self, code: int) -> str:
        if code < 0:
            return self._texts[-code]
        return self._parent.text(code) if self._parent is not None else self._texts[code]

    def texts(self, codes: Codes) -> list[str]:
        """The strings of `codes` int32[n], in order."""
        local_texts = self._texts
        if self._parent is None:
            return [local_texts[c] for c in codes.tolist()]
        if len(codes) and codes.min() >= 0:
            return self._parent.texts(codes)
        parent_texts = iter(self._parent.texts(codes[codes >= 0]))
        return [next(parent_texts) if c >= 0 else local_texts[-c] for c in codes.tolist()]

    def encoded(self, codes: Codes) -> list[bytes]:
        """The strings of `codes` int32[n] as UTF-8, in order."""
        return [text.encode() for text in self.texts(codes)]

    def adopt(self, codes: Codes) -> Codes:
        """Translate current codes of the parent into codes of this table: int32[n] → int32[n]."""
        if self._parent is None:
            return codes
        newer = np.flatnonzero(codes >= self._parent_size)
        if len(newer):
            codes = codes.copy()
            unique, inverse = np.unique(codes[newer], return_inverse=True)
            codes[newer] = np.array([self.code(text) for text in self._parent.texts(unique)], dtype=np.int32)[inverse]
        return codes


FEW_ROWS = 64
"""Up to this number of rows, a dictionary is faster than sorting in numpy. Most dashboard queries have no more
results."""


def _few_row_ids(columns: Sequence[Codes]) -> tuple[Rows, Rows]:
    """`row_ids` for few rows."""
    numbers: dict[tuple[int, ...], int] = {}
    ids: list[int] = []
    first: list[int] = []
    for row, key in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
        number = numbers.setdefault(key, len(numbers))
        ids.append(number)
        if number == len(first):
            first.append(row)
    return np.array(ids, dtype=np.int64), np.array(first, dtype=np.int64)


def distinct(codes: Codes) -> tuple[Codes, Rows]:
    """(`used`: the distinct codes; `local`: int64[n], each code's position in `used`)."""
    if len(codes) > FEW_ROWS:
        return np.unique(codes, return_inverse=True)
    places: dict[int, int] = {}
    local = [places.setdefault(code, len(places)) for code in codes.tolist()]
    return np.array(list(places), dtype=np.int32), np.array(local, dtype=np.int64)


def row_ids(columns: Sequence[Codes], size: int) -> tuple[Rows, Rows]:
    """Number the distinct rows of a table given by columns.

    Returns (`ids`: int64[size], the number of each row; `first`: int64[groups], one row that has each number).
    """
    if not columns or size < 2:
        return np.zeros(size, dtype=np.int64), np.zeros(min(size, 1), dtype=np.int64)
    if size <= FEW_ROWS:
        return _few_row_ids(columns)
    key = columns[0].astype(np.int64)
    for column in columns[1:]:
        _, key = np.unique(key, return_inverse=True)
        values, inverse = np.unique(column, return_inverse=True)
        key = key * len(values) + inverse
    _, first, ids = np.unique(key, return_index=True, return_inverse=True)
    return ids.astype(np.int64), first.astype(np.int64)


def in_order(ids: Rows, first: Rows) -> tuple[Rows, Rows]:
    """Renumber the result of `row_ids` so that groups are in the order of their first row."""
    by_appearance = np.argsort(first, kind="stable")
    rank = np.empty(len(first), dtype=np.int64)
    rank[by_appearance] = np.arange(len(first), dtype=np.int64)
    return rank[ids], first[by_appearance]


def _bytes_of(array: Rows | Codes) -> int:
    return array.nbytes


@dataclass(slots=True)
class LabelFrame:
    """The label sets of `size` series as columns: label name → int32[size] of codes, 0 where a series lacks the label.

    Frames are immutable: operations return new frames and share columns, and a column is never written to. `derived`: a
    cache of values derived from the label sets, for a frame that is used again and again. They must not depend on the
    codes.
    """

    symbols: Symbols
    size: int
    columns: dict[str, Codes] = field(default_factory=dict)
    derived: Derived | None = field(default=None, compare=False, repr=False)

    @classmethod
    def of(cls, label_sets: Iterable[Mapping[str, str] | Labels], symbols: Symbols) -> LabelFrame:
        rows = [dict(labels) for labels in label_sets]
        names = sorted({name for row in rows for name in row})
        columns = {name: np.array([symbols.code(row.get(name, "")) for row in rows], dtype=np.int32) for name in names}
        return cls(symbols, len(rows), columns)

    def column(self, name: str) -> Codes:
        """Codes of one label, int32[size]; zeros if no series has it."""
        column = self.columns.get(name)
        return column if column is not None else np.zeros(self.size, dtype=np.int32)

    def labels(self, row: int) -> Labels:
        pairs = [(name, int(column[row])) for name, column in self.columns.items()]
        return tuple(sorted((name, self.symbols.text(code)) for name, code in pairs if code))

    def take(self, rows: Rows | NDArray[np.bool_] | slice) -> LabelFrame:
        columns = {name: column[rows] for name, column in self.columns.items()}
        if isinstance(rows, slice):
            size = len(range(*rows.indices(self.size)))
        else:
            size = int(np.count_nonzero(rows)) if rows.dtype == np.bool_ else len(rows)
        return LabelFrame(self.symbols, size, columns)

    def with_column(self, name: str, codes: Codes) -> LabelFrame:
        return LabelFrame(self.symbols, self.size, {**self.columns, name: codes})

    def without(self, names: Iterable[str]) -> LabelFrame:
        dropped = set(names)
        return LabelFrame(self.symbols, self.size, {n: c for n, c in self.columns.items() if n not in dropped})

    def only(self, names: Iterable[str]) -> LabelFrame:
        kept = set(names)
        return LabelFrame(self.symbols, self.size, {n: c for n, c in self.columns.items() if n in kept})

    def group(self, names: Sequence[str], *, without: bool = False) -> tuple[Rows, LabelFrame]:
        """Group the series `by` (or `without`) label names.

        Returns (`ids`: int64[size], the group of each series; the groups' label sets). Groups are in the order of their
        first series, since an order by codes would depend on the order in which shards reply.
        """
        grouping = self.without(names) if without else self.only(names)
        ids, first = in_order(*row_ids(list(grouping.columns.values()), self.size))
        return ids, grouping.take(first)

    def unique(self) -> tuple[Rows, Rows]:
        """`row_ids` over all labels: series with equal label sets get equal ids."""
        if self.derived is not None and self.size <= FEW_ROWS:  # else the ids depend on the codes
            return self.derived.get("unique", self._unique, lambda arrays: sum(map(_bytes_of, arrays)))
        return self._unique()

    def _unique(self) -> tuple[Rows, Rows]:
        return row_ids(list(self.columns.values()), self.size)

    def sort_order(self) -> Rows:
        """Rows in ascending order of their label sets, compared as Prometheus does: pair by pair, names then values."""
        if self.size < 2:
            return np.arange(self.size)
        if self.derived is not None:
            return self.derived.get("sort order", self._sort_order, _bytes_of)
        return self._sort_order()

    def in_order(self) -> tuple[Rows, LabelFrame]:
        """(`sort_order`, the frame with its rows in this order)."""
        order = self.sort_order()
        ordered = self.take(order)
        if self.derived is not None:
            ordered.derived = self.derived.part("in order", share=4)
        return order, ordered

    def bytes_with_derived(self) -> int:
        """An upper bound of the bytes of the columns and of the derived values."""
        return sum(map(_bytes_of, self.columns.values())) + (0 if self.derived is None else self.derived.bytes_max)

    def _sort_order(self) -> Rows:
        if self.size <= FEW_ROWS:
            label_sets = self._label_sets()
            return np.array(sorted(range(self.size), key=label_sets.__getitem__), dtype=np.int64)
        keys: list[Rows] = []
        follows = np.zeros(self.size, dtype=np.bool_)  # whether the series has a label of a later name
        names = sorted(self.columns, reverse=True)
        for column, (texts, local) in zip((self.columns[name] for name in names), self.values(names), strict=True):
            rank = np.empty(len(texts), dtype=np.int64)
            rank[ascending(texts)] = np.arange(len(texts))
            # A series without this label sorts after those with it if it has a label of a later name, otherwise
            # before them.
            keys.append(np.where(column != 0, rank[local], np.where(follows, len(texts), -1)))
            follows |= column != 0
        return np.lexsort(keys) if keys else np.arange(self.size)

    def _label_sets(self) -> list[Labels]:
        """The label set of each series, for a few series."""
        names = sorted(self.columns)
        columns = [
            [(name, texts[place]) if texts[place] else None for place in local.tolist()]
            for name, (texts, local) in zip(names, self.values(names), strict=True)
        ]
        return [tuple([pair for pair in row if pair]) for row in zip(*columns, strict=True)] or [()] * self.size

    def values(self, names: Sequence[str]) -> list[tuple[list[str], Rows]]:
        """For each of these labels, which the frame must have: (its distinct values; int64[size], the position of each
        series' value among them)."""
        if self.size == 1:
            only = np.zeros(1, dtype=np.int64)
            codes = np.array([self.columns[name][0] for name in names], dtype=np.int32)
            return [([text], only) for text in self.symbols.texts(codes)]
        by_name = [distinct(self.columns[name]) for name in names]
        # The texts of all labels in one call, which is faster if the table holds texts as bytes.
        texts = iter(self.symbols.texts(np.concatenate([used for used, _ in by_name]))) if by_name else iter(())
        return [(list(islice(texts, len(used))), local) for used, local in by_name]

    def to_frames(self) -> list[bytes | memoryview]:
        """Two wire frames: msgpack [size, names, texts], and int32[names, size] of positions in the texts."""
        if self.derived is not None:
            return self.derived.get("frames", self._to_frames, lambda frames: sum(map(len, frames)))
        return self._to_frames()

    def _to_frames(self) -> list[bytes | memoryview]:
        names = list(self.columns)
        stacked = np.array([self.columns[n] for n in names], dtype=np.int32).reshape(len(names), self.size)
        used, local = distinct(stacked.reshape(-1))
        head = msgspec.msgpack.encode((self.size, names, self.symbols.texts(used)))
        return [head, local.astype(np.int32).tobytes()]

    @classmethod
    def from_frames(cls, frames: Sequence[bytes | bytearray | memoryview], symbols: Symbols) -> LabelFrame:
        size, names, texts = msgspec.msgpack.decode(frames[0])
        codes = symbols.codes(texts)
        local = np.frombuffer(frames[1], dtype=np.int32).reshape(len(names), size)
        stacked = codes[local] if len(codes) else local
        return cls(symbols, size, dict(zip(names, stacked, strict=True)))


def concat(frames: Sequence[LabelFrame]) -> LabelFrame:
    """The rows of all frames, which share one symbol table, in order."""
    assert frames and all(frame.symbols is frames[0].symbols for frame in frames)
    names = dict.fromkeys(name for frame in frames for name in frame.columns)
    columns = {name: np.concatenate([frame.column(name) for frame in frames]) for name in names}
    return LabelFrame(frames[0].symbols, sum(frame.size for frame in frames), columns)
