"""Files that a configuration names, read without waiting for a pipe and within a bound."""

from __future__ import annotations

import os
import stat
from pathlib import Path


class NotReadable(Exception):
    """The text says why, and goes on a sentence whose subject is the file: "cannot be read: …"."""


def shown(path: str | Path) -> str:
    """The name as valid text: bytes of it that are not UTF-8 are written as `\\xe9`."""
    return str(path).encode(errors="surrogateescape").decode(errors="backslashreplace")


def content(path: Path, bytes_max: int) -> bytes:
    """The content of a regular file. Raises NotReadable."""
    try:
        # A pipe would keep the reader waiting for somebody to write, and can be read once.
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise NotReadable("is no regular file")
            found = file.read(bytes_max + 1)
    except (OSError, ValueError) as error:
        raise NotReadable(f"cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if len(found) > bytes_max:
        raise NotReadable(f"is larger than {bytes_max} bytes")
    return found
