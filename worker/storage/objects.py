"""Objects as files of a directory, one file for each: the local implementation of `worker.storage.faces.Objects`.

The draft of the object `STEM.SUFFIX` is the file `STEM.writing`. The name of an object that was set aside ends in
`.damaged`, `.damaged-2`, and so on.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from shared import durable
from shared.durable import DAMAGED, FILE_MODE, make_directory, sync_directory, write_atomically, write_synced
from shared.wire import Frame
from worker.storage.faces import Listed, NotOpened, ObjectState

T = TypeVar("T")

UNFINISHED = ".writing"


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, mode=FILE_MODE)


def _state(name: str) -> ObjectState:
    if DAMAGED in name:
        return ObjectState.SET_ASIDE
    return ObjectState.DRAFT if name.endswith(UNFINISHED) else ObjectState.WHOLE


class LocalDraft:
    """See `worker.storage.faces.Draft`."""

    def __init__(self, target: Path) -> None:
        self._target = target
        self._unfinished = target.with_suffix(UNFINISHED)
        self._file = open(self._unfinished, "xb", opener=_open_private)  # noqa: SIM115 (closed by finish or abandon)

    def write(self, data: Frame) -> None:
        self._file.write(data)

    def finish(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()

    def publish(self) -> None:
        os.rename(self._unfinished, self._target)

    def abandon(self) -> None:
        with suppress(OSError):  # a full disk refuses the buffered bytes again, which are not needed
            self._file.close()
        for path in (self._unfinished, self._target):
            path.unlink(missing_ok=True)


class LocalObjects:
    """See `worker.storage.faces.Objects`. A place is a directory, and a place within it a subdirectory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._prefix = f"{directory}/"

    def prepare(self) -> None:
        make_directory(self._directory)

    def within(self, name: str) -> LocalObjects:
        return LocalObjects(self._directory / name)

    def location(self, name: str = "") -> str:
        return str(self._directory / name)

    def list(self) -> list[Listed]:
        try:
            names = sorted(os.listdir(self._directory))
        except (FileNotFoundError, NotADirectoryError):
            return []
        return [Listed(name, _state(name)) for name in names]

    def exists(self, name: str) -> bool:
        return (self._directory / name).exists()

    def size(self, name: str) -> int:
        return os.stat(self._prefix + name).st_size

    def read(self, name: str, at: int, size: int) -> bytes:
        try:
            descriptor = os.open(self._prefix + name, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise NotOpened(error.errno, error.strerror, error.filename) from error
        try:
            return os.pread(descriptor, size, at)
        finally:
            os.close(descriptor)

    def get(self, name: str) -> bytes:
        return (self._directory / name).read_bytes()

    def draft(self, name: str) -> LocalDraft:
        return LocalDraft(self._directory / name)

    def put(self, name: str, content: bytes) -> None:
        write_synced(self._directory / name, content)

    def put_by_path(self, name: str, write: Callable[[Path], object]) -> None:
        path = self._directory / name
        write(path)
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def get_by_path(self, name: str, read: Callable[[Path], T]) -> T:
        return read(self._directory / name)

    def replace(self, name: str, content: bytes) -> None:
        write_atomically(self._directory / name, content)

    def sync_names(self) -> None:
        sync_directory(self._directory)

    def delete(self, name: str) -> None:
        (self._directory / name).unlink(missing_ok=True)

    def remove(self) -> None:
        shutil.rmtree(self._directory, ignore_errors=True)

    def set_aside(self, name: str) -> str:
        return str(durable.set_aside(self._directory / name))
