"""What is refused, with which class, message and place; and that hostile queries are refused quickly."""

from __future__ import annotations

import sys
import time

import pytest

from shared.errors import NotExecutable, ParseError, TriptychError
from shared.promql.parser import parse
from shared.promql.positions import line_column
from shared.promql.printer import pretty, to_json, to_text
from shared.promql.tokens import NESTING_MAX
from shared.promql.types import type_of

SYNTAX = {
    "": "1:1: parse error: unexpected end of input, expected an expression",
    "a +": "1:4: parse error: unexpected end of input, expected an expression",
    "a b": '1:3: parse error: unexpected identifier \'b\', expected an operator, "{", "[" or offset',
    "a\n  + + *": "2:7: parse error: unexpected character '*', expected an expression",
    "sum(a": '1:4: parse error: unclosed left parenthesis, expected ")"',
    'a{b="c"': '1:2: parse error: unclosed left brace, expected "}"',
    "a[5m": '1:2: parse error: unclosed left bracket, expected "]"',
    "a)": '1:2: parse error: unexpected ")": no "(" is open here',
    "a ! b": "1:3: parse error: unexpected character: '!'",
    "a{b!c}": "1:4: parse error: unexpected character inside braces: '!'",
    'a{b="c" d="e"}': '1:9: parse error: unexpected identifier \'d\', expected "}" or ","',
    "a{b=c}": "1:5: parse error: unexpected identifier 'c', expected a quoted string",
    "a[x]": "1:3: parse error: unexpected identifier 'x', expected a duration such as 5m",
    '"abc': "1:1: parse error: unterminated quoted string",
    r'"a\qb"': r"1:3: parse error: invalid escape sequence '\\q' in string",
    "{}": "1:1: parse error: vector selector must contain at least one non-empty matcher",
    '{a=~".*", b=""}': "1:1: parse error: vector selector must contain at least one non-empty matcher",
    '{a!="x"}': "1:1: parse error: vector selector must contain at least one non-empty matcher",
    'a{__name__="b"}': '1:1: parse error: metric name must not be set twice: "a" or "b"',
    '{"a", "b"}': '1:1: parse error: metric name must not be set twice: "a" or "b"',
    'a{b=~"("}': "1:6: parse error: error parsing regexp '(': missing ): (",
    'a{""="x"}': '1:3: parse error: invalid label name "", expected at least one character',
    "sum by (a:b) (c)": '1:9: parse error: invalid label name "a:b", expected it in quotes',
    "(a)[5m]": "1:1: parse error: ranges only allowed for vector selectors",
    "a offset 5m [5m]": "1:13: parse error: no offset modifiers allowed before range",
    "a @ 5 [5m]": "1:7: parse error: no @ modifiers allowed before range",
    "a offset 5m offset 5m": "1:20: parse error: offset may not be set multiple times",
    "a @ 1 @ 2": "1:7: parse error: @ <timestamp> may not be set multiple times",
    "a @ Inf": "1:3: parse error: timestamp out of bounds for @ modifier: inf",
    "sum(a) offset 5m": "1:1: parse error: offset modifier must be preceded by an instant vector selector "
    "or range vector selector or a subquery",
    "(a) @ 5": "1:1: parse error: @ modifier must be preceded by an instant vector selector "
    "or range vector selector or a subquery",
    "a[0]": "1:3: parse error: duration must be greater than 0",
    "a[-5m]": "1:3: parse error: duration must be greater than 0",
    "a[5m:0s]": "1:6: parse error: duration must be greater than 0",
    "a[5m-5m]": "1:3: parse error: duration must be greater than 0",
    "a[1/0]": "1:3: parse error: division by zero",
    "a[300y]": "1:3: parse error: duration out of range",
    "rate(a[5m],)": "1:11: parse error: trailing commas not allowed in function call args",
    "a + bool b": "1:5: parse error: bool modifier can only be used on comparison operators",
    "a + on(x) group_left(x) b": '1:11: parse error: label "x" must not occur in ON and GROUP clause at once',
    "a + group_left b": '1:5: parse error: unexpected "group_left", expected on or ignoring before it',
    "a and on(x) group_left b": '1:13: parse error: no grouping allowed for "and" operation',
    "a or fill(1) b": '1:6: parse error: no fill modifier allowed for "or" operation',
    "a + fill(1) fill_left(1) b": "1:13: parse error: fill_left value must not be set twice",
    "a anchored": "1:3: parse error: anchored modifier must be preceded by a range vector selector",
    "a[5m:] smoothed": "1:8: parse error: smoothed modifier must be preceded by an instant or range vector selector",
    "foo(a": '1:4: parse error: unclosed left parenthesis, expected ")"',
}

