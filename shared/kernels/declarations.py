"""What modules declare of kernels and of functions for them. Nothing here compiles or loads one."""

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
"""Of the files in the cache; another one gives them other names."""


class Declared(ABC):
    """A function of arrays with one declared signature. `options`: of numba's `njit`."""

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
        """Load the function from the cache on disk, or compile it, unless that is done already."""

    def name(self) -> str | None:
        """Of its files in the cache; None for a function whose source is in no file, which is not kept."""
        if self._name is None:
            self._name = name_of(self.function, "kernel", self.signature, self.options)
        return self._name


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


def name_of(function: Callable[..., Any], kind: str, signature: Any, options: dict[str, Any]) -> str | None:
    """Of the files that the cache on disk has of a function; None if its source is in no file."""
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
