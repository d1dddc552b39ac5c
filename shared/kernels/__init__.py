"""Kernels: functions over arrays that are compiled to machine code, each for one declared type signature.

A kernel is loaded from the cache on disk (`shared.kernels.cache`), or compiled if the cache lacks it
(`shared.kernels.compiler`). This happens when a process prepares itself (`compile_first`, `load_all`, `compile_all`),
when another kernel that calls it is compiled, or at its first call. Importing a module compiles nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from threading import RLock
from typing import Any, overload

from shared.kernels import cache as kernel_cache
from shared.kernels import calls as kernel_calls
from shared.kernels import machine_code
from shared.kernels.declarations import Declared, Inlined, name_of
from shared.kernels.machine_code import MachineCode, ObjectCode
from shared.kernels.types import Signature

_registry: list[Kernel] = []

# One lock for all kernels: with a lock per kernel, two threads that compile kernels which call each other could
# deadlock on numba's own lock.
_lock = RLock()

_shares_work = False


class Kernel(Declared):
    """A function that both Python and other kernels can call.

    `is_first`: a process needs it before it accepts requests. `dispatcher` checks the types of arguments and calls the
    machine code; until the kernel is ready, it is the function itself.
    """

    def __init__(
        self, function: Callable[..., Any], signature: Signature, is_first: bool, options: dict[str, Any]
    ) -> None:
        super().__init__(function, signature, options)
        self.is_first = is_first
        self.dispatcher: Callable[..., Any] = function

    def __call__(self, *arguments: Any) -> Any:
        """Load or compile the kernel at its first call."""
        self.compile()
        return self.dispatcher(*arguments)

    def compile(self) -> None:
        with _lock:
            if self.load():
                return
            # The call graph of kernels has no cycles, so processes that wait for each other's kernels cannot deadlock.
            with kernel_cache.claimed(self.name() or "", wait=_shares_work):
                if self.load():
                    return
                from shared.kernels import compiler as kernel_compiler  # imports all of numba

                self.become_ready(*machine_code.linked([kernel_compiler.compile_kernel(self)])[0])

    def load(self) -> bool:
        """Load the kernel from the cache on disk unless it is loaded already. Returns False if the cache lacks it."""
        return _load([self]) == 0

    def compile_unless_claimed(self) -> bool:
        """Do what `compile` does, unless another process is compiling the kernel; then return False."""
        if self.load():
            return True
        with kernel_cache.claimed(self.name() or "") as is_mine:
            if is_mine:
                self.compile()
            return is_mine

    def is_ready(self) -> bool:
        return type(self) is not Kernel

    def become_ready(self, address: int, environment: Any) -> None:
        """Call the machine code at this address from now on."""
        entry_point = kernel_calls.entry_point(self.function, address, environment)
        self.dispatcher = kernel_calls.CompiledCall(self.function, self.signature, entry_point)
        # Python looks up `__call__` in the class. With a class of its own, a compiled kernel is called without a Python
        # frame in between, which adds 20 ns to the dispatcher's time instead of 150.
        self.__class__ = type("CompiledKernel", (Kernel,), {"__call__": staticmethod(self.dispatcher)})


def kernel(
    signature: Any, *, first: bool = False, allocates: bool = True, **options: Any
) -> Callable[[Callable[..., Any]], Kernel]:
    """Declare a kernel. It releases the interpreter lock while it runs.

    Declare arrays that are only read with `readonly=True`; writable arrays are accepted for them too. `first`: requests
    such as writes need the kernel at once, so a process compiles it before it accepts requests. `allocates`: whether
    the kernel creates arrays. If not, it need not count references to its arguments, which costs two atomic operations
    per array and call, more than most small kernels take. A kernel that creates arrays does not compile without it.
    `options` go to `numba.njit`.
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
    """Declare a function that is inlined into the kernels that call it and gets its types from them. `allocates` and
    `options`: see `kernel`."""

    def decorate(function: Callable[..., Any]) -> Inlined:
        return Inlined(function, {"forceinline": True, **_memory(allocates), **options})

    return decorate if function is None else decorate(function)


def _memory(allocates: bool) -> dict[str, bool]:
    return {} if allocates else {"_nrt": False}


def c_function(signature: Signature, function: Callable[..., Any]) -> int:
    """Compile the function for C. Returns its address, which is valid until the process ends."""
    name = name_of(function, "C", signature, {})
    with _lock:
        code = _stored(name)
        if code is None:
            from shared.kernels import compiler as kernel_compiler

            code = kernel_compiler.compile_for_c(function, signature)
            if name is not None:
                kernel_cache.write(name, "code", machine_code.encoded(code))
        return machine_code.linked([code])[0][0]


def _load(kernels: Iterable[Kernel]) -> int:
    """Load the kernels that the cache on disk has. Returns how many it lacks."""
    with _lock:
        not_ready = [(each, _stored(each.name())) for each in kernels if not each.is_ready()]
        stored = [(each, code) for each, code in not_ready if code is not None]
        for (each, _), linked_code in zip(stored, machine_code.linked([code for _, code in stored]), strict=True):
            each.become_ready(*linked_code)
        return len(not_ready) - len(stored)


def _stored(name: str | None) -> MachineCode | ObjectCode | None:
    data = kernel_cache.read(name, "code") if name else None
    return None if data is None else machine_code.decoded(data)


def compile_first() -> int:
    """Load or compile the kernels that a process needs before it accepts requests, in all modules imported so far.
    Returns their number."""
    kernels = [declared for declared in _registry if declared.is_first]
    _compile(kernels)
    return len(kernels)


def load_all() -> int:
    """Load all cached kernels of the modules imported so far. Returns how many kernels the cache lacks."""
    return _load(_registry)


def compile_all(*, shares_work: bool = False) -> int:
    """Load or compile every kernel of the modules imported so far. Returns their number.

    Compiling all takes a minute or more. A thread that calls a kernel meanwhile waits for at most one other kernel.
    `shares_work`: wait for another process that is compiling a kernel this one needs, instead of compiling it twice;
    only for a process that does nothing else.
    """
    global _shares_work
    _shares_work = shares_work
    _compile(kernels := list(_registry))
    return len(kernels)


def ready_count() -> tuple[int, int]:
    """(kernels that the cache on disk has, all kernels), of the modules imported so far."""
    names = [declared.name() for declared in _registry]
    return sum(name is not None and kernel_cache.has(name, "code") for name in names), len(names)


def _compile(kernels: Sequence[Kernel]) -> None:
    _load(kernels)
    claimed_by_others = [each for each in kernels if not each.compile_unless_claimed()]
    for each in claimed_by_others:
        each.compile()
