"""Bodies of answers in the making: when they are compressed, and what is sent whole."""

from __future__ import annotations

import gzip
from collections.abc import Iterator

import pytest

from coordinator.http.streaming import GZIP_BYTES_MIN, PIECE_BYTES, Body


def chunks(size_bytes: int) -> Iterator[bytes]:
    for start in range(0, size_bytes, 1000):
        yield b"x" * min(1000, size_bytes - start)


def whole(body: Body) -> bytes:
    pieces = [body.first]
    while (piece := body.next()) is not None:
        pieces.append(piece)
    return b"".join(pieces)


@pytest.mark.parametrize("accepted", [False, True])
@pytest.mark.parametrize("size_bytes", [0, 1, GZIP_BYTES_MIN - 1, GZIP_BYTES_MIN, 3 * PIECE_BYTES])
def test_a_body_is_compressed_when_that_is_accepted_and_it_is_large(accepted: bool, size_bytes: int) -> None:
    body = Body(chunks(size_bytes), gzip=accepted)
    assert (body.encoding == "gzip") is (accepted and size_bytes >= GZIP_BYTES_MIN)
    content = whole(body)
    assert (gzip.decompress(content) if body.encoding else content) == b"x" * size_bytes


def test_a_body_below_the_size_of_a_piece_is_sent_whole() -> None:
    assert Body(chunks(PIECE_BYTES - 1), gzip=False).whole
    assert not Body(chunks(PIECE_BYTES), gzip=False).whole
