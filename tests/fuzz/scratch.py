"""A directory for the files of targets that read by path."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from functools import cache
from pathlib import Path


def directory() -> Path:
    """The directory of this process. A campaign's lies in the campaign's own, which the next run removes."""
    return _directory(os.getpid())


@cache
def _directory(process: int) -> Path:
    path = Path(tempfile.mkdtemp(prefix=f"fuzz-{process}-"))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path
