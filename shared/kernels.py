"""Compiled kernels: declared with their one type signature, compiled when asked for or when first called.

A first start would wait half a minute if every kernel were compiled at import. So each belongs to a stage: what a
process needs before it can serve is compiled (or loaded from numba's cache on disk) at start, the rest by a background
process of low priority, or by the first call that comes before it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeVar

from numba import njit

Stage = Literal["start", "later"]
F = TypeVar("F", bound=Callable[..., Any])

_declared: dict[Stage, list[tuple[Any, Any]]] = {"start": [], "later": []}


def kernel(signature: Any, *, stage: Stage = "later", **options: Any) -> Callable[[F], F]:
    """Declare a kernel: releases the interpreter lock, cached on disk, compiled for `signature` at its stage.

    `options` go to `numba.njit`. Kernels that only other kernels call are compiled with them and need no stage.
    """

    def declare(function: F) -> F:
        dispatcher = njit(cache=True, nogil=True, **options)(function)
        _declared[stage].append((dispatcher, signature))
        return dispatcher

    return declare


def compile_stage(stage: Stage) -> int:
    """Compile, or load from the cache, what the imported modules declared for `stage`; returns how many kernels."""
    for dispatcher, signature in _declared[stage]:
        dispatcher.compile(signature)
    return len(_declared[stage])
