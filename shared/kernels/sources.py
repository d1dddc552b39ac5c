"""What the machine code of a kernel depends on: the text of its module and of all project modules that it imports,
directly or by way of others. A constant or an inlined function of another module becomes a part of the code."""

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
    """Of the sources of a module, 32 bytes; None if the module has no file, so that a change would not be seen."""
    if _source(module) is None:
        return None
    own = hashlib.sha256()
    for name in sorted(dependencies(module)):
        source = _source(name)
        assert source is not None
        own.update(name.encode() + b"\0" + source.digest)
    return own.digest()


def dependencies(module: str) -> set[str]:
    """The module and the project modules that it imports, directly or by way of others."""
    names, open_names = set(), [module]
    while open_names:
        name = open_names.pop()
        if name not in names and (source := _source(name)) is not None:
            names.add(name)
            open_names += source.imported
    return names


class _Source(NamedTuple):
    """`imported`: what may be project modules, among other names."""

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
        # Modules have names of small letters.
        yield from (f"{package.decode()}.{name.decode()}" for name in _NAME.findall(names) if name.islower())
