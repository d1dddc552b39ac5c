"""The exact components of vectors in a file that is mapped into memory, for collections that should take little memory.

The kernel keeps the pages that searches read for as long as memory is free, and evicts them otherwise. The file has no
name and needs no sync: it disappears with the process, and a start fills a new one from the stores.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from shared.errors import Unavailable


class MappedRows:
    """Rows of float16[dimension]. Arrays of earlier sizes stay valid, and see the same rows."""

    def __init__(self, directory: Path, dimension: int) -> None:
        self._directory = directory
        self._row_bytes = 2 * dimension
        try:
            self._file = tempfile.TemporaryFile(dir=directory)  # noqa: SIM115 (closed with its last array)
        except OSError as error:
            raise Unavailable(f"no file for vectors can be made in {directory}: {error}") from error
        self._size = 0

    def array(self, rows: int) -> NDArray[np.float16]:
        """The first `rows` rows, new ones zero: float16[rows, dimension]. Raises Unavailable if the disk is full."""
        size = rows * self._row_bytes
        try:
            # Without blocks on the disk, a write to the mapping would end the process when the disk is full.
            os.posix_fallocate(self._file.fileno(), self._size, size - self._size)
            mapped = mmap.mmap(self._file.fileno(), size)
        except OSError as error:
            raise Unavailable(f"{size} bytes for vectors have no room in {self._directory}: {error}") from error
        self._size = size
        return np.frombuffer(mapped, np.float16).reshape(rows, -1)
