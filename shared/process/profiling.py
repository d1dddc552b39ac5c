"""A sampling profiler: where the threads of this process spend their time, as text for flame graphs.

A thread samples the Python stacks of all other threads about a hundred times a second. For kernels and libraries, it
sees the Python function that called them. The format is that of B. Gregg's FlameGraph, "collapsed stacks": a line for
each stack, outermost function first, with its weight at the end.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from types import CodeType, FrameType

from shared.errors import Overloaded

INTERVAL_S = 0.01
SECONDS_MAX = 60.0
DEPTH_MAX = 96
"""The most functions of one stack that are kept, starting with the innermost."""
STACKS_MAX = 5_000
"""The most different stacks that are kept: a few MB of text in the worst case. The weights of all others are added up
in one line."""
OTHERS = ("(other stacks)",)

_only_one = threading.Lock()


def profile(seconds: float, stopped: Callable[[], bool], *, by_processor: bool) -> bytes:
    """The stacks of the next `seconds`, or until `stopped`. The weight of a stack is its CPU time in microseconds or,
    unless `by_processor`, how often it was seen, including while its thread waited. Raises Overloaded if this process
    is already taking a profile."""
    if not _only_one.acquire(blocking=False):
        raise Overloaded("a profile is being taken in this process, and it takes one at a time; try again later")
    try:
        return _text(_sampled(seconds, stopped, by_processor))
    finally:
        _only_one.release()


def _sampled(seconds: float, stopped: Callable[[], bool], by_processor: bool) -> Counter[tuple[str, ...]]:
    weights: Counter[tuple[str, ...]] = Counter()
    names: dict[CodeType, str] = {}
    spent_before = _processor_us() if by_processor else {}
    ends_at = time.monotonic() + seconds
    while not stopped() and (remaining_s := ends_at - time.monotonic()) > 0:
        time.sleep(min(INTERVAL_S, remaining_s))
        frames = sys._current_frames()
        spent = _processor_us() if by_processor else {}
        for thread in threading.enumerate():
            frame = frames.get(thread.ident or 0)
            if frame is None or thread is threading.current_thread():
                continue
            key = thread.native_id or 0
            weight = spent.get(key, 0) - spent_before.get(key, 0) if by_processor else 1
            if weight > 0:
                stack = (thread.name, *_stack(frame, names))
                weights[stack if stack in weights or len(weights) < STACKS_MAX else OTHERS] += weight
        frames.clear()  # the frames would keep the objects of their functions alive
        spent_before = spent
    return weights


def _stack(frame: FrameType | None, names: dict[CodeType, str]) -> list[str]:
    """The functions of the stack, outermost first."""
    stack: list[str] = []
    while frame is not None and len(stack) < DEPTH_MAX:
        code = frame.f_code
        name = names.get(code)
        if name is None:
            name = names[code] = f"{frame.f_globals.get('__name__', '?')}.{code.co_qualname}".replace(";", ",")
        stack.append(name)
        frame = frame.f_back
    return stack[::-1]


def _processor_us() -> dict[int, int]:
    """Thread id of the kernel → CPU time so far, in microseconds."""
    spent = {}
    for thread in threading.enumerate():
        try:
            with open(f"/proc/self/task/{thread.native_id}/schedstat", "rb") as file:
                spent[thread.native_id or 0] = int(file.read().split()[0]) // 1000
        except OSError:
            continue  # the thread has just ended
    return spent


def _text(weights: Counter[tuple[str, ...]]) -> bytes:
    return "".join(f"{';'.join(stack)} {weight}\n" for stack, weight in weights.most_common()).encode()
