"""Bounds and deadlines of regular expressions."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import pytest
import re2
from multidict import MultiDict

from coordinator.api.selectors import selectors
from coordinator.queries.evaluation import is_quickly_parsed
from shared.errors import BadData, DeadlineExceeded, NotExecutable
from shared.labels import Symbols
from shared.promql import parser, regex
from shared.promql.regex import Regex, unchecked
from worker.series.index.patterns import Pattern

TEXTS = ["", "a", "aa", "b", "é", "éa", "aé", "a\nb", "ab", "xaby", "a.b", "a|b", "(a)", "ba", "a\\"]

USED = {
    "10,000 names": "|".join(f"n{i:04d}" for i in range(10_000)),
    "10,000 names, any case": "(?i)" + "|".join(f"n{i:04d}" for i in range(10_000)),
    "names with escaped dots, as Grafana writes several": "(" + "|".join(rf"10\.0\.0\.{i}" for i in range(3_000)) + ")",
    "500 parts": "|".join(f".*w{i}.*" for i in range(500)),
    "a thousand prefixes": "|".join(f"w{i}.+" for i in range(1_000)),
    "a host name": r"([a-z0-9]([-a-z0-9]*[a-z0-9])?\.){3}[a-z]{2,63}",
    "a long value": "x{1,1000}",
}
REFUSED = {
    "bytes": ("x" * 65_537, "65537 bytes long, at most 65536"),
    "a chain of options": ("a?" * 20_000, "weighs 20500, at most 2000"),
    "counted repetitions": (".{0,1000}" * 3, "weighs 3000, at most 2000"),
    "Unicode classes": (r"\pL" * 30, "weighs 3004, at most 2000"),
    "alternatives": (".|" * 32_000, "weighs 4000, at most 2000"),
    "repetitions of repetitions": ("(?:(?:.{0,9}){0,9}){0,9}" * 50, "needs more than 524288 bytes of memory"),
    "groups": ("()" * 201, None),
}


def deadline(seconds: float) -> Callable[[], None]:
    end_s = time.monotonic() + seconds

    def check() -> None:
        if time.monotonic() > end_s:
            raise DeadlineExceeded("time is up")

    return check


@pytest.mark.parametrize("name", USED)
def test_what_people_use_compiles(name: str) -> None:
    assert regex.regex_error(USED[name]) is None
    Regex(USED[name], captures=len(USED[name]) < 100)


@pytest.mark.parametrize("name", REFUSED)
def test_a_costly_pattern_is_refused_with_its_size_and_the_bound_at_once(name: str) -> None:
    pattern, reason = REFUSED[name]
    started_s = time.thread_time()
    error = regex.regex_error(pattern)
    assert time.thread_time() - started_s < 0.2
    assert (error is None) if reason is None else (error is not None and reason in error)
    with pytest.raises(ValueError, match=reason or "201 groups, at most 200"):
        Regex(pattern, captures=True)


NEAR_LITERALS = ["", "a", "a|b", "(a|b)", "(?:a|)", "a.*", ".*a", ".+a", "a.+", ".*a.*", ".+a.+", ".*é.*", ".+é", "é.+"]
NEAR_LITERALS += [".*", ".+", ".+.+", ".*.+", ".+.*", ".", "(a)|b", "(a", "a)", "*", "a\\"]
NEAR_LITERALS += [r"a\.b", r"a\|b", r"(\(a\)|b)", r"a\\", r".*\..*"]


@pytest.mark.parametrize("pattern", NEAR_LITERALS)
def test_patterns_that_need_no_re2_match_what_it_matches(pattern: str) -> None:
    options = re2.Options()
    options.dot_nl, options.log_errors = True, False
    try:
        expected = [re2.fullmatch(pattern, text, options) is not None for text in TEXTS]
    except re2.error:
        with pytest.raises(ValueError):
            Regex(pattern)
        return
    compiled = Regex(pattern)
    assert compiled.matching([text.encode() for text in TEXTS], unchecked).tolist() == expected
    if compiled.literals is not None:
        assert [text in compiled.literals for text in TEXTS] == expected


def test_a_text_too_long_for_the_program_is_refused() -> None:
    costly = Regex("|".join(f".*w{i}x.*y" for i in range(400)))
    assert not costly.matches("a" * 1_000)
    with pytest.raises(NotExecutable, match="a label value of 65536 bytes is too long for a regular expression with "):
        costly.matches("a" * 65_536)


@pytest.mark.parametrize("captures", [False, True])
def test_matching_ends_soon_after_its_deadline(captures: bool) -> None:
    costly = Regex("|".join(f"(.*w{i}x)" for i in range(100)), captures=captures)
    texts = [(f"{i:06d}" * 50).encode() for i in range(100_000)]
    started_s = time.monotonic()
    with pytest.raises(DeadlineExceeded):
        list(costly.captured(texts, deadline(0.1)))
    assert time.monotonic() - started_s < 0.1 + 0.2


def test_what_was_matched_before_the_deadline_is_remembered() -> None:
    symbols = Symbols()
    codes = symbols.codes([f"{i}" * 20 for i in range(5_000)])
    pattern = Pattern("(1|2)[0-9]*2")
    looks = 0

    def check() -> None:
        nonlocal looks
        looks += 1
        if looks == 8:
            raise DeadlineExceeded("time is up")

    with pytest.raises(DeadlineExceeded):
        pattern.matches_codes(codes, symbols, check)
    again = 0
    while again < 10:
        looks, again = 0, again + 1
        try:
            assert pattern.matches_codes(codes, symbols, check).sum() == sum(
                f"{i}"[0] in "12" and f"{i}"[-1] == "2" for i in range(5_000)
            )
            break
        except DeadlineExceeded:
            continue
    assert 1 < again < 10
    assert np.count_nonzero(pattern._outcomes) == 5_000


def test_an_invalid_expression_is_the_users_mistake() -> None:
    with pytest.raises(BadData, match="invalid regular expression"):
        Pattern("a?" * 20_000)


def test_the_patterns_of_one_query_weigh_no_more_than_the_bound_together() -> None:
    def query(count: int) -> str:
        return " or ".join(f'm{{a=~"x{{1,999}}{i}"}}' for i in range(count))

    parser.parse(query(20))
    with pytest.raises(NotExecutable, match="weigh more than 20000 together"):
        parser.parse(query(21))


def test_only_patterns_that_compile_at_once_are_compiled_on_the_event_loop() -> None:
    assert is_quickly_parsed('sum(rate(http_total{job=~"a|b.*",path!~"/api/.+"}[5m])) by (job) * 2')
    assert not is_quickly_parsed('m{a=~".{0,1000}"}')
    assert not is_quickly_parsed(r'm{a=~".\x7b0,1000}"}'), "the brace is hidden"
    assert not is_quickly_parsed(r'm{a=~"\\pL\\pL"}')


async def test_the_patterns_of_a_list_weigh_no_more_than_the_bound_together() -> None:
    def fields(count: int) -> MultiDict[str]:
        return MultiDict(("match[]", f'm{{a=~"x{{1,999}}{i}"}}') for i in range(count))

    assert len(await selectors(fields(20))) == 20
    with pytest.raises(NotExecutable, match=r"'match\[\]' weigh more than 20000 together"):
        await selectors(fields(21))


def test_a_costly_pattern_of_label_replace_is_refused_before_anything_is_evaluated() -> None:
    with pytest.raises(NotExecutable, match=r"1:34: .*label_replace\(\): the pattern is 160000 bytes long"):
        parser.parse(f'label_replace(m, "x", "$1", "a", "{"a?" * 80_000}")')
    with pytest.raises(NotExecutable, match=r"label_replace\(\): the pattern weighs 2050, at most 2000"):
        parser.parse(f'label_replace(m, "x", "$1", "a", "{"a?" * 2_000}")')
