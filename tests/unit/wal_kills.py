"""A process that is killed between two steps of what it does to the disk, for tests."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

STEPS = (
    "open",
    "mkdir",
    "replace",
    "rename",
    "unlink",
    "rmdir",
    "pwrite",
    "pwritev",
    "fsync",
    "fdatasync",
    "ftruncate",
    "posix_fallocate",
)


class Killed(BaseException):
    """What a process that is killed does next."""


@contextlib.contextmanager
def killed_at(call: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The process ends before its `call`-th step that changes the disk; the steps so far."""
    steps: list[str] = []

    def patched(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def step(*arguments: Any, **options: Any) -> Any:
            if name == "open" and not arguments[1] & (os.O_CREAT | os.O_TRUNC):
                return original(*arguments, **options)
            if len(steps) >= call:
                raise Killed(f"before {name}")
            steps.append(name)
            return None if name in ("fsync", "fdatasync") else original(*arguments, **options)

        return step

    for name in STEPS:
        monkeypatch.setattr(os, name, patched(name, getattr(os, name)))
    try:
        yield steps
    except Killed:
        steps.append("killed")
    finally:
        monkeypatch.undo()
