"""The series of a remote-write request, found and checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coordinator.series.label_sets import shown
from coordinator.series.walk import LABELS, LABELS_END
from shared import labels


@dataclass(slots=True)
class Walk:
    """A body and where its series are: `table` int64[series, COLUMNS] (columns of `coordinator.series.walk`), `hashes`
    uint64[series] of the canonical label bytes, `counts` int64[COUNTS] of what there is beside samples. The label bytes
    are in `label_data`, which for version 1.0 is the body. `numbers`: which series of the request they are, if they are
    not all. `epochs` int64[shards]: of the numbers that the shards gave to known series; None if none is known."""

    body: NDArray[np.uint8]
    label_data: NDArray[np.uint8]
    table: NDArray[np.int64]
    hashes: NDArray[np.uint64]
    counts: NDArray[np.int64]
    numbers: Sequence[int] | None = None
    epochs: NDArray[np.int64] | None = None

    def name(self, row: int) -> str:
        """The series in this row, in the words of an error message."""
        number = row if self.numbers is None else self.numbers[row]
        label_bytes = self.label_data[self.table[row, LABELS] : self.table[row, LABELS_END]].tobytes()
        return f"series {number} {shown([(n.encode(), v.encode()) for n, v in labels.decode(label_bytes)])}"
