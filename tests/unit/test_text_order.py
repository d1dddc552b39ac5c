"""The order of many texts is that of `sorted`, and Python compares none of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared import text_order
from shared.labels import LabelFrame, Symbols
from shared.text_order import SORTED_AT_ONCE, ascending

CHARACTERS = "\0\x01ab~\x7f\x80é߿ࠀ\ud7ff\ud800\udfff\ue000\uffff\U00010000😀\U0010ffff"
"""The first and last characters of each length in UTF-8, and halves of surrogate pairs."""
PREFIXES = ["", "\0", "a" * 7, "a" * 8, "a\0" * 9, "é" * 40]

texts = st.one_of(st.text(CHARACTERS, max_size=12), st.text("\0a", max_size=12), st.text(max_size=4))
"""Those of two characters often differ behind their first eight bytes only, or are the beginning of another one."""


class Text(str):
    """A text that Python may not compare."""

    def __lt__(self, other: object) -> bool:
        raise AssertionError("compared by Python")


def by_sorting(some: Sequence[str]) -> list[int]:
    return sorted(range(len(some)), key=some.__getitem__)


def by_kernel(some: Sequence[str]) -> list[int]:
    """The order of few texts, found as that of many and with a few encoded at a time."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(text_order, "SORTED_AT_ONCE", 0)
        patched.setattr(text_order, "ENCODED_AT_ONCE", 3)
        return ascending(some).tolist()


@settings(deadline=None)  # the first call may compile the kernel
@given(st.sampled_from(PREFIXES), st.lists(texts, min_size=1, max_size=70))
def test_the_order_is_that_of_sorted(prefix: str, some: list[str]) -> None:
    some = [prefix + text for text in some]
    assert by_kernel(some) == by_sorting(some)


@pytest.mark.parametrize(
    "some",
    [
        pytest.param(["a\0", "a", "a\0\0", "", "a"], id="zero bytes and nothing"),
        pytest.param(["a" * 8 + "\0", "a" * 8, "a" * 9, "a" * 7], id="a difference behind the first eight bytes"),
        pytest.param(["b", "b" * 100, "b" * 99 + "a", "b"], id="one is the prefix of all"),
        pytest.param(["", "", ""], id="all empty"),
        pytest.param(["x"] * 100, id="all equal"),
        pytest.param(["\uffff", "\U00010000", "\ud800", "\ue000"], id="not the order of UTF-16"),
        pytest.param([], id="none"),
    ],
)
def test_special_texts_come_in_the_order_of_sorted(some: list[str]) -> None:
    assert by_kernel(some) == by_sorting(some)


@pytest.mark.parametrize("count", [SORTED_AT_ONCE, SORTED_AT_ONCE + 1, 3 * SORTED_AT_ONCE + 5])
@pytest.mark.parametrize("prefix", PREFIXES)
def test_the_order_of_many_is_that_of_sorted_and_equal_texts_stay_in_theirs(count: int, prefix: str) -> None:
    rng = np.random.default_rng(count)
    lengths = rng.integers(0, 6, count)
    some = [prefix + "".join(rng.choice(list(CHARACTERS), length)) for length in lengths]
    assert len(set(some)) < count
    assert ascending(some).tolist() == by_sorting(some)


def test_python_compares_no_label_values_of_many_series() -> None:
    values = [f"{i * 7919 % 5003:05}" for i in range(SORTED_AT_ONCE + 1)]
    symbols = Symbols()
    frame = LabelFrame(symbols, len(values), {"i": np.array([symbols.code(Text(v)) for v in values], dtype=np.int32)})
    assert frame.sort_order().tolist() == by_sorting(values)
