"""Text, layout and JSON of trees."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.promql.functions import AGGREGATORS, FUNCTIONS
from shared.promql.parser import parse
from shared.promql.printer import format_number, pretty, quote, to_json, to_text

CANONICAL = [
    "1",
    "-1.5",
    "0.000001",
    "+Inf",
    "NaN",
    "1h30m",
    '"a\\n\\"é\\u200b"',
    "up",
    'up{job="a", x!~"b.*"}',
    '{"my.metric", "a.b"="c"}',
    '{__name__=~"a|b"}',
    "m[5m] @ 1.500 offset -1h",
    "m[5m] anchored @ start() offset 1m",
    "m smoothed",
    "m[5m * (2 + 3)]",
    "m[-1m ^ 2 + step()]",
    "m[(-1m) ^ 2 + (1 - (2 - 3))]",
    "m offset (min_of(step(), 1m) + 1)",
    "m offset max_of(step(), 5s)",
    "rate(m[1m])[1h:] @ end()",
    "rate(m[1m])[1h:5m] offset 1d",
    "-(a + b) * -c ^ 2 ^ 3",
    'a == bool on (x) group_left (y, "z.w") b',
    "a / ignoring () group_right () b",
    "a + on () b",
    "a unless ignoring (x) b",
    "a + fill (0) b",
    "a + on (x) fill_left (-Inf) fill_right (1.5) b",
    "sum(m)",
    "sum by (a, b) (m)",
    "topk without () (5, m)",
    'count_values by (x) ("v", m)',
    "time()",
    'label_replace(m, "a", "$1", "b", "(.*)")',
]


@pytest.mark.parametrize("text", CANONICAL)
def test_canonical_text_prints_as_it_stands(text: str) -> None:
    assert to_text(parse(text)) == text


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("SUM(a)BY(b)", "sum by (b) (a)"),
        ("1e3+0x10", "1000 + 16"),
        ("{'up',}", "up"),
        ("up{}", "up"),
        ("a+fill_left(NaN)fill_right(NaN)b", "a + fill (NaN) b"),
        ("m[300]", "m[5m]"),
        ("sum by () (a)", "sum(a)"),
        ("m offset -(1m)", "m offset -1m"),
        ('{"sum"}', "sum"),
        ('{"on"}', '{"on"}'),
        ('sum by ("inf") (a)', 'sum by ("inf") (a)'),
    ],
)
def test_other_spellings_become_canonical(text: str, canonical: str) -> None:
    assert to_text(parse(text)) == canonical
    assert parse(canonical) == parse(text)


def test_numbers_keep_every_digit_without_an_exponent() -> None:
    assert format_number(1e21) == "1" + "0" * 21
    assert format_number(5e-324).startswith("0.000")
    assert float(format_number(math.pi)) == math.pi
    assert format_number(-0.0) == "-0"
    assert format_number(90.0, is_duration=True) == "1m30s"


def test_quote_escapes_what_cannot_be_printed() -> None:
    assert quote('a"b\\c\x00\x7f\u2028é') == '"a\\"b\\\\c\\x00\\x7f\\u2028é"'


def test_pretty_keeps_a_short_query_on_one_line() -> None:
    assert pretty(parse("sum by(a)(rate(m[5m]))/2")) == "sum by (a) (rate(m[5m])) / 2"


def test_pretty_breaks_what_is_longer_than_a_hundred_characters() -> None:
    long = "a_rather_long_metric_name_for_requests_total"
    text = (
        f'sum by (job, instance) (rate({long}{{code=~"5.."}}[5m])) / on (job, instance) group_left () topk(5, {long})'
    )
    assert pretty(parse(text)) == "\n".join(
        [
            f'  sum by (job, instance) (rate({long}{{code=~"5.."}}[5m]))',
            "/ on (job, instance) group_left ()",
            f"  topk(5, {long})",
        ]
    )
    call = f'label_replace(-({long} offset 5m), "destination", "$1-replacement", "source", "(.*)-with-a-pattern")'
    assert pretty(parse(call)) == "\n".join(
        [
            "label_replace(",
            f"  -({long} offset 5m),",
            '  "destination",',
            '  "$1-replacement",',
            '  "source",',
            '  "(.*)-with-a-pattern"',
            ")",
        ]
    )
    nested = f"topk by (job) (5, -max_over_time((rate({long}[5m]) + rate({long}[10m]) * 2)[1h:5m]))"
    assert pretty(parse(nested)) == "\n".join(
        [
            "topk by (job) (",
            "  5,",
            "  -max_over_time(",
            "    (",
            f"        rate({long}[5m])",
            "      +",
            f"        rate({long}[10m]) * 2",
            "    )[1h:5m]",
            "  )",
            ")",
        ]
    )


def test_json_of_a_binary_expression() -> None:
    selector = {
        "type": "vectorSelector",
        "name": "foo",
        "matchers": [{"name": "__name__", "type": "=", "value": "foo"}],
        "offset": 0,
        "timestamp": None,
        "startOrEnd": None,
        "anchored": False,
        "smoothed": False,
    }
    answer = to_json(parse("foo / on (x) group_left (y) fill_right (2) foo"))
    assert answer == {
        "type": "binaryExpr",
        "op": "/",
        "lhs": selector,
        "rhs": selector,
        "bool": False,
        "matching": {
            "card": "many-to-one",
            "labels": ["x"],
            "on": True,
            "include": ["y"],
            "fillValues": {"lhs": None, "rhs": "2"},
        },
    }


def test_json_of_calls_aggregations_and_ranges() -> None:
    answer = to_json(parse('quantile by (a) (0.9, -rate(m{x!="y"}[5m] @ end() offset 1m))'))
    assert (answer["type"], answer["op"], answer["grouping"], answer["without"]) == (
        "aggregation",
        "quantile",
        ["a"],
        False,
    )
    assert answer["param"] == {"type": "numberLiteral", "val": "0.9"}
    assert (answer["expr"]["type"], answer["expr"]["op"]) == ("unaryExpr", "-")
    call = answer["expr"]["expr"]
    assert call["func"] == {"name": "rate", "argTypes": ["matrix"], "variadic": 0, "returnType": "vector"}
    matrix = call["args"][0]
    assert (matrix["type"], matrix["name"], matrix["range"], matrix["offset"]) == (
        "matrixSelector",
        "m",
        300_000,
        60_000,
    )
    assert (matrix["timestamp"], matrix["startOrEnd"]) == (None, "end")
    subquery = to_json(parse("(m)[1h:] @ 1.5"))
    assert (subquery["type"], subquery["range"], subquery["step"], subquery["timestamp"]) == (
        "subquery",
        3_600_000,
        0,
        1500,
    )
    assert subquery["expr"]["type"] == "parenExpr"
    assert to_json(parse('"x"')) == {"type": "stringLiteral", "val": "x"}
    assert to_json(parse("m[step()]"))["rangeExpr"] == "step()"


# Property: what is printed parses to the same tree.

_words = st.sampled_from(["up", "sum", "by", "offset", "fill", "a:b", "start", "step", "anchored", "min_of", "and"])
_label_words = st.sampled_from(["job", "le", "on", "bool", "by", '"a.b"', '"é"', "group_left"])
_strings = st.text(max_size=8).map(quote)
_plain_numbers = st.floats(allow_nan=False, allow_infinity=False).map(lambda value: format_number(abs(value)))
_numbers = st.one_of(_plain_numbers, st.sampled_from(["Inf", "0x1f", "1e3", "5m", "1h30m", "010", "1_0"]))
_duration_atoms = st.sampled_from(["5m", "90", "1.5", "1h30m", "step()", "range()", "min_of(step(), 2s)"])


def _durations(atoms: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.recursive(
        atoms,
        lambda inner: st.one_of(
            st.tuples(inner, st.sampled_from("+*^-"), inner).map(lambda t: f"{t[0]} {t[1]} {t[2]}"),
            inner.map(lambda text: f"({text})"),
            inner.map(lambda text: f"-{text}"),
            st.tuples(inner, inner).map(lambda t: f"max({t[0]}, {t[1]})"),
        ),
        max_leaves=4,
    ).map(lambda text: f"step() + {text}")


_ranges = st.one_of(st.sampled_from(["5m", "300", "1d", "10ms"]), _durations(_duration_atoms))
_offsets = st.one_of(
    st.sampled_from(["", " offset 5m", " offset -1h", " offset step()", " offset -(step() * 2)"]),
    _durations(_duration_atoms).map(lambda text: f" offset ({text})"),
)
_instants = st.sampled_from(["", " @ 5", " @ -1.25", " @ start()", " @ end()"])
_matchers = st.lists(
    st.one_of(
        st.tuples(_label_words, st.sampled_from(["=", "!="]), _strings).map("".join),
        st.tuples(_label_words, st.sampled_from(["=~", "!~"]), st.sampled_from(['"a|b.*"', "'x+'", '""'])).map("".join),
    ),
    max_size=3,
).map(", ".join)
_selectors = st.one_of(
    st.tuples(_words, _matchers).map(lambda t: f"{t[0]}{{{t[1]}}}"),
    st.tuples(_strings.filter(lambda text: text != '""'), _matchers).map(
        lambda t: f"{{{t[0]}, {t[1]}}}" if t[1] else f"{{{t[0]}}}"
    ),
    _words,
)
_vectors = st.tuples(_selectors, st.sampled_from(["", " smoothed"]), _instants, _offsets).map("".join)
_matrices = st.tuples(
    _selectors, _ranges.map(lambda text: f"[{text}]"), st.sampled_from(["", " anchored"]), _offsets, _instants
).map("".join)
_label_lists = st.lists(_label_words, max_size=3, unique=True).map(lambda labels: f"({', '.join(labels)})")
_fills = st.sampled_from(["", "fill(0)", "fill_left(-1.5)", "fill_right(Inf) fill_left(2)"])
_matchings = st.one_of(
    st.just(""),
    st.tuples(st.sampled_from(["on", "ignoring"]), _label_lists, _fills).map(" ".join),
    st.tuples(_label_lists, st.sampled_from(["group_left", "group_right"]), st.sampled_from(["(x)", "()"]), _fills).map(
        lambda t: " ".join(("ignoring", *t))
    ),
)
_range_calls = st.sampled_from(["rate", "increase", "delta"])
_instant_calls = st.sampled_from(["abs", "ceil", "sort", "absent", "timestamp"])


def _larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    group = inner.map(lambda text: f"({text})")
    grouping = st.tuples(st.sampled_from(["by", "without"]), _label_lists).map(" ".join)
    subquery = st.tuples(group, _ranges, st.one_of(st.just(""), _ranges), _instants, _offsets).map(
        lambda t: f"{t[0]}[{t[1]}:{t[2]}]{t[3]}{t[4]}"
    )
    return st.one_of(
        group,
        inner.map(lambda text: f"-{text}"),
        st.tuples(_instant_calls, group).map("".join),
        subquery.map(lambda text: f"rate({text})"),
        st.tuples(inner, st.sampled_from(["+", "*", "^", "atan2", "%"]), _matchings, group).map(" ".join),
        st.tuples(inner, st.sampled_from(["== bool", ">", "<= bool"]), _matchings, group).map(" ".join),
        st.tuples(inner, st.sampled_from(["and", "or", "unless"]), group).map(" ".join),
        # In parentheses: a number has no labels to match, and would be the operand of what follows.
        st.tuples(inner, st.sampled_from(["-", "/", "^"]), _numbers).map(lambda t: f"({' '.join(t)})"),
        # Not with Inf, which is written +Inf: the sign is then that of the whole power, of the same value.
        st.tuples(st.sampled_from(["0", "1.5", "NaN"]), st.sampled_from(["-", "/", "^"]), group).map(" ".join),
        st.tuples(st.sampled_from(["sum", "max", "group"]), grouping, group).map(" ".join),
        st.tuples(st.sampled_from(["topk", "quantile"]), _numbers, inner, grouping).map(
            lambda t: f"{t[0]}({t[1]}, {t[2]}) {t[3]}"
        ),
    )


queries = st.recursive(
    st.one_of(_vectors, st.tuples(_range_calls, _matrices.map(lambda text: f"({text})")).map("".join)),
    _larger,
    max_leaves=8,
)


@settings(max_examples=300, deadline=None)
@given(queries)
def test_printed_queries_parse_to_the_same_tree(text: str) -> None:
    tree = parse(text)
    assert parse(to_text(tree)) == tree
    assert parse(pretty(tree)) == tree
    assert to_json(parse(pretty(tree))) == to_json(tree)


@settings(max_examples=200, deadline=None)
@given(st.one_of(_numbers, _strings, st.floats().map(format_number)))
def test_printed_literals_parse_to_the_same_value(text: str) -> None:
    assert to_text(parse(to_text(parse(text)))) == to_text(parse(text))


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="ab01 (){}[]+-*/^=!~<>,\"'`\\@:#.\nxeE_é5ms", max_size=40))
def test_any_text_ends_in_a_tree_or_an_answerable_error(text: str) -> None:
    from shared.errors import TriptychError

    try:
        tree = parse(text)
    except TriptychError as error:
        assert error.status in (400, 422)
        return
    assert to_text(parse(to_text(tree))) == to_text(tree)


def test_every_function_and_aggregator_prints_and_parses() -> None:
    samples = {"vector": "m", "matrix": "m[5m]", "scalar": "1", "string": '"x"'}
    for signature in FUNCTIONS.values():
        args = ['{x="y"}' if signature.name == "info" and i else samples[t] for i, t in enumerate(signature.args)]
        tree = parse(f"{signature.name}({', '.join(args)})")
        assert parse(to_text(tree)) == tree
    for name, param in AGGREGATORS.items():
        tree = parse(f"{name}(m)" if param is None else f"{name}({samples[param]}, m)")
        assert parse(to_text(tree)) == tree
