"""The scripts' own language, and how answers are judged."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from loadtest.harness.memory_source import label_set
from tests.conformance.answer import Answer, differences, same_value
from tests.conformance.data import Holdings
from tests.conformance.script import Clear, Eval, Load, Remark, ScriptError, parse_script
from tests.conformance.series_text import STALE, Histogram, parse_labels, parse_points, parse_start_offsets_ms
from tests.oracle_native_histograms import NativeHistogram

NAN = math.nan


def case(tmp_path: Path, text: str) -> Eval:
    path = tmp_path / "one.test"
    path.write_text(text)
    (found,) = parse_script(path)
    assert isinstance(found, Eval)
    return found


@pytest.mark.parametrize(
    ("text", "points"),
    [
        ("1 -2.5 +Inf 1e3", [1, -2.5, math.inf, 1000]),
        ("_ 1 _x2 2", [None, 1, None, None, 2]),
        ("1+2x3", [1, 3, 5, 7]),
        ("1-0.5x2", [1, 0.5, 0]),
        ("0x2", [0, 0, 0]),
        ("1e3+1e1x1", [1000, 1010]),
        (
            "{{count:1}} {{sum:1 count:2 counter_reset_hint:unknown}}x1",
            [
                Histogram(NativeHistogram(count=1.0)),
                *[Histogram(NativeHistogram(count=2.0, sum=1.0), names_hint=True)] * 2,
            ],
        ),
    ],
)
def test_points_expand(text: str, points: list[object]) -> None:
    assert parse_points(text) == points


def test_stale_is_the_marker_and_not_any_nan() -> None:
    stale, nan = parse_points("stale NaN")
    assert isinstance(stale, float) and isinstance(nan, float)
    assert same_value(stale, STALE) and not same_value(stale, nan)


def test_start_offsets_expand() -> None:
    assert parse_start_offsets_ms("_ -30s-1mx1 0 +1ms") == [None, -30_000, -90_000, 0, 1]


def test_series_names_may_be_quoted() -> None:
    labels = parse_labels('{"a metric", "l.1"="x \\"y\\"", m=\'{z}\',}')
    assert labels == label_set({"__name__": "a metric", "l.1": 'x "y"', "m": "{z}"})


def test_commands_are_blocks(tmp_path: Path) -> None:
    path = tmp_path / "a.test"
    path.write_text('# text\nload 10s\n  m 1 2\n  n{a="b"} 3\n\nclear\nload 1m\n  m 5\n')

    first, second, third = parse_script(path)

    assert isinstance(first, Load) and isinstance(second, Clear) and isinstance(third, Load)
    assert (first.interval_ms, len(first.series), third.line) == (10_000, 2, 7)


def test_unknown_command_names_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "a.test"
    path.write_text("\nlaod 10s\n  m 1\n")

    with pytest.raises(ScriptError, match=r"a\.test:2"):
        parse_script(path)


def test_expectations_are_read(tmp_path: Path) -> None:
    found = case(
        tmp_path,
        "eval range from 0 to 1m step 30s f(m)\n"
        "  expect warn msg: a (1:2)\n  expect info\n  expect ordered\n  m 1 _ 2\n",
    )

    assert (found.warn, found.info, found.ordered) == ([Remark(text="a (1:2)")], [Remark()], True)
    assert found.times is not None and found.times.step_ms == 30_000
    assert found.series == [(label_set({"__name__": "m"}), [1, None, 2])]


def test_older_forms_mean_the_same(tmp_path: Path) -> None:
    assert case(tmp_path, "eval_fail instant at 1m f(m)\n  expected_fail_message no\n").fail == [Remark(text="no")]
    assert case(tmp_path, "eval_ordered instant at 1m m\n").ordered
    assert case(tmp_path, "eval_warn instant at 1m m\n").warn == [Remark()]


def test_loads_add_up_and_replace_at_equal_times(tmp_path: Path) -> None:
    path = tmp_path / "a.test"
    path.write_text("load 10s\n  m 1 2\n\nload 10s\n  m _ 5 6\n")
    holdings = Holdings()
    for command in parse_script(path):
        assert isinstance(command, Load)
        holdings.load(command)

    (samples,) = holdings.data.values()
    assert [value for _, value, _ in samples.in_order()] == [1, 5, 6]


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [(1, 1 + 1e-7, True), (1, 1 + 1e-5, False), (NAN, NAN, True), (0, 1e-12, False), (math.inf, 1e308, False)],
)
def test_values_are_compared_relatively(a: float, b: float, same: bool) -> None:
    assert same_value(a, b) is same


def judged(case_text: str, answer: Answer, tmp_path: Path) -> list[str]:
    return list(differences(case(tmp_path, case_text), answer))


def test_a_missing_an_extra_and_a_wrong_series_are_told(tmp_path: Path) -> None:
    a, b, c = ((("l", x),) for x in "abc")
    answer = Answer("vector", [(b, [(0, 7.0)]), (c, [(0, 3.0)])])

    found = judged('eval instant at 0s m\n  {l="a"} 1\n  {l="b"} 2\n', answer, tmp_path)

    assert len(found) == 3
    assert a not in dict(answer.series)


def test_an_error_where_values_are_expected_is_told(tmp_path: Path) -> None:
    assert judged("eval instant at 0s m\n", Answer("error", error="no"), tmp_path) == ["failed: no"]


def test_success_where_a_failure_is_expected_is_told(tmp_path: Path) -> None:
    assert judged("eval instant at 0s m\n  expect fail\n", Answer("vector"), tmp_path) == ["did not fail"]


def test_every_remark_must_be_expected_once_one_is(tmp_path: Path) -> None:
    answer = Answer("vector", warnings=["a", "b"])

    assert judged("eval instant at 0s m\n", answer, tmp_path) == []
    assert len(judged("eval instant at 0s m\n  expect warn msg: a\n", answer, tmp_path)) == 1
    assert len(judged("eval instant at 0s m\n  expect no_warn\n", answer, tmp_path)) == 1
