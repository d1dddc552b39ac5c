"""Declarations of kernels and of the functions that they use. Nothing here compiles or loads a kernel."""

from __future__ import annotations

import hashlib
import importlib
import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import update_wrapper
from typing import Any, ClassVar

from shared.kernels import machine_code
from shared.kernels import sources as kernel_sources
from shared.kernels.types import Signature

_FORM = 2
"""The format of the files in the cache. It is part of their names."""


class Declared(ABC):
    """A function over arrays with one declared signature. `options` are those of numba's `njit`."""

    def __init__(self, function: Callable[..., Any], signature: Signature, options: dict[str, Any]) -> None:
        if not isinstance(signature, Signature):
            raise TypeError(
                f"the signature of {function.__qualname__} is made of {type(signature)}: use shared.kernels.types"
            )
        update_wrapper(self, function)
        self.function = function
        self.signature = signature
        self.options = options
        self._name: str | None = None

    @abstractmethod
    def __call__(self, *arguments: Any) -> Any: ...

    @abstractmethod
    def compile(self) -> None:
        """Load the function from the cache on disk, or compile it, unless it is ready."""

    def name(self) -> str | None:
        """The name of its files in the cache. None if its source is in no file; then it is not cached."""
        if self._name is None:
            self._name = name_of(self.function, "kernel", self.signature, self.options)
        return self._name


class Inlined:
    """A function that is compiled into the kernels that call it. Python calls it uncompiled."""

    def __init__(self, function: Callable[..., Any], options: dict[str, Any]) -> None:
        update_wrapper(self, function)
        self.function, self.options = function, options

    def __call__(self, *arguments: Any) -> Any:
        return self.function(*arguments)


class Intrinsic:
    """A function for kernels that generates its own instructions; see `numba.extending.intrinsic`. `function` imports
    what it needs from numba when it is called."""

    all: ClassVar[list[Intrinsic]] = []

    def __init__(self, function: Callable[..., Any]) -> None:
        update_wrapper(self, function)
        self.function = function
        self.all.append(self)

    def __call__(self, *_: Any) -> Any:
        raise TypeError(f"{self.function.__name__} is for compiled kernels only")


class NumbaFunction:
    """A function that numba provides for kernels, by its name in numba."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, *arguments: Any) -> Any:
        return getattr(importlib.import_module("numba"), self.name)(*arguments)


def name_of(function: Callable[..., Any], kind: str, signature: Any, options: dict[str, Any]) -> str | None:
    """The name of a function's files in the cache on disk. None if its source is in no file."""
    sources = kernel_sources.digest(function.__module__)
    if sources is None:
        return None
    full_name = f"{function.__module__}.{function.__qualname__}"
    line = function.__code__.co_firstlineno
    # The order of a set's elements differs between processes.
    ordered_options = sorted((name, sorted(v) if isinstance(v, set) else v) for name, v in options.items())
    parts = (_FORM, full_name, line, kind, str(signature), ordered_options)
    digest = hashlib.sha256(sources + machine_code.processor() + repr(parts).encode())
    return f"{re.sub('[^A-Za-z0-9_.]', '_', full_name)}-{digest.hexdigest()[:24]}"
