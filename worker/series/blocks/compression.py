"""Arrays of numbers, compressed by pcodec (https://github.com/pcodec/pcodec): exact to the last bit, including the
payloads of NaNs."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from pcodec import ChunkConfig, standalone

_CONFIG = ChunkConfig()


def compressed(numbers: NDArray, config: ChunkConfig = _CONFIG) -> bytes:
    """The compressed numbers; empty for no numbers."""
    return standalone.simple_compress(np.ascontiguousarray(numbers), config) if len(numbers) else b""


def fill(data: bytes, out: NDArray) -> None:
    """Decompress into `out`, all of it. Raises ValueError if the data does not fill it exactly."""
    if not len(out):
        return
    count = decompressed_into(data, out)
    if count != len(out):
        raise ValueError(f"it has {count} of {len(out)} numbers")


def decompressed_into(data: bytes, out: NDArray) -> int:
    """Decompress to the beginning of `out`; returns how many numbers there are. Unlike pcodec's function that allocates
    the array, this takes no more memory than `out` has: 4 KB of data can claim to be 5 billion numbers. Raises
    ValueError if the numbers are more than `out` holds, are of another type, or cannot be decompressed."""
    try:
        progress = standalone.simple_decompress_into(data, out)
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"pcodec: {error}") from error
    if not progress.finished:
        raise ValueError(f"pcodec: there are more than {len(out)} numbers")
    return int(progress.n_processed)
