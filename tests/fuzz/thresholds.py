"""Sets sizes from which on a decoder takes another way, so that small inputs take it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType


@contextmanager
def lowered(name: str, value: int, *modules: ModuleType) -> Iterator[None]:
    """Within it, the modules' constant `name` has this value."""
    before = [getattr(module, name) for module in modules]
    for module in modules:
        setattr(module, name, value)
    try:
        yield
    finally:
        for module, old in zip(modules, before, strict=True):
            setattr(module, name, old)
