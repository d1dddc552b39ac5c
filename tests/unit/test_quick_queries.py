"""Answers that take next to no time are made on the event loop, all others in a thread."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest

from coordinator.fanout.calls import FanOut, WorkerReply
from coordinator.queries import evaluation, quick
from coordinator.queries.evaluation import Query, Replies, made
from coordinator.queries.gate import HEAVY, LIGHT, Place
from coordinator.queries.quick import QUICK_BYTES_MAX, REMEMBERED_MAX, QuickQueries
from shared.errors import NotExecutable, TooHeavy
from shared.promql.model import Grid
from shared.wire import Reply


@pytest.fixture(autouse=True)
def memo(monkeypatch: pytest.MonkeyPatch) -> QuickQueries:
    memo = QuickQueries()
    monkeypatch.setattr(evaluation, "_QUICK", memo)
    monkeypatch.setattr(quick, "QUICK_S", 5.0)  # however busy the machine is
    return memo


def query(text: str = "m", steps: int = 1, *, is_range: bool = False) -> Query:
    grid = Grid(0, (steps - 1) * 1000, 1000)
    return Query(text, grid, is_range, 0, lookback_ms=1, samples_max=1, timeout_ms=1000, bytes_max=1 << 20)


def run(asked: Query, call: Callable[[], Any], place: Place = LIGHT, received: tuple[int, ...] = (10, 10)) -> Any:
    """The answer that `call` makes from replies of these sizes."""
    answers = [WorkerReply("w", (0,), Reply(frames=[bytes(size)]), 0.0) for size in received]
    replies = Replies(cast(Any, None), cast(Any, None), place, FanOut(answers, {}), 0.0, 0.0)
    result, _ = asyncio.run(made(call, asked, replies))
    return result


def is_on_the_loop(asked: Query, received: tuple[int, ...] = (10, 10), place: Place = LIGHT) -> bool:
    """Whether this answer is made on the event loop's thread."""
    return bool(run(asked, threading.get_ident, place, received) == threading.get_ident())


def test_an_answer_is_made_on_the_event_loop_if_it_took_little_time_before() -> None:
    assert [is_on_the_loop(query()), is_on_the_loop(query())] == [False, True]


def test_another_text_or_number_of_steps_is_another_query() -> None:
    is_on_the_loop(query())
    assert not is_on_the_loop(query("n"))
    assert not is_on_the_loop(query(steps=2))
    assert not is_on_the_loop(query(is_range=True))


@pytest.mark.parametrize("text", ["sum_over_time(vector(1)[range():1s])", "sum_over_time(vector(1)[step():1s])"])
def test_as_many_steps_of_another_length_are_another_query(text: str) -> None:
    def over_one_step(step_ms: int) -> Query:
        return Query(text, Grid(0, step_ms, step_ms), True, 0, lookback_ms=1, samples_max=1, timeout_ms=1000)

    is_on_the_loop(over_one_step(10_000))
    assert is_on_the_loop(over_one_step(10_000))
    assert not is_on_the_loop(over_one_step(12_000_000_000))


def test_a_query_at_another_time_is_the_same_query() -> None:
    asked = Query("m", Grid(5000, 9000, 1000), True, 0, lookback_ms=1, samples_max=1, timeout_ms=1000)
    assert asked.identity() == query(steps=5, is_range=True).identity()


def test_a_quick_answer_is_made_in_a_thread_while_the_query_has_a_heavy_place() -> None:
    is_on_the_loop(query())
    assert not is_on_the_loop(query(), place=HEAVY)
    assert is_on_the_loop(query())


def test_an_answer_from_long_replies_is_made_in_a_thread() -> None:
    is_on_the_loop(query())
    assert is_on_the_loop(query(), (QUICK_BYTES_MAX - 10, 10))
    assert not is_on_the_loop(query(), (QUICK_BYTES_MAX - 10, 11))
    assert not is_on_the_loop(query())  # it was not seen to be quick the last time


def test_a_slow_answer_goes_back_to_the_threads(memo: QuickQueries, monkeypatch: pytest.MonkeyPatch) -> None:
    is_on_the_loop(query())
    monkeypatch.setattr(quick, "QUICK_S", 0.001)
    run(query(), lambda: time.sleep(0.002))
    assert memo.has(query().identity(), 0)  # it waited, as for a processor that others have

    def work() -> None:
        started_at = time.thread_time()
        while time.thread_time() - started_at < 0.002:
            pass

    run(query(), work)
    assert not memo.has(query().identity(), 0)


def test_an_answer_that_fails_goes_back_to_the_threads(memo: QuickQueries) -> None:
    is_on_the_loop(query())
    with pytest.raises(ZeroDivisionError):
        run(query(), lambda: 1 // 0)
    assert not memo.has(query().identity(), 0)


def test_what_workers_replied_and_new_arrays_count_unless_the_answer_is_quick() -> None:
    half = 1 << 19  # of a megabyte, the coordinator has one half
    with pytest.raises(NotExecutable):
        run(query(), lambda: np.zeros(half - 19, np.uint8), HEAVY)
    with pytest.raises(TooHeavy):
        run(query(), lambda: np.zeros(half - 19, np.uint8), LIGHT)
    for _ in range(2):
        assert run(query(), lambda: np.zeros(half - 20, np.uint8).nbytes) == half - 20
    assert run(query(), lambda: np.zeros(half, np.uint8).nbytes) == half


def test_a_bounded_number_of_queries_is_remembered() -> None:
    memo = QuickQueries()
    for number in range(REMEMBERED_MAX + 1):
        memo.took(0, 0, 0.0)  # asked for all the time
        memo.took(number + 1, 0, 0.0)
    assert memo.has(0, 0)
    assert [memo.has(number, 0) for number in (1, 2, 3, REMEMBERED_MAX + 1)] == [False, False, True, True]


def test_what_takes_as_long_as_allowed_is_quick() -> None:
    memo = QuickQueries()
    memo.took(1, QUICK_BYTES_MAX, quick.QUICK_S)
    assert memo.has(1, QUICK_BYTES_MAX)
    memo.took(1, 0, quick.QUICK_S * 1.01)
    assert not memo.has(1, 0)
