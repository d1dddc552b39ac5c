"""Bodies of several gzip members."""

from __future__ import annotations

import gzip
import random
import time

import pytest

from coordinator.parsing.gzip_members import MEMBERS_MAX, GzipMembers

EMPTY = gzip.compress(b"", mtime=0)
AT_ONCE_S = 10.0
"""Where what is left of the body was copied for each member, this took minutes."""


def whole(body: bytes, most: int) -> bytes:
    members, pieces = GzipMembers(body), list[bytes]()
    while piece := members.read(most):
        assert len(piece) <= most
        pieces.append(piece)
    return b"".join(pieces)


@pytest.mark.parametrize("most", [10, 1000, 1 << 20])
def test_the_members_of_a_body_are_read_one_after_another(most: int) -> None:
    draw = random.Random(1)
    parts = [draw.randbytes(draw.choice((0, 1, 3000))) for _ in range(50)]
    assert whole(b"".join(map(gzip.compress, parts)), most) == b"".join(parts)


def test_many_empty_members_take_no_longer_than_they_are_many() -> None:
    began = time.thread_time()
    assert whole((MEMBERS_MAX - 1) * EMPTY + gzip.compress(b"a"), 1 << 20) == b"a"
    assert time.thread_time() - began < AT_ONCE_S


def test_too_many_members_are_refused() -> None:
    began = time.thread_time()
    with pytest.raises(ValueError, match=f"gzip of more than {MEMBERS_MAX} members"):
        whole(30 * MEMBERS_MAX * EMPTY, 1 << 20)
    assert time.thread_time() - began < AT_ONCE_S


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "ends within its gzip data"),
        (EMPTY[:-1], "ends within its gzip data"),
        (EMPTY + EMPTY[:5], "ends within its gzip data"),
        (EMPTY + b"text", "is not gzip"),
        (b"text", "is not gzip"),
    ],
)
def test_what_is_no_gzip_is_refused(body: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        whole(body, 100)
