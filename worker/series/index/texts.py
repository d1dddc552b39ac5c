"""A worker process's symbol table: all label names and values of its shards, as bytes in one arena.

A text takes about 40 bytes in addition to its own, whereas a Python string in a dictionary and a list takes 200: for a
million series that each have a value of their own, that is a sixth of all memory. Texts become strings only on demand.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from shared.hashing import hash64
from shared.labels import Codes, Rows, Symbols
from shared.xxh64 import hash_slices
from worker.series.index.bytemap import ByteMap

FOUND_MAX = 4096
"""Texts that are cached with their codes when they are looked up. A query looks up its matchers in each shard."""
FOUND_BYTES_MAX = 256
"""Longer texts are not cached."""


class TextTable(Symbols):
    """Symbols without a parent. Safe to use from many threads."""

    def __init__(self) -> None:
        super().__init__()
        self._map = ByteMap()
        self._map_lock = Lock()
        self._found: dict[str, int] = {}
        self.codes([""])

    def __len__(self) -> int:
        return len(self._map)

    @property
    def size_bytes(self) -> int:
        """Memory of the texts and of their lookup table."""
        return self._map.size_bytes

    def code(self, text: str) -> int:
        return int(self.codes([text])[0])

    def codes(self, texts: Sequence[str]) -> Codes:
        raw = [text.encode() for text in texts]
        data = np.frombuffer(b"".join(raw), dtype=np.uint8)
        offsets = np.concatenate(([0], np.cumsum([len(item) for item in raw], dtype=np.int64)))
        return self.codes_of(data, offsets[:-1], offsets[1:], hash_slices(data, offsets))

    def codes_of(self, data: NDArray[np.uint8], starts: Rows, ends: Rows, hashes: NDArray[np.uint64]) -> Codes:
        with self._map_lock:
            return self._map.resolve(data, starts, ends, hashes).astype(np.int32)

    def find(self, text: str) -> int | None:
        cached_code = self._found.get(text)  # a text that has a code keeps it
        if cached_code is not None:
            return cached_code
        raw = text.encode(errors="surrogatepass")  # a text that is not UTF-8 is not in the table
        with self._map_lock:
            number = self._map.find(np.frombuffer(raw, dtype=np.uint8), np.uint64(hash64(raw)))
            if number >= 0 and len(raw) <= FOUND_BYTES_MAX:
                if len(self._found) >= FOUND_MAX:
                    self._found.clear()
                self._found[text] = number
        return number if number >= 0 else None

    def text(self, code: int) -> str:
        return self._map.bytes_of(np.array([code]))[0].decode()

    def texts(self, codes: Codes) -> list[str]:
        return [text.decode() for text in self.encoded(codes)]

    def sizes(self, codes: Codes) -> NDArray[np.int64]:
        """int64[n]: the sizes in bytes of the texts of `codes` int32[n], as UTF-8."""
        return self._map.sizes_of(codes.astype(np.int64))

    def hashes(self, codes: Codes) -> NDArray[np.uint64]:
        """uint64[n]: the xxh64 of the texts of `codes` int32[n], as UTF-8."""
        return self._map.hashes_of(codes.astype(np.int64))

    def arrays(self) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
        """(offsets int64[], texts uint8[]). The text of code c is texts[offsets[c]:offsets[c + 1]], for the codes given
        so far."""
        return self._map.arrays()

    def encoded(self, codes: Codes) -> list[bytes]:
        raw, bounds = self._map.bytes_of(codes.astype(np.int64))
        return [raw[first:last] for first, last in pairwise(bounds.tolist())]
