"""Where a backup reads the files of a view: from the data directory if this process may, otherwise through HTTP."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from shared.data_files import files_below

PIECE_BYTES = 1 << 20


class Api(Protocol):
    """The client of the cluster's HTTP interface (`coordinator.command_client.Client`)."""

    def call(self, method: str, path: str, body: Any = None, **parameters: str | int) -> Any: ...

    def again(self) -> Api:
        """Another connection to the same cluster, for another thread."""

    def stream(self, target: str, **parameters: str | int) -> Iterator[bytes]:
        """The body of the response to a GET of this path."""


class Source(Protocol):
    def files(self) -> list[tuple[str, int, int, int]]:
        """(path in the view, size in bytes, time of the last change in ns, inode) of every file. Raises OSError."""

    def read(self, path: str) -> Iterator[bytes]:
        """The content of a file. Raises OSError."""


def listed(directory: Path) -> list[tuple[str, int, int, int]]:
    """The files of a directory, as `Source.files` gives them. Raises OSError."""
    rows = []
    for path in files_below(directory):
        status = path.stat()
        rows.append((str(path.relative_to(directory)), status.st_size, status.st_mtime_ns, status.st_ino))
    return sorted(rows)


class LocalSource:
    """The view's directory itself, which costs the cluster no work."""

    def __init__(self, view: Path) -> None:
        self._view = view

    def files(self) -> list[tuple[str, int, int, int]]:
        return listed(self._view)

    def read(self, path: str) -> Iterator[bytes]:
        with open(self._view / path, "rb", buffering=0) as file:
            while piece := file.read(PIECE_BYTES):
                yield piece


class RemoteSource:
    """The view of a cluster whose files this process cannot read."""

    def __init__(self, api: Api, view: str) -> None:
        self._api = api
        self._base = f"/api/v1/admin/backup/{view}"

    def files(self) -> list[tuple[str, int, int, int]]:
        return [tuple(row) for row in self._api.call("GET", f"{self._base}/files")["data"]]

    def read(self, path: str) -> Iterator[bytes]:
        return self._api.stream(f"{self._base}/content", name=path)


def source_of(api: Api, view: str, path: Path) -> Source:
    """The source of a view. Its id is random, so a directory at the view's path is this view and no other."""
    try:
        is_local = (path / "manifest.json").is_file() and os.access(path, os.R_OK | os.X_OK)
    except OSError:
        is_local = False
    return LocalSource(path) if is_local else RemoteSource(api, view)
