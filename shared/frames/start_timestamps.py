"""Start timestamps of samples: the time since which a counter has counted, in Unix ms; 0 if unknown. If no sample has
one, there is no column of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

StartTimestamps = NDArray[np.int64] | None


def joined(parts: Sequence[tuple[int, StartTimestamps]]) -> StartTimestamps:
    """Concatenate the start timestamps of all parts, each given as (number of samples, start timestamps)."""
    if all(starts is None for _, starts in parts):
        return None
    return np.concatenate([np.zeros(size, np.int64) if starts is None else starts for size, starts in parts])
