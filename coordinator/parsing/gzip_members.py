"""Decompresses gzip bodies, which may have several members, piece by piece."""

from __future__ import annotations

import zlib

MEMBERS_MAX = 100_000
"""An empty member has 20 bytes and takes 4 µs, so millions of them would take many seconds for no content."""
SLICE_BYTES = 64 << 10
"""Bytes that are read at a time. The rest of a slice is copied when a member ends within it."""


class GzipMembers:
    """Reads the content of a body that consists of one or more gzip members (RFC 1952)."""

    def __init__(self, body: bytes) -> None:
        self._body = memoryview(body)
        self._at = 0
        self._pending = b""
        self._members = 1
        self._inflate = zlib.decompressobj(16 + zlib.MAX_WBITS)

    def read(self, bytes_max: int) -> bytes:
        """The next bytes: at least one and at most `bytes_max`, or b"" at the end. Raises ValueError, whose text is a
        predicate of the body, if it is not gzip, ends too early, or has more than MEMBERS_MAX members."""
        while True:
            if self._inflate.eof:
                self._at -= len(self._inflate.unused_data)
                if self._at == len(self._body):
                    return b""
                self._begin()
            data = self._pending or self._body[self._at : self._at + SLICE_BYTES]
            if not self._pending:
                self._at += len(data)
            try:
                piece = self._inflate.decompress(data, bytes_max)
            except zlib.error as error:
                raise ValueError(f"is not gzip: {error}") from error
            self._pending = b"" if self._inflate.eof else self._inflate.unconsumed_tail
            if piece:
                return piece
            if not data and not self._inflate.eof:
                raise ValueError("ends within its gzip data")

    def _begin(self) -> None:
        self._members += 1
        if self._members > MEMBERS_MAX:
            raise ValueError(f"is gzip of more than {MEMBERS_MAX} members, the limit")
        self._inflate = zlib.decompressobj(16 + zlib.MAX_WBITS)
