"""Reads files named in a configuration, with a size limit and without blocking on a pipe."""

from __future__ import annotations

import os
import stat
from pathlib import Path


class NotReadable(Exception):
    """A file cannot be read. The text is a predicate whose subject is the file: "cannot be read: …"."""


def shown(path: str | Path) -> str:
    """The path as valid text: bytes that are not UTF-8 are written as `\\xe9`."""
    return str(path).encode(errors="surrogateescape").decode(errors="backslashreplace")


def content(path: Path, bytes_max: int) -> bytes:
    """The content of a regular file. Raises NotReadable."""
    try:
        # Opening a pipe would block until it has a writer, and a pipe can be read only once.
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise NotReadable("is no regular file")
            data = file.read(bytes_max + 1)
    except (OSError, ValueError) as error:
        raise NotReadable(f"cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if len(data) > bytes_max:
        raise NotReadable(f"is larger than {bytes_max} bytes")
    return data
