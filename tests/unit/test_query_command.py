"""`triptych query`: times, steps, and how results look."""

from __future__ import annotations

import io
import re
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator import cli
from coordinator.command_client import Answer, Client, CommandError
from coordinator.commands.output import printable, write_table
from coordinator.commands.query import POINTS, moment, step_of
from coordinator.commands.query_output import BARS, histogram_text, series_text, sparkline, write_plan, write_result
from shared.promql.ast import VectorSelector
from shared.promql.parser import parse

NOW_S = 1_767_225_600.0  # 2026-01-01T00:00:00Z


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(data: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> str:
    """On a terminal of 100 columns, without what makes letters bold."""
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(sys, "stdout", terminal := Terminal())
    write_result(data)
    return re.sub(r"\x1b\[\d*m", "", terminal.getvalue())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("now", NOW_S),
        ("-1h30m", NOW_S - 5400),
        ("1767225600.5", NOW_S + 0.5),
        ("2026-01-01T01:00:00+01:00", NOW_S),
        ("2025-12-31T23:59:59.5Z", NOW_S - 0.5),
    ],
)
def test_times(text: str, expected: float) -> None:
    assert moment(text, NOW_S) == expected


@pytest.mark.parametrize("text", ["", "1h", "-1", "2026-01-01", "--1h", "-1x", "nan"])
def test_what_is_no_time(text: str) -> None:
    if text == "-1":
        assert moment(text, NOW_S) == -1  # a second before 1970
        return
    with pytest.raises(ValueError):
        moment(text, NOW_S)


@given(st.floats(0, 1e10))
def test_a_range_has_at_most_so_many_points(range_s: float) -> None:
    step = step_of(range_s)
    assert step >= 1
    assert range_s / step <= POINTS


def test_steps_are_round() -> None:
    assert [step_of(range_s) for range_s in (10, 600, 3600, 86_400, 90 * 86_400, 1000 * 86_400)] == [
        1, 10, 60, 900, 86_400, 10 * 86_400
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("step", "sent"),
    [
        ("1234567", "1234567"),
        ("100001.5", "100001.5"),
        ("0.1234567", "0.1234567"),
        ("1w5d13h46m41s", "1086401"),
        ("0", "0"),
    ],
)
def test_a_duration_is_sent_with_all_of_its_digits(step: str, sent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sent_fields = {}

    def form(self: Client, path: str, fields: dict[str, str], timeout_s: float) -> Answer:
        sent_fields.update(fields)
        return Answer(200, b'{"status":"success","data":{"resultType":"matrix","result":[]}}')

    monkeypatch.setattr(Client, "form", form)
    assert cli.main(["query", "up", "--start", "0", "--step", step, "--timeout", step]) == 0
    assert sent_fields["step"] == sent_fields["timeout"] == sent


@pytest.mark.parametrize(
    ("labels", "text"),
    [
        ({"__name__": "up"}, "up"),
        ({}, "{}"),
        ({"__name__": "up", "job": "a", "b": 'q"\n'}, 'up{b="q\\"\\n", job="a"}'),
        ({"job": "a"}, '{job="a"}'),
        ({"__name__": "my.metric", "my.label": "1"}, '{"my.metric", "my.label"="1"}'),
        ({"__name__": "bool"}, '{"bool"}'),
        ({"__name__": "Group_Left", "on": "1"}, '{"Group_Left", on="1"}'),
        ({"__name__": "NaN", "Inf": "1"}, '{"NaN", "Inf"="1"}'),
        ({"__name__": "sum", "by": "1"}, 'sum{by="1"}'),
    ],
)
def test_a_series_is_written_as_it_is_selected(labels: dict[str, str], text: str) -> None:
    assert series_text(labels) == text
    if not labels:
        return  # what selects all is no query
    tree = parse(text)
    assert isinstance(tree, VectorSelector)
    assert {matcher.name: matcher.value for matcher in tree.matchers} == labels


def test_histograms_are_written_as_prometheus_does() -> None:
    buckets = [[1, "-0.5", "-0.25", "9"], [3, "-0.001", "0.001", "10"], [0, "1", "2", "41"], [2, "2", "4", "1"]]
    text = histogram_text({"count": "61", "sum": "33.4", "buckets": buckets})
    assert text == "{count:61, sum:33.4, [-0.5,-0.25):9, [-0.001,0.001]:10, (1,2]:41, (2,4):1}"


@given(st.lists(st.floats(), max_size=200))
def test_a_line_of_bars_has_one_for_each_number_or_mean(numbers: list[float]) -> None:
    bars = sparkline(numbers)
    assert len(bars) <= 40
    assert set(bars) <= {*BARS, " "}


def test_bars_rise_with_the_numbers() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7]) == BARS
    assert sparkline([5, 5]) == "▁▁"
    assert sparkline([1, float("nan"), 2]) == "▁ █"


