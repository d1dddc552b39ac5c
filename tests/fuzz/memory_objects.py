"""Objects in memory, for targets that read them: to write a file takes longer than to read it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from worker.storage.faces import Listed, NotOpened, ObjectState

T = TypeVar("T")


class MemoryObjects:
    """What `worker.storage.faces.Objects` has for reading. `contents`: by name; `places`: those within this one;
    `paths`: the files of the objects that are read by path."""

    def __init__(
        self,
        contents: Mapping[str, bytes],
        places: Mapping[str, MemoryObjects] | None = None,
        paths: Mapping[str, Path] | None = None,
    ) -> None:
        self._contents = contents
        self._places = places or {}
        self._paths = paths or {}

    def within(self, name: str) -> MemoryObjects:
        return self._places[name]

    def location(self, name: str = "") -> str:
        return f"memory/{name}"

    def list(self) -> list[Listed]:
        return [Listed(name, ObjectState.WHOLE) for name in sorted({*self._contents, *self._places})]

    def exists(self, name: str) -> bool:
        return name in self._contents

    def size(self, name: str) -> int:
        return len(self.get(name))

    def read(self, name: str, at: int, size: int) -> bytes:
        if at < 0 or size < 0:
            raise OSError(22, "Invalid argument")  # as pread does
        return self.get(name)[at : at + size]

    def get(self, name: str) -> bytes:
        if name not in self._contents:
            raise NotOpened(2, "No such file or directory", name)
        return self._contents[name]

    def get_by_path(self, name: str, read: Callable[[Path], T]) -> T:
        return read(self._paths[name])

    def remove(self) -> None:
        self._contents = {}
