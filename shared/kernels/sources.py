"""The sources on which a kernel's machine code depends: its module and all project modules that the module imports,
directly or indirectly. Constants and inlined functions of another module become part of the code."""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

PACKAGES = ("shared", "coordinator", "worker")
ROOT = Path(__file__).resolve().parents[2]
_IMPORT = re.compile(rb"^from ((?:shared|coordinator|worker)(?:\.\w+)*) import (\([^)]*\)|[^\n]*)", re.MULTILINE)
_NAME = re.compile(rb"\w+")


@cache
def digest(module: str) -> bytes | None:
    """A hash of the module's sources, 32 bytes. None if the module has no file, since changes would go unnoticed."""
    if _source(module) is None:
        return None
    hasher = hashlib.sha256()
    for name in sorted(dependencies(module)):
        source = _source(name)
        assert source is not None
        hasher.update(name.encode() + b"\0" + source.digest)
    return hasher.digest()


def dependencies(module: str) -> set[str]:
    """The module and the project modules that it imports, directly or indirectly."""
    names, unvisited = set(), [module]
    while unvisited:
        name = unvisited.pop()
        if name not in names and (source := _source(name)) is not None:
            names.add(name)
            unvisited += source.imported
    return names


class _Source(NamedTuple):
    """`imported`: names that may be project modules."""

    digest: bytes
    imported: tuple[str, ...]


@cache
def _source(module: str) -> _Source | None:
    """None if the module has no file."""
    if module.partition(".")[0] in PACKAGES:
        path = os.path.join(ROOT, *module.split("."))
        candidates: tuple[str, ...] = (f"{path}.py", os.path.join(path, "__init__.py"))
    else:
        candidates = (getattr(sys.modules.get(module), "__file__", None) or "/",)
    for candidate in candidates:
        with suppress(OSError), open(candidate, "rb") as file:
            text = file.read()
            return _Source(hashlib.sha256(text).digest(), tuple(_imported(text)))
    return None


def _imported(text: bytes) -> Iterator[str]:
    for package, names in _IMPORT.findall(text):
        yield package.decode()
        # Names of modules are in lower case.
        yield from (f"{package.decode()}.{name.decode()}" for name in _NAME.findall(names) if name.islower())
