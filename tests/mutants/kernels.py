"""Compiled kernels for the copies of the tree: those of the tree itself, so that they are compiled once and for all."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from numba.core.caching import UserProvidedCacheLocator

import shared.kernel_cache
from tests.mutants.sampling import ROOT

PACKAGES = ("shared", "coordinator", "worker")
_OWN = Path(os.environ[shared.kernel_cache.VARIABLE])
NAME = _OWN.name
"""`shared` has set it, and named it by the text of all kernels."""


def take_over(tree: Path, cache: Path) -> None:
    """Put what is compiled of the tree itself into the cache of a copy, whose files have the same times and sizes.
    numba keeps the kernels of each directory of sources under a name that is made of its path."""
    for package in PACKAGES:
        for folder in {path.parent for path in (ROOT / package).rglob("*.py")}:
            compiled = _OWN / _folder_of(folder)
            if compiled.is_dir():
                copy = cache / _folder_of(tree / folder.relative_to(ROOT))
                shutil.copytree(compiled, copy, dirs_exist_ok=True)


def _folder_of(sources: Path) -> str:
    name: str = UserProvidedCacheLocator.get_suitable_cache_subpath(str(sources / "module.py"))
    return name
