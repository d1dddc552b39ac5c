"""Kernels: functions of arrays that are compiled to machine code, each for one declared type signature.

A kernel is loaded from the cache on disk (`shared.kernel_cache`), or compiled if it is not there
(`shared.kernel_compiler`), when a process prepares itself (`compile_first`, `load_all`, `compile_all`), when another
kernel that calls it is compiled, or at the latest by its first call. Nothing is compiled when a module is imported.
"""

from __future__ import annotations

import hashlib
import importlib
import re
from collections.abc import Callable, Iterable, Sequence
from functools import update_wrapper
from threading import RLock
from typing import Any, ClassVar, overload

from shared import kernel_cache, kernel_calls, kernel_sources, machine_code
from shared.kernel_types import Signature
from shared.machine_code import MachineCode, ObjectCode

_registry: list[Kernel] = []

# One lock for all kernels: with one lock each, two threads that compile kernels which call each other could deadlock
# with numba's own lock.
_lock = RLock()

_shares_work = False
_FORM = 2
"""Of the files in the cache; another one gives them other names."""


class Kernel:
    """A function of arrays with one declared signature, called by Python and by other kernels alike.

    `is_first`: a process must have it before it takes requests. `options`: of numba's `njit`. `dispatcher` checks the
    types of arguments and calls the machine code; before the kernel is ready, it is the function itself.
    """

    def __init__(
        self, function: Callable[..., Any], signature: Signature, is_first: bool, options: dict[str, Any]
    ) -> None:
        if not isinstance(signature, Signature):
            raise TypeError(f"the signature of {function.__qualname__} is made of {type(signature)}: use kernel_types")
        update_wrapper(self, function)
        self.function = function
        self.signature = signature
        self.is_first = is_first
        self.options = options
        self._name: str | None = None
        self.dispatcher: Callable[..., Any] = function

    def __call__(self, *arguments: Any) -> Any:
        """The first call of a kernel that is not loaded yet."""
        self.compile()
        return self.dispatcher(*arguments)

    def compile(self) -> None:
        """Load the kernel from the cache on disk, or compile it, unless that is done already."""
        with _lock:
            if self.load():
                return
            # Kernels call each other in no circle, so processes that wait for each other's do not wait for ever.
            with kernel_cache.claimed(self.name() or "", wait=_shares_work):
                if self.load():
                    return
                if name := self.name():
                    kernel_cache.discard(name, "types")  # without code: what wrote them was ended in between
                self.become_ready(*machine_code.linked([_compiler().compile_kernel(self)])[0])

    def load(self) -> bool:
        """Load the kernel from the cache on disk, unless that is done already. Returns False if it is not there."""
        return _load([self]) == 0

    def compile_unless_claimed(self) -> bool:
        """As `compile`. Returns False, and does nothing, while another process compiles the kernel."""
        if self.load():
            return True
        with kernel_cache.claimed(self.name() or "") as is_mine:
            if is_mine:
                self.compile()
            return is_mine

    def is_ready(self) -> bool:
        return type(self) is not Kernel

    def name(self) -> str | None:
        """Of the kernel's files in the cache; None for a function whose source is in no file, which is not kept."""
        with _lock:
            if self._name is None:
                self._name = _name_of(self.function, "kernel", self.signature, self.options)
            return self._name

    def become_ready(self, address: int, environment: Any) -> None:
        """Be the machine code at this address."""
        entry_point = kernel_calls.entry_point(self.function, address, environment)
        self.dispatcher = kernel_calls.CompiledCall(self.function, self.signature, entry_point)
        # Python looks for `__call__` in the class: with a class of its own a compiled kernel is called without a
        # Python frame in between, in 20 ns more than the dispatcher instead of 150.
        self.__class__ = type("CompiledKernel", (Kernel,), {"__call__": staticmethod(self.dispatcher)})


class Inlined:
    """A function that is compiled as a part of the kernels that call it. Called by Python, it is not compiled."""

    def __init__(self, function: Callable[..., Any], options: dict[str, Any]) -> None:
        update_wrapper(self, function)
        self.function, self.options = function, options

    def __call__(self, *arguments: Any) -> Any:
        return self.function(*arguments)


class Intrinsic:
    """A function for kernels that says which instructions it is; see `numba.extending.intrinsic`. `function` imports
    what it needs of numba when it is called."""

    all: ClassVar[list[Intrinsic]] = []

    def __init__(self, function: Callable[..., Any]) -> None:
        update_wrapper(self, function)
        self.function = function
        self.all.append(self)

    def __call__(self, *_: Any) -> Any:
        raise TypeError(f"{self.function.__name__} is for compiled kernels only")


