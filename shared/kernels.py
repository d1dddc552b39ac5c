"""Compiled kernels with one declared type signature, compiled when first called or when a process warms up.

A first start would wait half a minute if every kernel were compiled when its module is imported. What a process needs
before it can serve is compiled at import (`numba.njit` with a signature); everything else is declared with `kernel` and
compiled in the background by `compile_declared`, or by the first call that comes before it. Either way the machine code
lands in numba's cache on disk, from which every later process loads it.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Any

from numba import njit

_declared: list[Kernel] = []


class Kernel:
    """A function of arrays that compiles itself, for its declared signature only, at the latest when called."""

    def __init__(self, function: Callable[..., Any], signature: Any, options: dict[str, Any]) -> None:
        self.__doc__ = function.__doc__
        self._dispatcher = njit(cache=True, nogil=True, **options)(function)
        self._signature = signature
        self._compiled = False
        self._lock = Lock()

    def __call__(self, *arguments: Any) -> Any:
        if not self._compiled:
            self.compile()
        return self._dispatcher(*arguments)

    def compile(self) -> None:
        """Compile, or load from the cache on disk."""
        with self._lock:
            if not self._compiled:
                self._dispatcher.compile(self._signature)
                # Arguments that are not exactly of the signature are converted or refused, never compiled for.
                self._dispatcher.disable_compile()
                self._compiled = True


def kernel(signature: Any, **options: Any) -> Callable[[Callable[..., Any]], Kernel]:
    """Declare a kernel that Python calls; `options` go to `numba.njit`. It releases the interpreter lock."""

    def declare(function: Callable[..., Any]) -> Kernel:
        declared = Kernel(function, signature, options)
        _declared.append(declared)
        return declared

    return declare


def compile_declared() -> None:
    """Compile every kernel declared by the modules imported so far: some seconds each time the cache is empty."""
    for declared in list(_declared):
        declared.compile()
