"""Virtual time, and what happens in it: events of processes that can be frozen and killed, and their threads.

A thread is a greenlet. It runs until it pauses, waits for a lock or sleeps; between two such points no other thread of
the history runs. Everything that happens is an event at a moment of virtual time, so a second costs nothing by itself.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from typing import Any

from greenlet import GreenletExit, getcurrent, greenlet

from tests.simulation.choices import Choices

EVENTS_MAX = 30_000
"""Of one history: more is a loop without end."""
PAUSE_OF_256 = 40
"""How often a thread is interrupted where it could be."""
EPOCH_S = 1_700_000_000


class Violation(Exception):
    """The log has broken a promise; the text says which, and how it was seen."""


class Process:
    """What dies and is frozen as a whole. The threads of a dead one never go on."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        self.frozen_until = 0.0
        self.threads: dict[Thread, None] = {}

    def kill(self) -> None:
        """To be called by the scheduler, not in a thread."""
        self.alive = False
        for thread in list(self.threads):
            thread.kill()


class World:
    """One history's clock, events and threads; `current` while it runs."""

    current: World

    def __init__(self, choices: Choices, *, tracing: bool = False) -> None:
        World.current = self
        self.choices = choices
        self.now = 0.0
        self.wall_offset_s = 0.0
        self.events = 0
        self.trace_lines: list[str] = []
        self.tracing = tracing
        self.hub = getcurrent()
        self.process = self.outside = Process("outside")
        self.thread: Thread | None = None
        self.wakeful: Callable[[], None] | None = None
        """Has the coordinator's event loop run what became ready."""
        self.violation: Violation | None = None
        self._awaited: dict[str, list[Callable[[], None]]] = {}
        self._heap: list[tuple[float, int, Process, Callable[..., Any], tuple[Any, ...]]] = []
        self._pushed = 0

    def trace(self, text: str) -> None:
        if self.tracing:
            self.trace_lines.append(f"{self.now:9.4f}  {text}")

    def fail(self, text: str) -> None:
        """Record a violation; the history ends with the first."""
        if self.violation is None:
            self.violation = Violation(text)
            self.trace(f"VIOLATION: {text}")

    # Events

    def at(self, when: float, process: Process, act: Callable[..., Any], *args: Any) -> None:
        self._pushed += 1
        heapq.heappush(self._heap, (when, self._pushed, process, act, args))

    def after(self, delay_s: float, process: Process, act: Callable[..., Any], *args: Any) -> None:
        self.at(self.now + delay_s, process, act, *args)

    def run(self, finished: Callable[[], bool], until: float) -> bool:
        """Have events happen until it is `finished`, which it returns, or the time is over."""
        heap = self._heap
        while heap and self.violation is None:
            if finished():
                return True
            when, _, process, act, args = heapq.heappop(heap)
            if when > until:
                self.at(when, process, act, *args)
                return False
            if not process.alive:
                continue
            if process.frozen_until > when:
                self.at(process.frozen_until, process, act, *args)
                continue
            self.events += 1
            if self.events > EVENTS_MAX:
                self.fail(f"no end after {EVENTS_MAX} events: something goes on for ever")
                return False
            self.now = when
            self.process = process
            act(*args)
            # What happens at the same moment is seen in the same round of the event loop.
            if self.wakeful is not None and not (heap and heap[0][0] == when and heap[0][2] is process):
                self.wakeful()
        return finished()

    # Points: what a plan of faults waits for

    def reached(self, point: str) -> None:
        """Something happens that a plan may wait for; it goes on in an event of its own, at the same moment."""
        if self._awaited:
            for wake in self._awaited.pop(point, ()):
                self.at(self.now, self.outside, wake)

    def wait_for(self, point: str, timeout_s: float) -> bool:
        """Whether the point was reached in time; for a thread."""
        thread = self.thread
        assert thread is not None, "only threads wait"
        is_reached: bool | None = None

        def go_on(outcome: bool) -> None:
            nonlocal is_reached
            if is_reached is None:
                is_reached = outcome
                thread.resume()

        self._awaited.setdefault(point, []).append(lambda: go_on(True))
        self.after(timeout_s, thread.process, go_on, False)
        thread.suspend()
        return bool(is_reached)

    # Threads

    def pause(self) -> None:
        """A point at which a thread may be interrupted for a while, or its process killed."""
        if self.thread is not None and self.choices.byte() >= 256 - PAUSE_OF_256:
            self.sleep(self.choices.delay_s())

    def sleep(self, delay_s: float) -> None:
        thread = self.thread
        assert thread is not None, "only threads sleep"
        self.after(delay_s, thread.process, thread.resume)
        thread.suspend()


