"""Kernels: functions of arrays that are compiled to machine code, each for one declared type signature.

A kernel is compiled when a process warms up (`compile_first`, `compile_all`), when another kernel that calls it is
compiled, or at the latest by its first call. Nothing is compiled when a module is imported. The machine code is kept in
numba's cache on disk (`shared.kernel_cache`), from which every later process loads it. This is the only module that
makes numba dispatchers.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import update_wrapper
from threading import RLock
from typing import Any, overload

from numba import cfunc, njit, types
from numba.extending import typeof_impl

YIELD_S = 0.001
"""The pause between two kernels, in seconds: threads that wait for a lock do not get it if it is taken again at
once."""

_registry: list[Kernel] = []

# One lock for all kernels: with one lock each, two threads that compile kernels which call each other could deadlock
# with numba's own lock.
_lock = RLock()


class Kernel:
    """A function of arrays with one declared signature, called by Python and by other kernels alike.

    `is_first`: a process must have compiled it before it takes requests. `dispatcher` is numba's.
    """

    def __init__(self, function: Callable[..., Any], signature: Any, is_first: bool, options: dict[str, Any]) -> None:
        update_wrapper(self, function)
        self.signature = signature
        self.is_first = is_first
        self.dispatcher = njit(cache=True, nogil=True, **options)(function)

    def __call__(self, *arguments: Any) -> Any:
        """The first call of a kernel that is not compiled yet."""
        self.compile()
        return self.dispatcher(*arguments)

    def compile(self) -> None:
        """Compile the kernel, or load it from the cache on disk, unless that is done already."""
        with _lock:
            if type(self) is not Kernel:
                return
            self.dispatcher.compile(self.signature)
            # Arguments of other types are converted or refused; no other version is compiled for them.
            self.dispatcher.disable_compile()
            # Python looks for `__call__` in the class: with a class of its own a compiled kernel is called without a
            # Python frame in between, in 20 ns more than the dispatcher instead of 150.
            self.__class__ = type("CompiledKernel", (Kernel,), {"__call__": staticmethod(self.dispatcher)})


@typeof_impl.register(Kernel)
def _type_of_kernel(called: Kernel, _: Any) -> Any:
    """The numba type of a kernel that another kernel calls: its dispatcher, compiled for its own signature."""
    called.compile()
    return types.Dispatcher(called.dispatcher)


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
    decorate: Any = njit(**{"forceinline": True, **_memory(allocates), **options})
    return decorate if function is None else decorate(function)


def _memory(allocates: bool) -> dict[str, bool]:
    return {} if allocates else {"_nrt": False}


def c_function(signature: Any, function: Callable[..., Any]) -> Any:
    """The function compiled for C to call; its `address` is valid as long as what is returned exists."""
    return cfunc(signature, cache=True)(function)


def compile_first() -> int:
    """Compile the kernels that a process needs before it takes requests, of all modules imported so far. Returns how
    many there are."""
    kernels = [declared for declared in _registry if declared.is_first]
    for declared in kernels:
        declared.compile()
    return len(kernels)


def compile_all() -> int:
    """Compile every kernel of the modules imported so far, which takes a minute or more when the cache on disk is
    empty. A thread that calls a kernel meanwhile waits for at most one other. Returns how many there are."""
    kernels = list(_registry)
    for declared in kernels:
        declared.compile()
        time.sleep(YIELD_S)
    return len(kernels)
