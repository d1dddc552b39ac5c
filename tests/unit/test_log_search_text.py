"""Patterns and conditions that values of the log are searched for."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shared.errors import BadData, DeadlineExceeded
from shared.log.headers import joined, split
from shared.log_search import condition as conditions
from shared.log_search import filter as filters
from shared.log_search import pattern as patterns
from shared.log_search.condition import condition, satisfies
from shared.log_search.filter import Filter, compiled
from shared.log_search.pattern import Pattern
from shared.messages.log import Search
from shared.promql import regex


def nothing() -> None:
    """A check that lets everything go on."""


def found(text: str, *values: bytes) -> list[int]:
    return np.flatnonzero(Pattern(text).matching(values, nothing)).tolist()


# Patterns

PATTERNS = st.sampled_from(
    (
        "a",
        "ab",
        "a.*b",
        "^a",
        "b$",
        "^$",
        "^",
        "$",
        "a*",
        r"\ba\b",
        r"\Aa",
        r"b\z",
        "(?i)A",
        "[^b]a",
        r"\s",
        ".",
        "a|bb",
    )
) | st.sampled_from(("(?-m)^a$", "(?s)a.b", "b+$", r"[^\w]", "é", r"\x{e9}", r"\pL", "x?", "(a|b$)"))
VALUES = st.lists(
    st.text(alphabet="ab \né", max_size=5).map(str.encode) | st.sampled_from([b"", b"\n", b"\xff", b"a\xff\nb"]),
    max_size=8,
)


@given(PATTERNS, VALUES)
@example("^$", [b"", b"b", b""])
@example("$", [b"a"])
@example("a.*b", [b"xa", b"bx"])
def test_values_are_found_together_as_they_are_found_alone(text: str, values: list[bytes]) -> None:
    together = found(text, *values)
    assert together == [at for at, value in enumerate(values) if found(text, value)]


@given(PATTERNS, VALUES)
def test_a_value_is_found_if_one_of_its_lines_is(text: str, values: list[bytes]) -> None:
    if patterns._WHOLE_TEXT.search(text):
        return
    options: dict[str, bool] = {"never_nl": True, "never_capture": True}
    line_pattern = regex.compiled(text, **options)
    by_line = [
        at
        for at, value in enumerate(values)
        if any(line_pattern.search(line) is not None for line in value.split(b"\n"))
    ]
    assert found(text, *values) == by_line


def test_what_looks_at_the_whole_value_does_not_look_at_its_lines() -> None:
    values = [b"a\nb", b"b\na", b"ab"]
    assert found("^a", *values) == [0, 1, 2]
    assert found(r"\Aa", *values) == [0, 2]
    assert found(r"b\z", *values) == [0, 2]
    assert found("(?-m)^a$", b"a", b"a\nb") == [0]


def test_nothing_matches_across_a_line_break() -> None:
    assert found(r"a\nb", b"a\nb") == []
    assert found("(?s)a.b", b"a\nb") == []
    assert found(r"a\s*b", b"a\nb", b"a  b") == [1]


@pytest.mark.parametrize("text", ["error", "(?i)error", r"err\w+", r"\Aan error"])
def test_many_values_are_searched_in_pieces_and_checked_between_them(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patterns, "JOINED_BYTES_MAX", 100)
    values = [b"an error" if i % 7 == 3 else b"fine %d" % i for i in range(200)]
    checks: list[int] = []
    is_found = Pattern(text).matching(values, lambda: checks.append(1))
    assert np.flatnonzero(is_found).tolist() == [i for i in range(200) if i % 7 == 3]
    assert len(checks) >= 14

    def late() -> None:
        raise DeadlineExceeded("late")

    with pytest.raises(DeadlineExceeded):
        Pattern(text).matching(values, late)


def test_a_value_that_is_too_long_for_the_pattern_is_not_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    pattern = Pattern("err[o0]r")
    monkeypatch.setattr(patterns, "VALUE_WORK_MAX", 20 * pattern._instructions)
    assert pattern.value_bytes_max == 20
    values = [b"error", b"error" + b"x" * 16, b"error" + b"x" * 15, b"fine", b"error" * 5, b"error"]
    assert np.flatnonzero(pattern.matching(values, nothing)).tolist() == [0, 2, 5]
    left_out: set[str] = set()
    for search, expected in ((Search(grep="err[o0]r"), [0, 2, 5]), (Search(grep_not="err[o0]r"), [3])):
        assert np.flatnonzero(Filter(search).matching(values, nothing, left_out)).tolist() == expected
    assert sorted(left_out) == [
        f"values above 20 bytes are not examined by this {name!r}: use a simpler one" for name in ("grep", "grep_not")
    ]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "the pattern is empty"),
        ("a\nb", "the pattern has a line break"),
        ("(", "missing"),
        ("x{1,500}", "the pattern weighs 500, at most 100 is allowed"),
        ("a" * 10_000, "the pattern weighs 125"),
        ("(?<=a)b", "invalid"),
        (r"a\\\C", "the pattern has"),
    ],
)
def test_a_pattern_that_is_refused_says_why(text: str, reason: str) -> None:
    with pytest.raises(BadData, match=rf"(?s)parameter 'grep' is .*, which is refused: .*{reason}"):
        compiled(Search(grep=text))


# Conditions

EVENT = {
    "level": "error",
    "n": 3,
    "ratio": 0.5,
    "ok": True,
    "nothing": None,
    "a": {"b": 7, "x y": 1, "": 2},
    "list": [10, {"k": "v"}],
    "größe": 1,
}


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ('$.level = "error"', True),
        ("$.level == 'error'", True),
        ('$.level != "error"', False),
        ('$.level > "debug"', True),
        ('$.level = "err\\u006fr"', True),
        ("$.n = 3", True),
        ("$.n = 3.0", True),
        ("$.n >= 3 and $.n <= 3", True),
        ("$.n < 3 or $.n > 3", False),
        ("$.n > -1e3", True),
        ("$.ratio=0.5", True),
        ('$.n = "3"', False),
        ('$.n != "3"', True),
        ('$.n < "3"', False),
        ("$.level > 3", False),
        ("$.ok = true", True),
        ("$.ok = 1", False),
        ("$.ok >= 1", False),
        ("$.ok >= true", True),
        ("$.n < true", False),
        ("$.nothing = null", True),
        ("$.nothing <= null", True),
        ("$.missing = null", False),
        ("$.missing != null", True),
        ("$.missing < 5", False),
        ("not $.missing < 5", True),
        ("exists $.nothing", True),
        ("exists($.missing)", False),
        ("not exists ($.missing)", True),
        ("$.a.b >= 3", True),
        ("$['a'][\"x y\"] = 1", True),
        ('$.a[""] = 2', True),
        ("$.a.b.c = 7", False),
        ("$.level.x = 7", False),
        ("$.list[0] = 10", True),
        ('$.list[-1].k = "v"', True),
        ("exists $.list[2]", False),
        ("exists $.a[0]", False),
        ("$.größe = 1", True),
        ("exists $", True),
        ("$.a = 7", False),
        ("$.n = 1 and $.n = 2 or $.n = 3", True),
        ("$.n = 3 or $.n = 1 and $.n = 2", True),
        ("($.n = 3 or $.n = 1) and $.n = 2", False),
        ("NOT ($.n = 1 OR $.n = 2) AND exists $.n", True),
        ("not not $.n = 3", True),
    ],
)
def test_a_condition_holds_for_an_event(text: str, holds: bool) -> None:
    assert satisfies(json.dumps(EVENT).encode(), condition(text)) is holds


def test_a_condition_holds_for_a_value_with_headers() -> None:
    value = split(joined(b"headers", json.dumps(EVENT).encode()))
    assert type(value) is not bytes
    assert satisfies(value, condition("$.n = 3"))
    assert not satisfies(value, condition("$.n = 4"))


@pytest.mark.parametrize("value", [b"", b"plain text", b"{", b"NaN", b'"\xff"', b"[" * 5000 + b"]" * 5000])
def test_what_is_not_json_satisfies_nothing(value: bytes) -> None:
    assert not satisfies(value, condition("not exists $.x"))
    assert not satisfies(value, condition("exists $"))


def test_a_value_above_the_limit_is_left_out_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conditions, "VALUE_BYTES_MAX", 20)
    values = [b'{"n":1}', b'{"n":1,"x":"' + b"y" * 20 + b'"}', b'{"n":1}']
    left_out: set[str] = set()
    is_found = Filter(Search(where="$.n = 1")).matching(values, nothing, left_out)
    assert is_found.tolist() == [True, False, True]
    assert left_out == {"values above 20 bytes are not examined by 'where'"}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "its end at character 1; there must be a path"),
        ("level = 3", "'level' at character 1; there must be a path"),
        ("$.level", "its end at character 8; there must be one of = !="),
        ("$.level = error", "'error' at character 11; there must be a text in quotes"),
        ("$.n = 01", "'01' in the condition is neither a text nor a number"),
        ("$.n = 1 $.m = 2", r"'\$' at character 9; there must be and, or"),
        ("($.n = 1", "its end at character 9; there must be '\\)'"),
        ("exists($.n", "its end at character 11; there must be '\\)'"),
        ("$.n ~ 1", "'~ 1' at character 5 is not part of a condition"),
        ("$.n = 'x", "'x\" at character 7 is not part"),
        ('$.n = "\\x"', "neither a text nor a number"),
        ("$..n = 1", "is not part of a condition"),
        ("$.n = 1 and", "its end at character 12; there must be a path"),
        ("(" * 40 + "$.n = 1" + ")" * 40, "nested too deeply"),
        ("not " * 40 + "$.n = 1", "nested too deeply"),
        ("$.n = " + "1" * 5000, "5006 characters, at most 4096"),
    ],
)
def test_a_condition_that_is_refused_says_where(text: str, reason: str) -> None:
    with pytest.raises(BadData, match=rf"(?s)parameter 'where' is .*, which is refused: .*{reason}"):
        compiled(Search(where=text))


@given(st.text(alphabet="$.ab[]\"'()=<>! 01-andortxis\\\n", max_size=30))
def test_any_text_is_a_condition_or_refused(text: str) -> None:
    try:
        test = condition(text)
    except ValueError:
        return
    assert test({"a": 1}) in (True, False)


# Together


def test_a_search_finds_what_satisfies_all_its_parts() -> None:
    values = [json.dumps(event).encode() for event in ({"m": "a b", "n": 1}, {"m": "a", "n": 1}, {"m": "a b", "n": 2})]
    values.append(b"a b")

    def places(**search: Any) -> list[int]:
        return np.flatnonzero(Filter(Search(**search)).matching(values, nothing, set())).tolist()

    assert places(grep="a b") == [0, 2, 3]
    assert places(grep_not="a b") == [1]
    assert places(where="$.n = 1") == [0, 1]
    assert places(grep="a", grep_not='"a"', where="$.n = 1") == [0]
    assert places(grep="z", where="$.n = 1") == []
    assert Filter(Search(grep="a")).matching([], nothing, set()).tolist() == []


def test_conditions_are_checked_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filters, "CONDITIONS_AT_ONCE", 10)
    checks: list[int] = []
    is_found = Filter(Search(where="$ >= 30")).matching([b"%d" % i for i in range(35)], lambda: checks.append(1), set())
    assert np.flatnonzero(is_found).tolist() == [30, 31, 32, 33, 34]
    assert len(checks) == 4