class NumbaFunction:
    """A function that numba has for kernels, by its name there."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, *arguments: Any) -> Any:
        return getattr(importlib.import_module("numba"), self.name)(*arguments)


def kernel(
    signature: Any, *, first: bool = False, allocates: bool = True, **options: Any
) -> Callable[[Callable[..., Any]], Kernel]:
    """Declare a kernel, which releases the interpreter lock while it runs.

    Arguments that are only read are declared as arrays with `readonly=True`, to which writable ones are converted.
    `first`: requests such as writes need the kernel at once, so a process compiles it before it takes requests.
    `allocates`: a kernel that makes no arrays need not count references to those it gets, which costs two atomic
    operations for each of them and each call, more than most small kernels do; one that makes some does not compile
    without. `options` go to `numba.njit`.
    """

    def declare(function: Callable[..., Any]) -> Kernel:
        declared = Kernel(function, signature, first, {**_memory(allocates), **options})
        _registry.append(declared)
        return declared

    return declare


@overload
def inlined(function: Callable[..., Any], /) -> Any: ...
@overload
def inlined(*, allocates: bool = True, **options: Any) -> Callable[[Callable[..., Any]], Any]: ...
def inlined(function: Callable[..., Any] | None = None, /, *, allocates: bool = True, **options: Any) -> Any:
    """Declare a function that is inlined into the kernels that call it and gets its types from them; `allocates` and
    `options` as for `kernel`."""

    def decorate(function: Callable[..., Any]) -> Inlined:
        return Inlined(function, {"forceinline": True, **_memory(allocates), **options})

    return decorate if function is None else decorate(function)


def _memory(allocates: bool) -> dict[str, bool]:
    return {} if allocates else {"_nrt": False}


def c_function(signature: Signature, function: Callable[..., Any]) -> int:
    """The address of the function compiled for C to call, valid as long as the process."""
    name = _name_of(function, "C", signature, {})
    with _lock:
        code = _stored(name)
        if code is None:
            code = _compiler().compile_for_c(function, signature)
            if name is not None:
                kernel_cache.write(name, "code", machine_code.encoded(code))
        return machine_code.linked([code])[0][0]


def _load(kernels: Iterable[Kernel]) -> int:
    """Load those of them that the cache on disk has. Returns how many it does not have."""
    with _lock:
        waiting = [(each, _stored(each.name())) for each in kernels if not each.is_ready()]
        stored = [(each, code) for each, code in waiting if code is not None]
        for (each, _), place in zip(stored, machine_code.linked([code for _, code in stored]), strict=True):
            each.become_ready(*place)
        return len(waiting) - len(stored)


def _compiler() -> Any:
    """The module that compiles, which imports this one, and all of numba."""
    return importlib.import_module("shared.kernel_compiler")


def _stored(name: str | None) -> MachineCode | ObjectCode | None:
    data = kernel_cache.read(name, "code") if name else None
    return None if data is None else machine_code.decoded(data)


def _name_of(function: Callable[..., Any], kind: str, signature: Any, options: dict[str, Any]) -> str | None:
    sources = kernel_sources.digest(function.__module__)
    if sources is None:
        return None
    place = f"{function.__module__}.{function.__qualname__}"
    line = function.__code__.co_firstlineno
    # A set has its elements in another order in each process.
    told = sorted((name, sorted(given) if isinstance(given, set) else given) for name, given in options.items())
    parts = (_FORM, place, line, kind, str(signature), told)
    digest = hashlib.sha256(sources + machine_code.processor() + repr(parts).encode())
    return f"{re.sub('[^A-Za-z0-9_.]', '_', place)}-{digest.hexdigest()[:24]}"


def compile_first() -> int:
    """Load or compile the kernels that a process needs before it takes requests, of all modules imported so far.
    Returns how many there are."""
    kernels = [declared for declared in _registry if declared.is_first]
    _compile(kernels)
    return len(kernels)


def load_all() -> int:
    """Load the kernels that the cache on disk has, of all modules imported so far. Returns how many it lacks."""
    return _load(_registry)


def compile_all(*, shares_work: bool = False) -> int:
    """Load or compile every kernel of the modules imported so far. Compiling all takes a minute or more. A thread that
    calls a kernel meanwhile waits for at most one other. `shares_work`: wait for other processes that compile what this
    one needs, instead of compiling it as well; only for a process that does nothing else. Returns how many there are.
    """
    global _shares_work
    _shares_work = shares_work
    _compile(kernels := list(_registry))
    return len(kernels)


def ready_count() -> tuple[int, int]:
    """How many kernels of the modules imported so far the cache on disk has, and how many there are."""
    names = [declared.name() for declared in _registry]
    return sum(name is not None and kernel_cache.has(name, "code") for name in names), len(names)


def _compile(kernels: Sequence[Kernel]) -> None:
    _load(kernels)
    claimed_by_others = [each for each in kernels if not each.compile_unless_claimed()]
    for each in claimed_by_others:
        each.compile()
