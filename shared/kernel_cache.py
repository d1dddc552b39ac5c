"""The place of compiled kernels on disk: a directory whose name is a hash of the sources of all kernels.

numba recompiles a kernel when its own file changes, but not when a constant or an inlined function that it takes from
another file changes. It would then run machine code that does not fit the data. A separate directory for each state of
the sources makes that impossible.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
from pathlib import Path

PACKAGES = ("shared", "coordinator", "worker")
VARIABLE = "NUMBA_CACHE_DIR"
_DECLARES = re.compile(rb"^from shared\.kernels import (?!compile_)", re.MULTILINE)
"""In a module with kernels; others only have them compiled."""
_IMPORT = re.compile(rb"^from ((?:shared|coordinator|worker)[\w.]*) import", re.MULTILINE)


def use() -> None:
    """Set numba's cache to the directory of these sources, unless the environment names one. Call this before importing
    a module with kernels."""
    if VARIABLE in os.environ:
        return
    os.environ[VARIABLE] = str(_directory())
    if "numba" in sys.modules:  # it has read the environment already
        sys.modules["numba"].config.CACHE_DIR = os.environ[VARIABLE]


def _directory() -> Path:
    root = Path(__file__).resolve().parents[1]
    digest = hashlib.sha256()
    for path, text in sorted(_sources(root).items()):
        digest.update(path.encode() + b"\0" + text + b"\0")
    name = f"kernels-{digest.hexdigest()[:16]}"
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