class Thread:
    """Stands in for threading.Thread, in the process that makes it."""

    def __init__(
        self,
        target: Callable[..., Any],
        name: str = "",
        daemon: bool | None = None,
        args: tuple[Any, ...] = (),
        process: Process | None = None,
    ) -> None:
        self.world = World.current
        self.process = process or self.world.process
        self.name = name
        self._target, self._args = target, args
        self._greenlet = greenlet(self._run, self.world.hub)
        self._joining: list[Thread] = []
        self.finished = False

    def start(self) -> None:
        self.process.threads[self] = None
        self.world.after(0.0, self.process, self.resume)

    def _run(self) -> None:
        try:
            self._target(*self._args)
        except GreenletExit:
            pass
        except Violation as violation:
            self.world.fail(str(violation))
        except Exception as error:
            self.world.fail(f"thread {self.name} ended with {error!r}")
        finally:
            self.finished = True
            self.process.threads.pop(self, None)
            if self.process.alive:
                for other in self._joining:
                    self.world.after(0.0, other.process, other.resume)

    def resume(self) -> None:
        """Have it go on; for the scheduler."""
        if self.finished:
            return
        before, self.world.thread = self.world.thread, self
        self._greenlet.switch()
        self.world.thread = before

    def suspend(self) -> None:
        """Stop here until `resume`; for the thread itself."""
        if not self.process.alive:
            raise GreenletExit
        self.world.hub.switch()
        if not self.process.alive:
            raise GreenletExit
        self.world.process = self.process

    def kill(self) -> None:
        self.finished = True
        if self._greenlet:
            before, self.world.thread = self.world.thread, self
            self._greenlet.throw(GreenletExit)
            self.world.thread = before

    def join(self, timeout: float | None = None) -> None:
        if not self.finished:
            waiting = self.world.thread
            assert waiting is not None
            self._joining.append(waiting)
            waiting.suspend()

    def is_alive(self) -> bool:
        return not self.finished


class Lock:
    """Stands in for threading.Lock: first come, first served."""

    __slots__ = ("_held", "_waiting")

    def __init__(self) -> None:
        self._held = False
        self._waiting: deque[Thread] = deque()

    def acquire(self) -> bool:
        if not self._held:
            self._held = True
            return True
        thread = World.current.thread
        assert thread is not None, "a lock is awaited outside of every thread"
        self._waiting.append(thread)
        thread.suspend()  # who releases the lock hands it over
        return True

    def release(self) -> None:
        while self._waiting:
            thread = self._waiting.popleft()
            if thread.process.alive:
                World.current.after(0.0, thread.process, thread.resume)
                return
        self._held = False

    def locked(self) -> bool:
        return self._held

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class Event:
    """Stands in for threading.Event."""

    def __init__(self) -> None:
        self._set = False
        self._waiting: dict[Thread, None] = {}

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        for thread in list(self._waiting):
            self._wake(thread)

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        if self._set:
            return True
        world = World.current
        thread = world.thread
        assert thread is not None
        self._waiting[thread] = None
        if timeout is not None:
            world.after(timeout, thread.process, self._expire, thread, token := object())
            self._tokens = {**getattr(self, "_tokens", {}), thread: token}
        thread.suspend()
        return self._set

    def _wake(self, thread: Thread) -> None:
        if thread in self._waiting:
            del self._waiting[thread]
            World.current.after(0.0, thread.process, thread.resume)

    def _expire(self, thread: Thread, token: object) -> None:
        if self._tokens.get(thread) is token and thread in self._waiting:
            del self._waiting[thread]
            thread.resume()


class Clock:
    """Stands in for the module `time`."""

    @staticmethod
    def monotonic() -> float:
        return World.current.now

    perf_counter = monotonic

    @staticmethod
    def monotonic_ns() -> int:
        return round(World.current.now * 1e9)

    @staticmethod
    def time() -> float:
        world = World.current
        return EPOCH_S + world.now + world.wall_offset_s

    @staticmethod
    def time_ns() -> int:
        return int(Clock.time() * 1e9)

    @staticmethod
    def sleep(seconds: float) -> None:
        World.current.sleep(seconds)
