"""Futures that call back in the same iteration of the event loop in which they complete.

asyncio's futures call their callbacks in the next iteration, and tasks that wait for them continue then. Under load, an
iteration takes about 1 ms, since everything that has arrived is read first. A request that passes through six futures
would wait for six iterations.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import Context, copy_context
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")


class PromptFuture(asyncio.Future[T]):
    """A future that calls one function as soon as its result or error is set. Other waiters, and the function in case
    of a cancellation, are called in the next iteration. For the event loop's thread only."""

    def __init__(self) -> None:
        super().__init__(loop=asyncio.get_running_loop())
        self._call: Callable[[PromptFuture[T]], object] | None = None
        self._context: Context | None = None

    def at_once(self, call: Callable[[PromptFuture[T]], object]) -> None:
        """Call `call` in the current context when this is done. May be used only once."""
        assert self._call is None, "only one function is called at once"
        if self.done():
            self.get_loop().call_soon(call, self)
        else:
            self._call, self._context = call, copy_context()

    def set_result(self, result: T) -> None:
        super().set_result(result)
        self._call_back()

    def set_exception(self, exception: type[BaseException] | BaseException) -> None:
        super().set_exception(exception)
        self._call_back()

    def cancel(self, msg: Any = None) -> bool:
        is_cancelled = super().cancel(msg)
        if is_cancelled and self._call is not None:
            self.get_loop().call_soon(self._call_back)
        return is_cancelled

    def _call_back(self) -> None:
        call, self._call = self._call, None
        if call is None or self._context is None:
            return
        try:
            self._context.run(call, self)
        except Exception as error:  # must not reach the code that sets the result, which has other futures to complete
            message = f"{call!r} failed"
            self.get_loop().call_exception_handler({"message": message, "exception": error, "future": self})


class PromptTask(PromptFuture[T]):
    """The result of a coroutine, which runs in a task. Cancelling this future cancels the task; the future itself
    becomes cancelled when the task has ended."""

    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        super().__init__()
        self._task = self.get_loop().create_task(self._run(work))
        self._task.add_done_callback(partial(self._ended, work))

    async def _run(self, work: Coroutine[Any, Any, T]) -> None:
        try:
            result = await work
        except asyncio.CancelledError:
            super().cancel()
            raise
        except Exception as error:
            self.set_exception(error)
        else:
            self.set_result(result)

    def _ended(self, work: Coroutine[Any, Any, T], task: asyncio.Task[None]) -> None:
        if not self.done():  # it was cancelled before it began
            work.close()
            super().cancel()

    def cancel(self, msg: Any = None) -> bool:
        return self._task.cancel(msg)
