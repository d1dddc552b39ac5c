"""Compiled kernels on disk: two files for each, whose names have a hash of what the kernel is made of; beside them the
tables of the parser of queries (`.tables`).

`.code` is what calling the kernel needs: machine code, which takes 0.7 ms to load. `.types` is what compiling another
kernel that calls it needs. A change of a source, another processor or another numba gives other names. So any number
of versions share a directory, nothing that is read is out of date, and a change compiles only the kernels that it
concerns. Files that no process has read for a month are removed (`tidy`).
"""

from __future__ import annotations

import fcntl
import os
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import IO, Literal

VARIABLE = "NUMBA_CACHE_DIR"
UNUSED_DAYS = 30
"""A file that no process has read for so long is removed. A second makes it anew."""
Kind = Literal["code", "types", "tables"]
_DAY_S = 86_400
_CHECKSUM_BYTES = 4
_CLAIMS = "claims"


@cache
def directory() -> Path:
    """The one that the environment names, or `__pycache__` of `shared/`, or else one in the user's cache."""
    if named := os.environ.get(VARIABLE):
        return Path(named)
    pycache = Path(__file__).resolve().parents[1] / "__pycache__"
    if os.access(pycache if pycache.exists() else pycache.parent, os.W_OK):
        return pycache / "kernels"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "triptych" / "kernels"


def read(name: str, kind: Kind) -> bytes | None:
    """None if there is no such file, or if it is not whole, such as after a loss of power."""
    try:
        with open(_path(name, kind), "rb") as file:
            _note_use(file)
            content = file.read()
    except OSError:
        return None
    checksum, data = content[:_CHECKSUM_BYTES], content[_CHECKSUM_BYTES:]
    return data if data and checksum == _checksum(data) else None


def write(name: str, kind: Kind, data: bytes) -> None:
    """Whoever reads the file gets all of it or none. A disk that refuses it costs a compilation at the next start."""
    path = _path(name, kind)
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(_checksum(data) + data)
        temporary.replace(path)


def has(name: str, kind: Kind) -> bool:
    return _path(name, kind).exists()


@contextmanager
def claimed(name: str, *, wait: bool = False) -> Iterator[bool]:
    """Whether no other process is compiling the kernel, none of which begins to while the context is open; with `wait`,
    not before that is so. A process that dies gives up what it has claimed. Where files cannot be locked, several may
    compile the same kernel."""
    file = _claims_file()
    if file is None:
        yield True
        return
    place = zlib.crc32(name.encode())
    try:
        fcntl.lockf(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
    except BlockingIOError:
        yield False
        return
    except OSError:
        yield True
        return
    try:
        yield True
    finally:
        with suppress(OSError):
            fcntl.lockf(file, fcntl.LOCK_UN, 1, place)


def tidy() -> int:
    """Remove files that were not read for UNUSED_DAYS, and what earlier versions of Triptych left. Returns how many
    files. A process that needs one of them at this moment either reads it or makes it anew."""
    unused_from = time.time() - UNUSED_DAYS * _DAY_S
    count = 0
    with suppress(OSError):
        for path in directory().iterdir():
            if path.suffix in (".code", ".types", ".tables", ".tmp"):
                with suppress(OSError):
                    if path.stat().st_mtime < unused_from:
                        path.unlink()
                        count += 1
    return count


def _path(name: str, kind: Kind) -> Path:
    return directory() / f"{name}.{kind}"


def _checksum(data: bytes) -> bytes:
    return zlib.crc32(data).to_bytes(_CHECKSUM_BYTES, "little")


def _note_use(file: IO[bytes]) -> None:
    """Set the time of a file to now, unless it is one of the last day."""
    with suppress(OSError):  # it may not be written
        if time.time() - os.fstat(file.fileno()).st_mtime > _DAY_S:
            os.utime(file.fileno())


@cache
def _claims_file() -> IO[bytes] | None:
    """Kept open: closing any descriptor of a file ends all locks that a process has on it."""
    try:
        directory().mkdir(parents=True, exist_ok=True)
        return open(directory() / _CLAIMS, "ab")
    except OSError:
        return None
