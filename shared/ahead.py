"""Results in order, of work that a pool of threads does ahead of whoever takes them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Executor, Future
from typing import TypeVar

T = TypeVar("T")


def mapped(pool: Executor, work: Callable[..., T], arguments: Iterable[tuple], ahead: int) -> Generator[T, None, None]:
    """`work(*a)` for each of `arguments`, which are asked for one at a time; at most `ahead` results wait to be taken.

    What has not begun when the iteration is given up is never done.
    """
    waiting: deque[Future[T]] = deque()
    try:
        for own in arguments:
            waiting.append(pool.submit(work, *own))
            if len(waiting) > ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        for future in waiting:
            future.cancel()
