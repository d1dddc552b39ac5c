"""The tree a PromQL text stands for."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor

import pytest

from shared.errors import ParseError
from shared.promql.ast import (
    Aggregate,
    At,
    Binary,
    Call,
    Matcher,
    Matching,
    MatrixSelector,
    NumberLiteral,
    Paren,
    StringLiteral,
    Subquery,
    Unary,
    VectorSelector,
)
from shared.promql.parser import parse, parse_selector


def metric(name: str, *matchers: Matcher, **modifiers: object) -> VectorSelector:
    return VectorSelector(name, (Matcher("__name__", "=", name), *matchers), **modifiers)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        ("-2", -2),
        (".5", 0.5),
        ("5.", 5),
        ("1e3", 1000),
        ("1E-2", 0.01),
        ("0x1F", 31),
        ("0X_1f", 31),
        ("0755", 493),
        ("089", 89),
        ("1_000_000", 1_000_000),
        ("1_0.2_5", 10.25),
        ("Inf", math.inf),
        ("+inF", math.inf),
        ("-INF", -math.inf),
        ("5m", 300),
        ("1h30m", 5400),
        ("1y2w3d4h5m6s7ms", 33019506.007),
        ("-10ms", -0.01),
        ("- -1", 1),
    ],
)
def test_number_forms(text: str, value: float) -> None:
    assert parse(text) == NumberLiteral(value)


def test_nan_in_any_letter_case_and_with_a_sign() -> None:
    for text in ("NaN", "nan", "-NAN"):
        literal = parse(text)
        assert isinstance(literal, NumberLiteral)
        assert math.isnan(literal.value)


@pytest.mark.parametrize(
    "text", ["1e", "0x", "0xg", "5x", "1_", "1__0", "1..2", "1m5h", "5m5m", "1e999", "09_", "1.5m"]
)
def test_malformed_numbers_are_refused(text: str) -> None:
    with pytest.raises(ParseError):
        parse(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('"plain"', "plain"),
        ("'single \"quoted\"'", 'single "quoted"'),
        (r"`raw \n 'x' " + '"y"`', r"raw \n 'x' " + '"y"'),
        ("`two\nlines`", "two\nlines"),
        (r'"\a\b\f\n\r\t\v\\\""', '\a\b\f\n\r\t\v\\"'),
        (r"'\''", "'"),
        (r'"\x41\101\u00e9\U0001F600"', "AAé😀"),
        (r'"\xc3\xa9"', "é"),
        ('"été # not a comment"', "été # not a comment"),
    ],
)
def test_string_forms(text: str, value: str) -> None:
    assert parse(text) == StringLiteral(value)


@pytest.mark.parametrize(
    "text",
    [
        r'"\q"',
        r'"\'"',
        r"""'\"'""",
        r'"\x4"',
        r'"\400"',
        r'"\ud800"',
        r'"\U00110000"',
        r'"\xff"',
        '"a',
        "'a\n'",
        "`a",
        '"\\',
    ],
)
def test_malformed_strings_are_refused(text: str) -> None:
    with pytest.raises(ParseError):
        parse(text)


def test_selector_with_every_matcher_operator() -> None:
    assert parse("""m{a="1", b!='2', c=~`3.*`, d!~"4",}""") == metric(
        "m",
        Matcher("a", "=", "1"),
        Matcher("b", "!=", "2"),
        Matcher("c", "=~", "3.*"),
        Matcher("d", "!~", "4"),
    )


def test_utf8_names_in_quotes() -> None:
    expected = VectorSelector("my.metric", (Matcher("__name__", "=", "my.metric"), Matcher("a.b", "=", "c")))
    assert parse('{"my.metric", "a.b"="c"}') == expected
    assert parse('{"plain"}') == parse("plain")
    grouped = parse('sum by ("a.b", c) (m)')
    assert isinstance(grouped, Aggregate)
    assert grouped.grouping == ("a.b", "c")


def test_recording_rule_names_hold_colons() -> None:
    assert parse("job:requests:rate5m") == metric("job:requests:rate5m")


def test_name_in_a_matcher_is_not_the_selectors_name() -> None:
    assert parse('{__name__="m"}') == VectorSelector(None, (Matcher("__name__", "=", "m"),))


def test_comments_and_blanks_are_skipped() -> None:
    assert parse("# first\n  m # second\n\t+\r\n1 # third") == parse("m+1")


KEYWORDS = """
    sum min max avg count topk quantile limitk limit_ratio by without offset and or unless atan2 fill fill_left
    fill_right anchored smoothed start end step range min_of max_of
