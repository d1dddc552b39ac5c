"""The records of one batch, from the request to the shards and to the followers of their keys.

Many records are columns over the bytes of the request; for a few records, lists are faster.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from shared.hashing import hash64
from shared.log import blocks as log_blocks
from shared.log.blocks import KEY, KEY_LENGTH, VALUE
from shared.log.headers import joined, split
from shared.wire import Frame

FEW_RECORDS = 16
"""Up to this number, hashing records one by one and cutting them by shard is faster than with arrays."""


class BatchRecords(Protocol):
    """Records in the order of the batch. `size_bytes`: total length of their keys and values."""

    size_bytes: int

    def __len__(self) -> int: ...

    def key(self, at: int) -> bytes: ...

    def value(self, at: int) -> bytes:
        """One that has headers is a HeadedValue."""
        ...

    def blocks(self, shards: int) -> dict[int, Frame]:
        """Shard → its records as a block (shared.log.blocks)."""
        ...

    def among(self, hashes: NDArray[np.uint64]) -> Iterable[int]:
        """Positions that include every record whose key's hash is in `hashes`, which ascend. Call `blocks` first."""
        ...

    def having(self, prefix: bytes) -> Sequence[int]:
        """Positions of the records whose key begins with `prefix`."""
        ...


def columns_of(keys: list[bytes], values: list[bytes], headers: Mapping[int, bytes] = {}) -> BatchRecords:
    """The records of a batch; `headers`: position → the headers of a record that has some (shared.log.headers)."""
    if headers:
        values = [joined(headers[at], value) if at in headers else value for at, value in enumerate(values)]
    if len(keys) <= FEW_RECORDS:
        return FewRecords(keys, values, frozenset(headers))
    lengths = np.array([list(map(len, keys)), list(map(len, values))], np.int64)
    ends = np.cumsum(lengths.ravel())
    starts = (ends - lengths.ravel()).reshape(2, -1)
    columns = [starts[0], lengths[0], starts[1], lengths[1]]
    if headers:
        columns.append(np.isin(np.arange(len(keys)), list(headers)).astype(np.int64))
    table = np.stack(columns, axis=1)
    return ManyRecords(np.frombuffer(b"".join((*keys, *values)), np.uint8), np.ascontiguousarray(table))


class FewRecords:
    """Records as two lists; the values at the positions in `headed` begin with headers."""

    __slots__ = ("_headed", "_keys", "_values", "size_bytes")

    def __init__(self, keys: list[bytes], values: list[bytes], headed: Set[int] = frozenset()) -> None:
        self._keys = keys
        self._values = values
        self._headed = headed
        self.size_bytes = sum(map(len, keys)) + sum(map(len, values))

    def __len__(self) -> int:
        return len(self._keys)

    def key(self, at: int) -> bytes:
        return self._keys[at]

    def value(self, at: int) -> bytes:
        return split(self._values[at]) if at in self._headed else self._values[at]

    def blocks(self, shards: int) -> dict[int, Frame]:
        if len(self._keys) == 1:
            (key,), (value,) = self._keys, self._values
            digest = hash64(key)
            return {digest % shards: log_blocks.block_of_one(digest, 0, key, value, 0 in self._headed)}
        rows: dict[int, list[tuple[int, int, bytes, bytes]]] = {}
        for at, key in enumerate(self._keys):
            digest = hash64(key)
            rows.setdefault(digest % shards, []).append((digest, at, key, self._values[at]))
        return {shard: log_blocks.block_of(shard_rows, self._headed) for shard, shard_rows in rows.items()}

    def among(self, hashes: NDArray[np.uint64]) -> Iterable[int]:
        return range(len(self._keys))

    def having(self, prefix: bytes) -> Sequence[int]:
        return [at for at, key in enumerate(self._keys) if key.startswith(prefix)]


class ManyRecords:
    """Records as a table of places in `data`, as described in shared.log.blocks. `longest_key`, `longest_value`:
    lengths in bytes."""

    __slots__ = ("_data", "_hashes", "_table", "longest_key", "longest_value", "size_bytes")

    def __init__(self, data: NDArray[np.uint8], table: NDArray[np.int64]) -> None:
        self._data = data
        self._table = table
        self._hashes: NDArray[np.uint64] | None = None
        self.size_bytes, self.longest_key, self.longest_value = log_blocks.sizes(table)

    def __len__(self) -> int:
        return len(self._table)

    def key(self, at: int) -> bytes:
        start, length = self._table[at, KEY : KEY_LENGTH + 1].tolist()
        return self._data[start : start + length].tobytes()

    def value(self, at: int) -> bytes:
        start, length, *headed = self._table[at, VALUE:].tolist()
        stored = self._data[start : start + length].tobytes()
        return split(stored) if headed and headed[0] else stored

    def blocks(self, shards: int) -> dict[int, Frame]:
        blocks, self._hashes = log_blocks.cut(self._data, self._table, shards, self.size_bytes)
        return dict(blocks)

    def among(self, hashes: NDArray[np.uint64]) -> Iterable[int]:
        assert self._hashes is not None, "blocks() comes first"
        places = np.searchsorted(hashes, self._hashes)
        places[places == len(hashes)] = 0
        positions: list[int] = np.flatnonzero(hashes[places] == self._hashes).tolist()
        return positions

    def having(self, prefix: bytes) -> Sequence[int]:
        positions: list[int] = np.flatnonzero(log_blocks.with_prefix(self._data, self._table, prefix)).tolist()
        return positions
