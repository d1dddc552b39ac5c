"""Compresses a long body into one gzip member, with several threads.

Compressing a response takes longer than producing it. Each piece is deflated on its own, up to a byte boundary, with
the bytes before it as the dictionary. The deflated pieces, one after another, form a single deflate stream (RFC 1951,
RFC 1952).
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain

from shared.ahead import mapped

GZIP_LEVEL = 1
"""Higher levels take several times the CPU time and save a tenth of the size."""
COMPRESSORS = 2
"""Threads that compress, for all responses together. zlib releases the interpreter lock."""
PIECES_AHEAD = 4
"""How many pieces of one response may be compressed ahead of sending, so that the threads have work."""

_WINDOW_BYTES = 32 << 10  # how far back deflate refers
_HEADER = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x04\xff"  # deflate, no name, no time, fastest, system unknown
_LAST_BLOCK = b"\x03\x00"  # an empty block, marked as the last one

_COMPRESSORS = ThreadPoolExecutor(COMPRESSORS, thread_name_prefix="gzip")


def compressed(pieces: Iterator[bytes | memoryview]) -> Iterator[bytes]:
    """The bytes of all pieces as one gzip member."""
    first = next(pieces, b"")
    second = next(pieces, None)
    if second is None:
        yield zlib.compress(first, GZIP_LEVEL, wbits=16 + zlib.MAX_WBITS)
        return
    yield _HEADER
    checksum = size = 0

    def with_windows() -> Iterator[tuple[bytes | memoryview, bytes]]:
        nonlocal checksum, size
        window = b""
        for piece in chain((first, second), pieces):
            yield piece, window
            checksum = zlib.crc32(piece, checksum)
            size += len(piece)
            window = (window + bytes(piece[-_WINDOW_BYTES:]))[-_WINDOW_BYTES:]

    yield from mapped(_COMPRESSORS, _deflated, with_windows(), PIECES_AHEAD)
    yield _LAST_BLOCK + struct.pack("<LL", checksum, size & 0xFFFFFFFF)


def _deflated(piece: bytes | memoryview, window: bytes) -> bytes:
    """A piece as deflate blocks that end at a byte boundary. `window`: the bytes before it, which it may refer to."""
    deflate = zlib.compressobj(GZIP_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS, zdict=window)
    return deflate.compress(piece) + deflate.flush(zlib.Z_SYNC_FLUSH)
