"""Pieces of a long answer."""

from __future__ import annotations

import weakref
from collections.abc import Iterator

import numpy as np
import pytest

from coordinator.streaming import gathered


def test_chunks_are_gathered_into_pieces_of_a_size() -> None:
    assert list(gathered(iter([b"ab", b"cd", b"e", b"fghij", b"k"]), 4)) == [b"abcd", b"efghij", b"k"]
    assert list(gathered(iter([b"ab", b"cd"]), 4)) == [b"abcd"]
    assert list(gathered(iter([]), 4)) == []


@pytest.mark.parametrize("size", [1, 15])
def test_a_piece_that_was_given_away_is_not_held(size: int) -> None:
    held: list[weakref.ref[np.ndarray]] = []

    def chunk(_: int) -> memoryview:
        array = np.zeros(10, np.uint8)
        held.append(weakref.ref(array))
        return memoryview(array)

    pieces: Iterator[object] = gathered(map(chunk, range(9)), size)
    next(pieces)
    assert [one() for one in held] == [None] * len(held)
    assert held
