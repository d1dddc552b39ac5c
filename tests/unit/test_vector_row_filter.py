"""Filters as bits: the flags that they were made from, and which rows they and the dead ones leave."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from worker.vectors.row_filter import Allowed, Bits

FLAGS = st.lists(st.booleans(), max_size=40)


def flags(values: list[bool]) -> NDArray[np.bool_]:
    return np.array(values, dtype=np.bool_)


@given(FLAGS, st.data())
def test_bits_are_the_flags_that_they_were_made_from(values: list[bool], data: st.DataObject) -> None:
    bits = Bits.of(flags(values))
    assert (bits.size, bits.count) == (len(values), sum(values))
    begin, end = sorted(data.draw(st.tuples(*[st.integers(0, len(values))] * 2)))
    assert bits.mask(begin, end).tolist() == values[begin:end]
    assert bits.mask(begin, end).dtype == np.bool_
    assert bits.count_of_first(end) == sum(values[:end])


@given(FLAGS, FLAGS, FLAGS)
def test_bits_are_extended_by_more_flags(first: list[bool], second: list[bool], third: list[bool]) -> None:
    head = Bits.of(flags(first))
    longer = head.extended(flags(second)).extended(flags(third))
    expected = first + second + third
    assert (longer.size, longer.count) == (len(expected), sum(expected))
    assert longer.mask(0, longer.size).tolist() == expected
    assert head.mask(0, head.size).tolist() == first
    assert longer.head is head


def test_nobody_changes_bits() -> None:
    bits = Bits.of(np.zeros(20, np.bool_))
    for own in (bits, bits.extended(np.ones(3, np.bool_))):
        with pytest.raises(ValueError, match="read-only"):
            own.packed[0] = 1


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=40), st.booleans(), st.booleans())
def test_allowed_rows_have_their_flag_and_live(rows: list[tuple[bool, bool]], has_bits: bool, has_dead: bool) -> None:
    bits = Bits.of(flags([flag for flag, _ in rows])) if has_bits else None
    # An array with room for more rows, as that of a table.
    alive = flags([lives for _, lives in rows] + [True] * 3) if has_dead else None
    allowed = Allowed(bits, alive)
    expected = [(flag or not has_bits) and (lives or not has_dead) for flag, lives in rows]
    mask = allowed.mask(1, len(rows))
    assert (mask is None) == allowed.is_all == (not has_bits and not has_dead)
    assert mask is None or mask.tolist() == expected[1:]
    every = np.arange(len(rows))
    assert allowed.of(every).tolist() == expected
    assert allowed.of(np.stack([every, every[::-1]])).tolist() == [expected, expected[::-1]]
    assert allowed.of(np.array([-1, 0])).tolist()[1] == expected[0]
