"""Makes methods from the definitions, for the client that waits and for the one that is awaited."""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncIterator, Awaitable, Iterator
from typing import TYPE_CHECKING, Any, Callable, TypeVar

from triptych.calls import Call, Reading, Steps

if TYPE_CHECKING:
    from typing_extensions import Concatenate, ParamSpec

    P = ParamSpec("P")

T = TypeVar("T")


def sent(define: Callable[P, Call[T]]) -> Callable[Concatenate[Any, P], T]:
    """The method that makes one request."""
    return _method(define, lambda area, call: area.client.send(call))


def run(define: Callable[P, Steps[T]]) -> Callable[Concatenate[Any, P], T]:
    """The method that makes several requests."""
    return _method(define, lambda area, steps: area.client.run(steps))


def iterated(define: Callable[P, Reading[T]]) -> Callable[Concatenate[Any, P], Iterator[T]]:
    """The method whose result is read while the caller loops over it."""
    return _method(define, lambda area, reading: area.client.iterate(reading))


def async_sent(define: Callable[P, Call[T]]) -> Callable[Concatenate[Any, P], Awaitable[T]]:
    return _method(define, lambda area, call: area.client.send(call))


def async_run(define: Callable[P, Steps[T]]) -> Callable[Concatenate[Any, P], Awaitable[T]]:
    return _method(define, lambda area, steps: area.client.run(steps))


def async_iterated(define: Callable[P, Reading[T]]) -> Callable[Concatenate[Any, P], AsyncIterator[T]]:
    return _method(define, lambda area, reading: area.client.iterate(reading))


def _method(define: Callable[..., Any], perform: Callable[[Any, Any], Any]) -> Any:
    """Give the method the name, the parameters and the text of its definition, for `help()` and for editors."""

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return perform(self, define(*args, **kwargs))

    functools.update_wrapper(method, define)
    signature = inspect.signature(define)
    self_parameter = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    method.__signature__ = signature.replace(parameters=[self_parameter, *signature.parameters.values()])  # type: ignore[attr-defined]
    return method
