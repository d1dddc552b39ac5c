"""The text of an import, which may be compressed, read piece by piece with a bound."""

from __future__ import annotations

import io
from collections.abc import Iterator

import numpy as np

from coordinator.parsing.gzip_members import GzipMembers
from shared.errors import BadData, TooLarge

READ_BYTES = 1 << 20
LINES_MAX = 50_000
"""Lines of one slice, which take 64 bytes each in a table, however short they are."""


class TextSource(io.RawIOBase):
    """A body as it was sent, decompressed as far as it is read. `is_gzip`: it is one or more gzip members (RFC 1952).
    Reading raises TooLarge past `bytes_max`, and BadData for what is no gzip."""

    def __init__(self, body: bytes, *, is_gzip: bool, bytes_max: int) -> None:
        self._body = memoryview(body)
        self._members = GzipMembers(body) if is_gzip else None
        self._bytes_max = bytes_max
        self._at = 0
        self._read = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        piece = self._piece(len(buffer))
        buffer[: len(piece)] = piece
        self._read += len(piece)
        if self._read > self._bytes_max:
            raise TooLarge(f"the body decompresses to more than {self._bytes_max} bytes, the limit")
        return len(piece)

    def _piece(self, most: int) -> bytes | memoryview:
        """At least one byte, and `most` at most; nothing at the end."""
        if self._members is None:
            piece = self._body[self._at : self._at + most]
            self._at += len(piece)
            return piece
        try:
            return self._members.read(most)
        except ValueError as error:
            raise BadData(f"the body {error}") from error


def line_slices(source: io.RawIOBase, slice_bytes: int, line_bytes_max: int) -> Iterator[tuple[int, bytes]]:
    """(The number of its first line, counted from 1, some whole lines) of each slice of a text: of about `slice_bytes`
    and LINES_MAX lines at most, or one longer line. Raises TooLarge for a line of more than `line_bytes_max`."""
    incomplete_line, line = b"", 1
    reader = io.BufferedReader(source, READ_BYTES)
    while True:
        more = reader.read(max(slice_bytes - len(incomplete_line), READ_BYTES))
        text = incomplete_line + more
        end = text.rfind(b"\n") + 1 if more else len(text)
        if end:
            for lines in few_lines(text[:end], LINES_MAX):
                yield line, lines
                line += lines.count(b"\n")
        elif len(text) > line_bytes_max:
            raise TooLarge(f"line {line} has more than {line_bytes_max} bytes, the limit")
        incomplete_line = text[end:]
        if not more:
            return


def few_lines(text: bytes, lines_max: int) -> Iterator[bytes]:
    """The text, cut behind every `lines_max` lines."""
    begin = 0
    if text.count(b"\n") > lines_max:
        ends = np.flatnonzero(np.frombuffer(text, dtype=np.uint8) == ord("\n"))[lines_max - 1 :: lines_max] + 1
        for end in ends.tolist():
            yield text[begin:end]
            begin = end
    if begin < len(text):
        yield text[begin:]
