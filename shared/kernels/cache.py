"""The kernel cache on disk: two files for each kernel, named by a hash of everything the kernel depends on. The PromQL
parser's tables lie beside them (`.tables`).

`.code` is what a call of the kernel needs: machine code, which takes 0.7 ms to load. `.types` is what compiling a
caller of the kernel needs. A changed source, another CPU type or another version of numba changes the name. So several
versions can share a directory, no file is ever out of date, and a change recompiles only the kernels that it affects.
Files that no process has read for a month are removed (`tidy`).
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
"""A file that no process has read for this long is removed. Compiling it again takes about a second."""
Kind = Literal["code", "types", "tables"]
_DAY_S = 86_400
_CHECKSUM_BYTES = 4
_CLAIMS = "claims"


@cache
def directory() -> Path:
    """The directory that the environment names, else one in `shared/__pycache__`, else one in the user's cache."""
    if named := os.environ.get(VARIABLE):
        return Path(named)
    pycache = Path(__file__).resolve().parents[1] / "__pycache__"
    if os.access(pycache if pycache.exists() else pycache.parent, os.W_OK):
        return pycache / "kernels"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "triptych" / "kernels"


def read(name: str, kind: Kind) -> bytes | None:
    """The file's data. None if it does not exist or is incomplete, for example after a power loss."""
    try:
        with open(_path(name, kind), "rb") as file:
            _note_use(file)
            content = file.read()
    except OSError:
        return None
    checksum, data = content[:_CHECKSUM_BYTES], content[_CHECKSUM_BYTES:]
    return data if data and checksum == _checksum(data) else None


def write(name: str, kind: Kind, data: bytes) -> None:
    """Write the file atomically, but not durably. If the disk refuses it, the next start compiles the kernel again."""
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
    """Claim the kernel for this process while the context is open; false if another process has claimed it. With
    `wait`, wait until it is free. A process that dies loses its claims. Where files cannot be locked, every claim
    succeeds, and several processes may compile the same kernel."""
    file = _claims_file()
    if file is None:
        yield True
        return
    lock_offset = zlib.crc32(name.encode())
    try:
        fcntl.lockf(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB, 1, lock_offset)
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
            fcntl.lockf(file, fcntl.LOCK_UN, 1, lock_offset)


def tidy() -> int:
    """Remove files that no process has read for UNUSED_DAYS. Returns their number. A process that needs one at this
    moment either still reads it or compiles it again."""
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
    """Set the file's modification time to now if it is older than a day."""
    with suppress(OSError):  # the file may be read-only
        if time.time() - os.fstat(file.fileno()).st_mtime > _DAY_S:
            os.utime(file.fileno())


@cache
def _claims_file() -> IO[bytes] | None:
    """The file of claims. It stays open: closing any descriptor of a file releases all of the process's locks on it."""
    try:
        directory().mkdir(parents=True, exist_ok=True)
        return open(directory() / _CLAIMS, "ab")
    except OSError:
        return None
