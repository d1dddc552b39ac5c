"""Starts modules of this project as processes."""

from __future__ import annotations

import sys


def command(module: str, *arguments: str) -> list[str]:
    """The command line that runs the module with this interpreter. `-P`: its imports do not come from folders named
    worker or shared in the current directory."""
    return [sys.executable, "-P", "-m", module, *arguments]
