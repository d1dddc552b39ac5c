"""What can happen to an implementation of storage that keeps its data in files: a disk that refuses, the death of the
process between any two steps, damage. The suites of the faces (`test_face_*.py`) ask for it by the face's own words, so
that another implementation brings faults of its own."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

STEPS = ("open", "mkdir", "replace", "rename", "unlink", "pwrite", "pwritev", "fsync", "fdatasync", "ftruncate")
"""Calls that change what is on the disk."""
REFUSALS = {
    "create": ("open",),
    "write": ("open",),
    "append": ("pwritev",),
    "sync": ("fsync", "fdatasync"),
    "rename": ("rename", "replace"),
}
"""What a disk can refuse, and with which calls."""


class Killed(BaseException):
    """What a process that is killed does next."""


def _creates(name: str, arguments: tuple[Any, ...]) -> bool:
    return name != "open" or bool(arguments[1] & os.O_CREAT)


@contextmanager
def killed_before(step: int) -> Iterator[list[str]]:
    """The process dies before its `step`-th change of the disk; the changes until then. Raises Killed inside."""
    steps: list[str] = []

    def counted(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            if _creates(name, arguments):
                if len(steps) >= step:
                    raise Killed(f"before {name}")
                steps.append(name)
            return original(*arguments, **options)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in STEPS:
            patch.setattr(os, name, counted(name, getattr(os, name)))
        yield steps


@contextmanager
def refusing(what: str) -> Iterator[None]:
    """The disk refuses (see REFUSALS): no file can be made, what is written to a new one or appended has no room,
    or syncs or renames fail."""

    def refuse(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            if not _creates(name, arguments):
                return original(*arguments, **options)
            if what == "write":
                original(*arguments, **options)
                return original("/dev/full", os.O_WRONLY)
            raise OSError(errno.ENOSPC if what == "create" else errno.EIO, "the disk refuses")

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in REFUSALS[what]:
            patch.setattr(os, name, refuse(name, getattr(os, name)))
        yield


@contextmanager
def out_of_descriptors() -> Iterator[None]:
    """Nothing can be opened, though nothing is wrong with the disk."""

    def refuse(*_: Any, **__: Any) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "open", refuse)
        yield


def cut(location: str, size_bytes: int) -> None:
    """The file has lost its end."""
    os.truncate(location, size_bytes)


def flip(location: str, at: int) -> None:
    """A bit of the byte at a place is another one."""
    content = bytearray(Path(location).read_bytes())
    content[at] ^= 1
    Path(location).write_bytes(content)
