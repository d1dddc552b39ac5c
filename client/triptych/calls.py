"""Requests and the reading of their answers, without any input or output: both clients send the same requests.

A method of a client is defined once, in one of three forms:

- a function that returns a `Call`, for one request;
- a generator of `Steps`, for several: it yields calls, receives their results, and returns the result;
- a generator of a `Reading`: it yields calls, too, and between them lists of items for the caller's loop.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Generic,
    TypeVar,
    Union,
)
from urllib.parse import urlencode

from triptych.errors import ServerError
from triptych.remarks import announce

if TYPE_CHECKING:
    from typing_extensions import ParamSpec

    P = ParamSpec("P")

try:
    from orjson import loads  # several times as fast, where it is installed
except ImportError:
    from json import loads  # type: ignore[assignment]

T = TypeVar("T")
U = TypeVar("U")
Parameters = list[tuple[str, str]]
JSON = "application/json"
PROTOBUF = "application/protobuf"
ARROW = "application/vnd.apache.arrow.stream"
FORM = "application/x-www-form-urlencoded"


@dataclass(frozen=True)
class ServerResponse:
    """`headers`: with names in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> dict[str, Any]:
        """The body, whose warnings are passed on to the caller. Raises ServerError if it is not a JSON object."""
        try:
            content = loads(self.body)
        except ValueError as error:
            raise ServerError(f"the answer is not JSON: {error}") from error
        if not isinstance(content, dict):
            raise ServerError(f"the answer is {type(content).__name__}; it must be a JSON object")
        announce(content.get("warnings", ()))
        return content


@dataclass(frozen=True)
class Call(Generic[T]):
    """One request. `target`: path and query; `read`: what the answer to it means.

    `repeatable`: sending it twice does what sending it once does.
    `changes`: it changes data, so a repeat completes what an attempt that ran out of time has begun.
    `wait_s`: how long the server may hold its answer back, beside the time that a request may take.
    `endless`: it is repeated until the server is back, however long that takes.
    `arrow`: `read` understands an Arrow stream as well.
    """

    method: str
    target: str
    read: Callable[[ServerResponse], T]
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    repeatable: bool = True
    changes: bool = False
    wait_s: float = 0.0
    endless: bool = False
    arrow: bool = False

    def asking_for_arrow(self) -> Call[T]:
        """The same call, whose answer may be an Arrow stream."""
        if not self.arrow:
            return self
        return replace(self, headers={**self.headers, "Accept": f"{ARROW}, {JSON};q=0.5"})


Steps = Generator[Call[Any], Any, T]
Reading = Generator[Union[Call[Any], Sequence[T]], Any, None]


def flattened(define: Callable[P, Reading[Iterable[T]]], name: str, doc: str) -> Callable[P, Reading[T]]:
    """The same reading, which yields the elements of its items."""

    def reading(*args: P.args, **kwargs: P.kwargs) -> Reading[T]:
        answer: Any = None
        inner = define(*args, **kwargs)
        while True:
            try:
                step = inner.send(answer)
            except StopIteration:
                return
            answer = yield step if isinstance(step, Call) else [item for items in step for item in items]

    return _with_parameters_of(define, reading, name, doc)


def gathered(
    define: Callable[P, Reading[T]], join: Callable[[list[T]], U], name: str, doc: str
) -> Callable[P, Steps[U]]:
    """The result that `join` makes from all items of the reading."""

    def steps(*args: P.args, **kwargs: P.kwargs) -> Steps[U]:
        answer: Any = None
        inner = define(*args, **kwargs)
        items: list[T] = []
        while True:
            try:
                step = inner.send(answer)
            except StopIteration:
                return join(items)
            if isinstance(step, Call):
                answer = yield step
            else:
                items.extend(step)
                answer = None

    return _with_parameters_of(define, steps, name, doc)


def _with_parameters_of(define: Callable[P, Any], made: Callable[P, T], name: str, doc: str) -> Callable[P, T]:
    """`made` with the signature of `define`, for `help()` and for editors."""
    made.__name__ = made.__qualname__ = name
    made.__doc__ = doc
    made.__signature__ = inspect.signature(define)  # type: ignore[attr-defined]
    return made


class Closing(Exception):
    """Raised in a Reading whose caller has left its loop. It may still yield one call, and then ends."""


def resumed(steps: Generator[Any, Any, Any], outcome: Any) -> Any:
    """The next step, after a call with this result or error. Raises StopIteration at the end, which a coroutine could
    not do."""
    return steps.throw(outcome) if isinstance(outcome, Exception) else steps.send(outcome)


def last_call(reading: Reading[Any]) -> Call[Any] | None:
    """End the reading. Returns the call that tells the server so, if there is one."""
    try:
        step = reading.throw(Closing())
        reading.close()
    except (Closing, StopIteration):
        return None
    except ValueError:  # another thread executes it just now
        return None
    return step if isinstance(step, Call) else None


def target(path: str, parameters: Iterable[tuple[str, str]] = ()) -> str:
    query = urlencode(list(parameters))
    return f"{path}?{query}" if query else path


def as_json(data: Any) -> bytes:
    """Raises ValueError for NaN and infinite numbers, which JSON does not have."""
    return json.dumps(data, separators=(",", ":"), ensure_ascii=False, allow_nan=False, default=_plain).encode()


def _plain(value: Any) -> Any:
    """The JSON form of numpy's arrays and numbers."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{value!r} is {type(value).__name__}, which cannot be sent as JSON")


class Listing(list[T]):
    """A list from an answer. `warnings`: what is missing from it; `infos`: hints; `more`: whether it goes on."""

    def __init__(self, items: Iterable[T] = (), content: Mapping[str, Any] = {}) -> None:
        super().__init__(items)
        self.warnings: list[str] = list(content.get("warnings", ()))
        self.infos: list[str] = list(content.get("infos", ()))
        self.more = bool(content.get("more", False))