TYPES = {
    "foo(a)": '1:1: parse error: unknown function with name "foo"',
    "Rate(a[5m])": '1:1: parse error: unknown function with name "Rate"',
    "1 +\n rate(a)": '2:7: parse error: expected type range vector in call to function "rate", got instant vector',
    "abs(a[5m])": '1:5: parse error: expected type instant vector in call to function "abs", got range vector',
    "abs(1)": '1:5: parse error: expected type instant vector in call to function "abs", got scalar',
    'vector("x")': '1:8: parse error: expected type scalar in call to function "vector", got string',
    "label_replace(a, b, c, d, e)": '1:18: parse error: expected type string in call to function "label_replace", '
    "got instant vector",
    "clamp(a)": '1:1: parse error: expected 3 argument(s) in call to "clamp", got 1',
    "round()": '1:1: parse error: expected at least 1 argument(s) in call to "round", got 0',
    "round(a, 1, 2)": '1:1: parse error: expected at most 2 argument(s) in call to "round", got 3',
    "time(1)": '1:1: parse error: expected 0 argument(s) in call to "time", got 1',
    "label_join(a)": '1:1: parse error: expected at least 3 argument(s) in call to "label_join", got 1',
    "sum()": "1:1: parse error: no arguments for aggregate expression provided",
    "sum(a, b)": "1:1: parse error: wrong number of arguments for aggregate expression provided, expected 1, got 2",
    "topk(a)": "1:1: parse error: wrong number of arguments for aggregate expression provided, expected 2, got 1",
    "topk(a, b)": "1:6: parse error: expected type scalar in aggregation parameter, got instant vector",
    "count_values(5, a)": "1:14: parse error: expected type string in aggregation parameter, got scalar",
    "sum(a[5m])": "1:5: parse error: expected type instant vector in aggregation expression, got range vector",
    "1 == 1": "1:3: parse error: comparisons between scalars must use BOOL modifier",
    "1 and a": '1:3: parse error: set operator "and" not allowed in binary scalar expression',
    "1 + on(x) a": "1:3: parse error: vector matching only allowed between instant vectors",
    "1 + fill(0) a": "1:3: parse error: vector matching only allowed between instant vectors",
    '"a" + 1': "1:1: parse error: binary expression must contain only scalar and instant vector types, got string",
    "a + b[5m]": "1:5: parse error: binary expression must contain only scalar and instant vector types, "
    "got range vector",
    "-a[5m]": "1:1: parse error: unary expression only allowed on expressions of type scalar or instant vector, "
    'got "range vector"',
    "1[5m:1m]": "1:1: parse error: subquery is only allowed on instant vector, got scalar",
    "info(a, b)": "1:9: parse error: expected label selectors only, got vector selector instead",
    "info(a, rate(b[5m]))": '1:9: parse error: expected label selectors as the second argument to "info" function',
    "deriv(a[3m] anchored)": "anchored modifier can only be used with: changes, delta, increase, rate, resets "
    "- not with deriv",
    "resets((a[3m] smoothed))": "smoothed modifier can only be used with: delta, increase, rate - not with resets",
}


@pytest.mark.parametrize("text", SYNTAX)
def test_text_that_is_not_promql_is_bad_data_with_its_place(text: str) -> None:
    with pytest.raises(ParseError) as caught:
        parse(text)
    assert str(caught.value) == SYNTAX[text]
    assert caught.value.status == 400


