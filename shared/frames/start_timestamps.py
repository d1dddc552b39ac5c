"""Start timestamps beside samples: since when a counter has counted what its sample says, in Unix ms; 0 if that is not
known. Where no sample has one, there is no column of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

StartTimestamps = NDArray[np.int64] | None


def joined(parts: Sequence[tuple[int, StartTimestamps]]) -> StartTimestamps:
    """Those of all parts, one part after another. A part is how many samples it has, and their start timestamps."""
    if all(starts is None for _, starts in parts):
        return None
    return np.concatenate([np.zeros(size, np.int64) if starts is None else starts for size, starts in parts])
