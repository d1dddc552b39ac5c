"""How many remarks an evaluation keeps."""

from __future__ import annotations

import pytest

from loadtest.harness.local_queries import instant, range_query
from loadtest.harness.memory_source import MemorySource
from shared.messages import exchange
from shared.promql.engine import range_functions
from shared.promql.engine.aggregation_parameters import quantile_remark
from shared.promql.model import ANNOTATIONS_MAX, Annotations, Grid


def test_the_first_remarks_of_each_level_are_kept_and_the_levels_do_not_displace_each_other() -> None:
    annotations = Annotations()
    for number in range(ANNOTATIONS_MAX + 10):
        annotations.info(str(number), 0)
    annotations.warn("late", 0)
    kept = list(annotations.items.values())
    assert [remark.text for remark in kept[:-1]] == [f"PromQL info: {number}" for number in range(ANNOTATIONS_MAX)]
    assert (kept[-1].level, kept[-1].text) == ("warning", "PromQL warning: late")


def test_equal_remarks_are_kept_once_and_leave_room_for_others() -> None:
    annotations = Annotations()
    for _ in range(2 * ANNOTATIONS_MAX):
        annotations.warn("same", 3)
    annotations.warn("same", 4)
    assert [remark.offset for remark in annotations.items.values()] == [3, 4]


def test_remarks_of_many_workers_are_no_more() -> None:
    annotations = Annotations()
    for worker in range(3):
        here = Annotations()
        for number in range(ANNOTATIONS_MAX - 1):
            here.info(f"{worker} {number}", 0)
        exchange.add_remarks(annotations, exchange.remarks(here), 7)
    assert len(annotations.items) == ANNOTATIONS_MAX


def test_many_metrics_that_may_be_no_counters_cause_no_more_remarks() -> None:
    metrics = ANNOTATIONS_MAX + 50
    data = MemorySource.of({f'm{i}{{i="{i}"}}': ([0, 1000], [0.0, 1.0]) for i in range(metrics)})
    result = instant('rate({__name__=~"m.*"}[5s])', data, 1000)
    assert len(result.annotations.items) == ANNOTATIONS_MAX


def test_a_quantile_that_changes_at_every_step_causes_no_more_remarks(monkeypatch: pytest.MonkeyPatch) -> None:
    remarks: list[str] = []

    def counted(value: float) -> str:
        remarks.append(quantile_remark(value))
        return remarks[-1]

    monkeypatch.setattr(range_functions, "quantile_remark", counted)
    steps = ANNOTATIONS_MAX + 50
    data = MemorySource.of({"m": ([0], [1.0])})
    result = range_query("quantile_over_time(scalar(vector(time())) + 2, m[1h])", data, Grid(0, steps - 1, 1))
    assert len(result.annotations.items) == len(remarks) == ANNOTATIONS_MAX
