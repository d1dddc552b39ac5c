"""Compiled kernels for the copies of the tree: those of the tree itself, so that they are compiled once and for all."""

from __future__ import annotations

import shutil
from pathlib import Path

from shared.kernels import cache as kernel_cache

NAME = "kernels"


def take_over(cache: Path) -> None:
    """Put what is compiled of the tree itself into the cache of its copies. A file is named by the text of all sources
    that its kernel is made of, wherever they are: a mutant has other names for what it changes, and these for the rest.
    """
    if kernel_cache.directory().is_dir():
        shutil.copytree(kernel_cache.directory(), cache, dirs_exist_ok=True)
