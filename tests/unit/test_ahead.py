"""Work that is done ahead of whoever takes its results."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from shared.ahead import mapped


def test_results_come_in_the_order_of_the_arguments_whatever_ends_first() -> None:
    later = threading.Event()

    def work(number: int) -> int:
        assert number != 0 or later.wait(5)
        if number == 1:
            later.set()
        return number * number

    with ThreadPoolExecutor(2) as pool:
        assert list(mapped(pool, work, ((n,) for n in range(10)), 3)) == [n * n for n in range(10)]


def test_no_more_is_asked_for_than_may_wait() -> None:
    asked = []

    def arguments() -> Iterator[tuple[int]]:
        for number in range(100):
            asked.append(number)
            yield (number,)

    with ThreadPoolExecutor(1) as pool:
        results = mapped(pool, int, arguments(), 4)
        assert next(results) == 0
        assert len(asked) == 5
        results.close()


def test_an_error_of_the_work_reaches_the_taker_in_its_place() -> None:
    with ThreadPoolExecutor(1) as pool:
        results = mapped(pool, int, [("1",), ("x",), ("3",)], 2)
        assert next(results) == 1
        with pytest.raises(ValueError, match="'x'"):
            next(results)


def test_an_error_of_the_arguments_reaches_the_taker() -> None:
    def arguments() -> Iterator[tuple[str]]:
        yield ("1",)
        raise KeyError("no more")

    with ThreadPoolExecutor(1) as pool, pytest.raises(KeyError):
        list(mapped(pool, int, arguments(), 1))