"""


@pytest.mark.parametrize("word", KEYWORDS.split())
def test_keywords_name_metrics_and_labels(word: str) -> None:
    assert parse(word) == metric(word)
    assert parse(f'{word}{{{word}="x"}}') == metric(word, Matcher(word, "=", "x"))
    assert parse(f"{word} + {word}") == Binary("+", metric(word), metric(word), matching=Matching())
    assert parse(f"sum by ({word}) ({word})") == Aggregate("sum", metric(word), grouping=(word,))


@pytest.mark.parametrize("word", ["on", "ignoring", "group_left", "group_right", "bool"])
def test_words_of_vector_matching_name_labels_only(word: str) -> None:
    assert parse(f'm{{{word}="x"}}') == metric("m", Matcher(word, "=", "x"))
    assert parse(f"sum without ({word}) (m)") == Aggregate("sum", metric("m"), grouping=(word,), without=True)
    with pytest.raises(ParseError):
        parse(f"{word}{{}}")


def test_keywords_in_any_letter_case() -> None:
    assert parse("SUM(m) BY (a) AND ON(a) n OFFSET 5m") == parse("sum by (a) (m) and on(a) n offset 5m")
    assert parse("m @ START()") == parse("m @ start()")
    assert parse("m[STep()]") == parse("m[step()]")


@pytest.mark.parametrize(
    ("text", "grouped"),
    [
        ("-2 ^ 2", "-(2 ^ 2)"),
        ("2 ^ 3 ^ 2", "2 ^ (3 ^ 2)"),
        ("2 ^ -3 ^ 2", "2 ^ (-(3 ^ 2))"),
        ("-a * b", "(-a) * b"),
        ("a - b - c", "(a - b) - c"),
        ("a * b % c atan2 d", "((a * b) % c) atan2 d"),
        ("a + b * c", "a + (b * c)"),
        ("a < b + c", "a < (b + c)"),
        ("a and b > c", "a and (b > c)"),
        ("a or b unless c", "a or (b unless c)"),
        ("a and b unless c", "(a and b) unless c"),
        ("-a @ 5 offset 1m", "-(a @ 5 offset 1m)"),
        ("a / b offset 5m", "a / (b offset 5m)"),
        ("a offset 100 + 2", "(a offset 100) + 2"),
        ("a offset -2 ^ 2", "(a offset -2) ^ 2"),
        ("a offset -step()*2", "(a offset -step())*2"),
        ("m >= bool on(x) n or o", "(m >= bool on(x) n) or o"),
    ],
)
def test_precedence(text: str, grouped: str) -> None:
    assert without_parens(parse(text)) == without_parens(parse(grouped))


def without_parens(expr: object) -> object:
    if isinstance(expr, Paren):
        return without_parens(expr.expr)
    if isinstance(expr, Binary):
        return (expr.op, expr.return_bool, expr.matching, without_parens(expr.lhs), without_parens(expr.rhs))
    if isinstance(expr, Unary):
        return (expr.op, without_parens(expr.expr))
    return expr


def test_vector_matching() -> None:
    binary = parse('a / on(x, "y.z",) group_left(w) b')
    assert isinstance(binary, Binary)
    assert binary.matching == Matching("many-to-one", on=True, labels=("x", "y.z"), include=("w",))
    binary = parse("a * ignoring() group_right b")
    assert isinstance(binary, Binary)
    assert binary.matching == Matching("one-to-many", on=False)
    binary = parse("a unless on() b")
    assert isinstance(binary, Binary)
    assert binary.matching == Matching("many-to-many", on=True)


def test_matching_only_between_two_vectors() -> None:
    for text in ("a + 1", "1 + a", "1 + 1", "a + scalar(b)"):
        binary = parse(text)
        assert isinstance(binary, Binary)
        assert binary.matching is None


def test_fill_modifiers() -> None:
    def fills(text: str) -> tuple[float | None, float | None]:
        binary = parse(text)
        assert isinstance(binary, Binary)
        assert binary.matching is not None
        return binary.matching.fill_left, binary.matching.fill_right

    assert fills("a + fill(0) b") == (0, 0)
    assert fills("a == bool on(x) fill_left(-5) fill_right(+Inf) b") == (-5, math.inf)
    assert fills("a + on(x) group_left(y) fill_right(1) fill_left(2) b") == (2, 1)
    assert fills("fill + fill(1m) fill") == (60, 60)
    assert fills("a + b") == (None, None)


def test_aggregation_clause_before_or_after() -> None:
    before = parse("topk without (a, b,) (5, m)")
    assert before == parse("topk(5, m) without (a, b)")
    assert before == Aggregate("topk", metric("m"), NumberLiteral(5), ("a", "b"), True)
    assert parse("sum by () (m)") == Aggregate("sum", metric("m"))
    assert parse("sum without () (m)") == Aggregate("sum", metric("m"), without=True)


def test_ranges_offsets_and_instants() -> None:
    assert parse("m[5m]") == MatrixSelector(metric("m"), 300_000)
    assert parse("m[1800]") == MatrixSelector(metric("m"), 1_800_000)
    assert parse("m[0.5]") == MatrixSelector(metric("m"), 500)
    assert parse("m offset 5m") == metric("m", offset=300_000)
    assert parse("m offset -5m @ -1.5") == metric("m", offset=-300_000, at=At(-1500))
    assert parse("m[1m] @ start() offset 1h") == MatrixSelector(metric("m", offset=3_600_000, at=At("start")), 60_000)
    assert parse("m[1m] offset 1h @ end()") == MatrixSelector(metric("m", offset=3_600_000, at=At("end")), 60_000)
    assert parse("m @ 1m40s") == metric("m", at=At(100_000))


def test_subqueries() -> None:
    assert parse("rate(m[1m])[1h:5m]") == Subquery(
        Call("rate", (MatrixSelector(metric("m"), 60_000),)), 3_600_000, 300_000
    )
    assert parse("m[1h:]") == Subquery(metric("m"), 3_600_000)
    assert parse("m:x[1h:30] @ 1 offset 1m") == Subquery(metric("m:x"), 3_600_000, 30_000, offset=60_000, at=At(1000))


def test_extended_range_selectors() -> None:
    assert parse("rate(m[5m] anchored)") == Call("rate", (MatrixSelector(metric("m", anchored=True), 300_000),))
    assert parse("m smoothed offset 1m") == metric("m", smoothed=True, offset=60_000)
    assert parse("m @ 100 smoothed + 0") == Binary("+", metric("m", smoothed=True, at=At(100_000)), NumberLiteral(0))


def test_older_name_of_a_function() -> None:
    assert parse("holt_winters(m[5m], 0.5, 0.5)") == parse("double_exponential_smoothing(m[5m], 0.5, 0.5)")


def test_spans_cover_the_text_of_each_node() -> None:
    text = ' sum by (a) (rate(m{x="y"}[5m] offset 1m)) / on(a) (n @ 5 + 1) '
    binary = parse(text)
    assert isinstance(binary, Binary)

    def slice_of(span: tuple[int, int]) -> str:
        return text[span[0] : span[1]]

    assert slice_of(binary.span) == text.strip()
    assert slice_of(binary.op_span) == "/"
    assert isinstance(binary.lhs, Aggregate)
    assert slice_of(binary.lhs.span) == 'sum by (a) (rate(m{x="y"}[5m] offset 1m))'
    assert slice_of(binary.lhs.expr.span) == 'rate(m{x="y"}[5m] offset 1m)'
    assert isinstance(binary.lhs.expr, Call)
    assert slice_of(binary.lhs.expr.args[0].span) == 'm{x="y"}[5m] offset 1m'
    assert slice_of(binary.rhs.span) == "(n @ 5 + 1)"
    trailing = parse("sum(m) by (a, b) ")
    assert trailing.span == (0, 16)


def test_selector_of_a_match_parameter() -> None:
    assert parse_selector('up{job="a"}') == (Matcher("__name__", "=", "up"), Matcher("job", "=", "a"))
    assert parse_selector('{"a.b"=~"c+"}') == (Matcher("a.b", "=~", "c+"),)


@pytest.mark.parametrize(
    "text", ["", "up offset 5m", "up @ 5", "up[5m]", "(up)", "up + 1", "foo(up)", "1", "up smoothed", "{}"]
)
def test_anything_but_a_bare_selector_is_a_parse_error_of_match(text: str) -> None:
    with pytest.raises(ParseError):
        parse_selector(text)


def test_threads_share_the_parser() -> None:
    texts = [f"sum by (l{i}) (rate(m{i}[{i + 1}m]))" for i in range(64)]
    with ThreadPoolExecutor(8) as pool:
        trees = list(pool.map(parse, texts))
    assert [tree.grouping for tree in trees if isinstance(tree, Aggregate)] == [(f"l{i}",) for i in range(64)]
