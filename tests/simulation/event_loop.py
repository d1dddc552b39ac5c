"""The coordinator's event loop in virtual time: asyncio's tasks and futures over the events of the world.

Callbacks run in the order they were scheduled, as asyncio promises; only when messages, timers and threads come in is
open.
"""

from __future__ import annotations

import asyncio
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any

from tests.simulation.world import Process, Thread, World


class Loop(asyncio.AbstractEventLoop):
    """Runs in a thread of the process of its own, so that it stands still where it waits for a lock."""

    def __init__(self, world: World, process: Process) -> None:
        self._world = world
        self._process = process
        self._ready: deque[asyncio.Handle] = deque()
        self._idle = False
        self.tasks: list[asyncio.Task[Any]] = []
        self._thread = Thread(self._main, "event loop", process=process)
        self._thread.start()
        world.wakeful = self.wake

    def _main(self) -> None:
        ready = self._ready
        try:
            while self._process.alive:
                events._set_running_loop(self)
                while ready and self._process.alive:
                    handle = ready.popleft()
                    if not handle._cancelled:  # type: ignore[attr-defined]
                        handle._run()
                events._set_running_loop(None)
                self._idle = True
                self._thread.suspend()
        finally:
            events._set_running_loop(None)

    def wake(self) -> None:
        if self._idle and self._ready and self._process.alive and self._process.frozen_until <= self._world.now:
            self._idle = False
            self._world.process = self._process
            self._thread.resume()

    # What asyncio asks of a loop

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._world.now + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._world.at(max(when, self._world.now), self._process, self._expire, handle)
        return handle

    def _expire(self, handle: asyncio.TimerHandle) -> None:
        if not handle._cancelled:  # type: ignore[attr-defined]
            self._ready.append(handle)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        pass

    def time(self) -> float:
        return self._world.now

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Coroutine[Any, Any, Any], **_: Any) -> asyncio.Task[Any]:  # type: ignore[override]
        task = asyncio.Task(coro, loop=self)
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # tasks die with their process
        self.tasks.append(task)
        return task

    def run_in_executor(self, executor: Any, work: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        future = self.create_future()

        def run() -> None:
            outcome: Any = None
            error: Exception | None = None
            try:
                outcome = work(*args)
            except Exception as raised:
                error = raised
            self.call_soon(settle, outcome, error)

        def settle(outcome: Any, error: Exception | None) -> None:
            if not future.done():
                future.set_result(outcome) if error is None else future.set_exception(error)

        thread = Thread(run, "to_thread", process=self._process)
        self._process.threads[thread] = None
        self._world.after(self._world.choices.delay_s(), self._process, thread.resume)
        return future

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if self._process.alive:
            self._world.fail(f"an error reached the event loop: {context.get('exception') or context.get('message')!r}")
