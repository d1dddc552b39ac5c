"""What a load test says of its requests: by kind, and the first second apart."""

from __future__ import annotations

import math

import pytest

from loadtest.overload.outcomes import Failure, Outcome, Outcomes
from loadtest.overload.report import Measured, row, rows_by_kind

RUN = Outcomes(
    (
        Outcome("scan", 0.0, 0.100, "200"),
        Outcome("scan", 0.5, 0.300, "200"),
        Outcome("scan", 1.0, 0.010, "200"),
        Outcome("write", 1.5, 0.020, "204"),
        Outcome("write", 1.6, 0.004, "503"),
        Outcome("write", 1.7, 0.006, "503", lacks_advice=True),
        Outcome("write", 1.8, 1.002, Failure.LATE),
        Outcome("write", 1.9, 1.400, "204"),
    ),
    seconds=2.0,
)


def test_goodput_counts_what_is_answered_within_the_deadline() -> None:
    assert RUN.goodput == 4 / 2
    assert RUN.failed_share == 0.5
    assert RUN.refused_share == 0.25
    assert RUN.refusal_ms == pytest.approx(5.0)


def test_a_request_that_is_late_waited_for_the_whole_deadline() -> None:
    assert RUN.wait_ms(100) == 1000.0
    assert RUN.wait_ms(0) == pytest.approx(10.0)
    assert math.isnan(Outcomes((), 1.0).wait_ms(50))


def test_the_first_second_is_apart() -> None:
    first, rest = RUN.split()
    assert (len(first.all), first.seconds, first.wait_ms(100)) == (2, 1.0, pytest.approx(300.0))
    assert (len(rest.all), rest.seconds) == (6, 1.0)
    assert dict(RUN.by_kind())["scan"].split()[1].wait_ms(50) == pytest.approx(10.0)


def test_tables_have_a_row_for_each_kind_and_count_what_is_no_answer() -> None:
    run = Measured(4.0, RUN, 0.2)
    scan, write, every = rows_by_kind("3 ×", run)
    assert scan == "| 3 × | scan | 1 | 1 | 10.0 | 10.0 | 0% | 2 | 200.0 | 298.0 |"
    assert write.startswith("| 3 × | write | 5 | 1 | 1000.0 | 1000.0 | 40% | 0 | nan")
    assert every.startswith("| 3 × | all | 6 | 2 |")
    assert row("3 ×", run, None, 4.0).endswith(
        "| 50% | 200.0 | 1000.0 |  | 25% | 5.0 | 20% | late: 1, without Retry-After: 1 |"
    )
