"""Upper and lower case of labels, as Go has them."""

from __future__ import annotations

import pytest

from coordinator.letter_case import lower, upper


@pytest.mark.parametrize(
    ("text", "expected"),
    [("job-a", "JOB-A"), ("Große", "GROßE"), ("ﬁx", "ﬁX"), ("ŉ", "ŉ"), ("ᾳ", "ᾼ"), ("ǆ", "Ǆ"), ("ſ", "S"), ("ΐ", "ΐ")],
)
def test_each_character_becomes_one_upper_character(text: str, expected: str) -> None:
    assert upper(text) == expected


@pytest.mark.parametrize(("text", "expected"), [("JOB-A", "job-a"), ("ΟΔΟΣ", "οδοσ"), ("İ", "i"), ("ẞ", "ß")])
def test_each_character_becomes_one_lower_character(text: str, expected: str) -> None:
    assert lower(text) == expected


def test_a_character_becomes_the_same_one_whatever_stands_beside_it() -> None:
    every = "".join(map(chr, range(0x20000)))  # all that have a case are among them
    for text in (every, every[::-1], "ΟΔΟΣ İSTANBUL ΟΔΟΣ"):
        assert upper(text) == "".join(map(upper, text))
        assert lower(text) == "".join(map(lower, text))