def test_a_pipe_gets_a_line_for_each_sample(capsys: pytest.CaptureFixture[str]) -> None:
    series = {"metric": {"__name__": "m"}, "values": [[1, "2"], [3.5, "4"]], "histograms": []}
    series["histograms"] = [[2, {"count": "1", "sum": "1"}]]
    write_result({"resultType": "matrix", "result": [series]})
    assert capsys.readouterr().out == (
        "m\t1970-01-01T00:00:01Z\t2\nm\t1970-01-01T00:00:02Z\t{count:1, sum:1}\nm\t1970-01-01T00:00:03.500Z\t4\n"
    )
    write_result({"resultType": "vector", "result": [{"metric": {"a": "b"}, "value": [1, "NaN"]}]})
    write_result({"resultType": "scalar", "result": [1, "7"]})
    assert capsys.readouterr().out == '{a="b"}\tNaN\n7\n'
    write_result({"resultType": "vector", "result": []})
    assert capsys.readouterr() == ("", "no series\n")


def test_a_terminal_gets_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    vector = {"resultType": "vector", "result": [{"metric": {"job": "[red]a"}, "value": [1, "12"]}]}
    heading, _, line = shown(vector, monkeypatch).rstrip().splitlines()[-3:]
    assert heading.split() == ["series", "value"]
    assert line.split() == ['{job="[red]a"}', "12"]
    values = [[n, str(n)] for n in range(8)]
    matrix = {"resultType": "matrix", "result": [{"metric": {"job": "a"}, "values": values}]}
    assert shown(matrix, monkeypatch).split()[-5:] == ['{job="a"}', BARS, "0", "7", "7"]


def test_texts_of_servers_cannot_write_lines_or_colours(capsys: pytest.CaptureFixture[str]) -> None:
    write_table(("a", "b"), [("x\ny\tz", "\x1b[31mred\x9b"), ("é", "")])
    assert capsys.readouterr().out == "x\\ny\\tz\t\\x1b[31mred\\x9b\né\t\n"
    assert printable("plain é") == "plain é"


def test_a_plan_is_a_tree(capsys: pytest.CaptureFixture[str]) -> None:
    leaf = {"where": "shards", "text": "count(m)", "query": "count(m)"}
    children = [leaf | {"id": 1}, {"id": 2, "where": "coordinator", "text": "2", "children": [leaf | {"id": 3}]}]
    plan = {"id": 0, "where": "coordinator", "text": "count(m) / 2", "children": children}
    measured = [{"id": 0, "time": 0.0015}, {"id": 1, "time": 0.001, "series": 4, "samples": 9}]
    write_plan({"explain": {"plan": plan, "measured": measured}})
    assert capsys.readouterr().out.splitlines() == [
        "coordinator: count(m) / 2  (1.5 ms)",
        "├─ shards: count(m)  (1 ms, 4 series, 9 samples)",
        "└─ coordinator: 2",
        "   └─ shards: count(m)",
    ]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"This server speaks TLS: use https\r\nmore", "what is not JSON: This server speaks TLS: use https"),
        (b"<html><body>Bad Request</body></html>", "what is not JSON"),
        (b"", "what is not JSON"),
    ],
)
def test_what_another_program_answers_is_told(body: bytes, said: str) -> None:
    with pytest.raises(CommandError) as caught:
        Client("http://127.0.0.1:1").content(Answer(400, body))
    assert str(caught.value) == f"http://127.0.0.1:1 answers with status 400 and {said}"