@pytest.mark.parametrize("text", TYPES)
def test_unknown_functions_and_wrong_types_are_not_executable(text: str) -> None:
    with pytest.raises(NotExecutable) as caught:
        parse(text)
    assert str(caught.value) == TYPES[text]
    assert caught.value.status == 422


def test_a_syntax_error_is_told_before_a_type_error() -> None:
    with pytest.raises(ParseError):
        parse("rate(a) + foo(b) +")


def test_info_takes_a_selector_that_matches_everything() -> None:
    parse('info(a, {x=~".*"})')
    with pytest.raises(ParseError):
        parse('abs({x=~".*"})')


def test_places_count_lines_and_columns_from_one() -> None:
    assert line_column("ab\ncd", 0) == (1, 1)
    assert line_column("ab\ncd", 2) == (1, 3)
    assert line_column("ab\ncd", 3) == (2, 1)
    assert line_column("ab\ncd", 99) == (2, 3)


HOSTILE = {
    "parentheses": lambda n: "(" * n + "a" + ")" * n,
    "unclosed": lambda n: "(" * n,
    "calls": lambda n: "abs(" * n + "a" + ")" * n,
    "signs": lambda n: "-" * n + "a",
    "left chain": lambda n: "+".join(["a"] * n),
    "right chain": lambda n: "^".join(["2"] * n),
    "subqueries": lambda n: "max_over_time(" * n + "a" + "[1m:1m])" * n,
    "duration parentheses": lambda n: "a[" + "(" * n + "5m" + ")" * n + "]",
    "duration chain": lambda n: "a[" + "1+" * n + "5m]",
    "duration signs": lambda n: "a[" + "-" * n + "5m]",
}


@pytest.mark.parametrize("depth", [500, 100_000])
@pytest.mark.parametrize("shape", HOSTILE)
def test_deep_queries_are_refused(shape: str, depth: int) -> None:
    with pytest.raises(TriptychError) as caught:
        parse(HOSTILE[shape](depth))
    assert caught.value.status in (400, 422)


@pytest.mark.parametrize("shape", ["parentheses", "signs", "left chain", "right chain", "duration chain"])
def test_the_deepest_allowed_query_stays_within_the_default_recursion_limit(shape: str) -> None:
    tree = parse(HOSTILE[shape](NESTING_MAX - 1))
    assert sys.getrecursionlimit() == 1000
    type_of(tree)
    assert parse(to_text(tree)) == tree
    assert parse(pretty(tree)) == tree
    to_json(tree)


HUGE = {
    "name": "x" * 1_000_000,
    "blanks": " " * 1_000_000,
    "comment": "#" * 1_000_000,
    "lines": "\n" * 1_000_000 + "x y",
    "string": '"' + "x" * 1_000_000 + '"',
    "escapes": '"' + "\\n" * 500_000 + '"',
    "open string": '"' + "\\'" * 500_000,
    "digits": "9" * 1_000_000,
    "hexadecimal": "0x" + "f" * 1_000_000,
    "duration": "1" * 1_000_000 + "s",
    "numbers": "1 " * 500_000,
    "matchers": "a{" + 'b="c",' * 160_000 + "}",
    "labels": "sum by (" + "a," * 400_000 + ") (b)",
    "arguments": "f(" + "1," * 400_000 + "1)",
    "too long": "x" * 1_100_000,
    "alternatives": '{a=~"' + "|".join(f"x{i}" for i in range(10_000)) + '"}',
    "long pattern": '{a=~"' + "x" * 1_000_000 + '"}',
    "groups": '{a=~"' + "(" * 20_000 + ")" * 20_000 + 'x"}',
    "repetitions": '{a=~"' + "(x{1,1000})" * 50 + '"}',
    "surrogate": "a{b='\ud800'}",
}


@pytest.mark.parametrize("text", HUGE.values(), ids=HUGE.keys())
def test_a_megabyte_ends_in_a_tree_or_an_error_soon(text: str) -> None:
    started = time.process_time()
    try:
        parse(text)
    except TriptychError as error:
        assert error.status in (400, 422)
        assert len(str(error)) < 1000
    assert time.process_time() - started < 5
