"""Runs work in a thread pool ahead of its consumer and yields the results in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Executor, Future
from typing import TypeVar

T = TypeVar("T")


def mapped(pool: Executor, work: Callable[..., T], arguments: Iterable[tuple], ahead: int) -> Generator[T, None, None]:
    """Yield `work(*a)` for each of `arguments`, in order. At most `ahead` calls run or are done ahead of the consumer.

    When the consumer closes the generator, calls that have not begun are cancelled.
    """
    waiting: deque[Future[T]] = deque()
    try:
        for call_arguments in arguments:
            waiting.append(pool.submit(work, *call_arguments))
            if len(waiting) > ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        for future in waiting:
            future.cancel()
