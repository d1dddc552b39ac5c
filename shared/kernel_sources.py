"""What the machine code of a kernel depends on: the text of its module and of all project modules that it imports,
directly or by way of others. A constant or an inlined function of another module becomes a part of the code."""

from __future__ import annotations

import hashlib
import re
import sys
from functools import cache
from pathlib import Path

PACKAGES = ("shared", "coordinator", "worker")
ROOT = Path(__file__).resolve().parents[1]
_IMPORT = re.compile(rb"^from ((?:shared|coordinator|worker)(?:\.\w+)*) import (\([^)]*\)|[^\n]*)", re.MULTILINE)
_NAME = re.compile(rb"\w+")


def digest(module: str) -> bytes | None:
    """Of the sources of a module, 32 bytes; None if the module has no file, so that a change would not be seen."""
    if _text(module) is None:
        return None
    own = hashlib.sha256()
    for name in sorted(dependencies(module)):
        own.update(name.encode() + b"\0" + _text_digest(name))
    return own.digest()


def dependencies(module: str) -> set[str]:
    """The module and the project modules that it imports, directly or by way of others."""
    names, open_names = set(), [module]
    while open_names:
        name = open_names.pop()
        if name not in names:
            names.add(name)
            open_names += _imports(name)
    return names


@cache
def _text(module: str) -> bytes | None:
    if module.partition(".")[0] in PACKAGES:
        path = ROOT.joinpath(*module.split("."))
        path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    else:
        path = Path(getattr(sys.modules.get(module), "__file__", None) or "/")
    return path.read_bytes() if path.is_file() else None


@cache
def _text_digest(module: str) -> bytes:
    return hashlib.sha256(_text(module) or b"").digest()


@cache
def _imports(module: str) -> tuple[str, ...]:
    found = []
    for package, names in _IMPORT.findall(_text(module) or b""):
        found.append(package.decode())
        found += [f"{package.decode()}.{name.decode()}" for name in _NAME.findall(names)]
    return tuple(name for name in found if _text(name) is not None)
