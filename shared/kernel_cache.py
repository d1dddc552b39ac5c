"""The place of compiled kernels on disk: a directory whose name is a hash of the sources of all kernels.

numba recompiles a kernel when its own file changes, but not when a constant or an inlined function that it takes from
another file changes. It would then run machine code that does not fit the data. A separate directory for each state of
the sources makes that impossible. The directories of sources that nobody has used for a month are removed (`tidy`).
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PACKAGES = ("shared", "coordinator", "worker")
VARIABLE = "NUMBA_CACHE_DIR"
UNUSED_DAYS = 30
"""A directory that no process has used for so long is removed. It has 6 MB, and some seconds make it anew."""
LOCK_WAIT_S = 1.0
_PREFIX, _REMOVED_PREFIX, _LOCK = "kernels-", "removed-", "kernels.lock"
_DAY_S = 86_400
_DECLARES = re.compile(rb"^from shared\.kernels import (?!compile_)", re.MULTILINE)
"""In a module with kernels; others only have them compiled."""
_IMPORT = re.compile(rb"^from ((?:shared|coordinator|worker)[\w.]*) import", re.MULTILINE)


_own: Path | None = None
"""The directory that this process uses; None if the environment names it."""


def use() -> None:
    """Set numba's cache to the directory of these sources, unless the environment names one. Call this before importing
    a module with kernels."""
    global _own
    if VARIABLE in os.environ:
        return
    _own = _directory()
    _note_use(_own)
    os.environ[VARIABLE] = str(_own)
    if "numba" in sys.modules:  # it has read the environment already
        sys.modules["numba"].config.CACHE_DIR = os.environ[VARIABLE]


def _note_use(directory: Path) -> None:
    """Set the time of a directory to now, unless it is one of the last day."""
    with suppress(OSError):  # it does not exist, or may not be written
        if time.time() - directory.stat().st_mtime > _DAY_S:
            with _locked(directory.parent):
                os.utime(directory)


def tidy() -> int:
    """Remove the directories beside that of this process that were not used for UNUSED_DAYS. Returns how many.

    Any number of processes may do so at once. A directory gets another name first, under a lock that a process holds
    too when it notes that it uses one: either it is seen to be used, or the process finds none and makes it anew.
    """
    if _own is None:
        return 0
    place, unused_from = _own.parent, time.time() - UNUSED_DAYS * _DAY_S
    count = 0
    with suppress(OSError):
        with _locked(place):
            for path in place.glob(f"{_PREFIX}*"):
                if path != _own and path.is_dir() and path.stat().st_mtime < unused_from:
                    path.rename(place / f"{_REMOVED_PREFIX}{path.name}-{os.getpid()}")
                    count += 1
        for path in place.glob(f"{_REMOVED_PREFIX}{_PREFIX}*"):  # also those of a process that has died over it
            shutil.rmtree(path, ignore_errors=True)
    return count


@contextmanager
def _locked(place: Path) -> Iterator[None]:
    """Raises OSError if others have the lock for LOCK_WAIT_S, which they need for a moment only."""
    give_up = time.monotonic() + LOCK_WAIT_S
    with open(place / _LOCK, "a") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > give_up:
                    raise
                time.sleep(0.01)
        yield


def _directory() -> Path:
    root = Path(__file__).resolve().parents[1]
    digest = hashlib.sha256()
    for path, text in sorted(_sources(root).items()):
        digest.update(path.encode() + b"\0" + text + b"\0")
    name = f"{_PREFIX}{digest.hexdigest()[:16]}"
    pycache = Path(__file__).resolve().parent / "__pycache__"
    if os.access(pycache if pycache.exists() else pycache.parent, os.W_OK):
        return pycache / name
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "triptych" / name


def _sources(root: Path) -> dict[str, bytes]:
    """Path → text of every module with kernels, and of the modules that it imports, whose constants it may contain."""
    texts = {
        path.relative_to(root).as_posix(): path.read_bytes()
        for package in PACKAGES
        for path in (root / package).rglob("*.py")
    }
    kernels = {path for path, text in texts.items() if b"numba" in text or _DECLARES.search(text)}
    imported = {
        module.decode().replace(".", "/") + ".py" for path in kernels for module in _IMPORT.findall(texts[path])
    }
    return {path: text for path, text in texts.items() if path in kernels | imported}
