"""The result of walking a remote-write body: where its series are, and which of them are valid."""

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
    """A body and where its series are.

    `table`: int64[series, COLUMNS] (columns of `coordinator.series.walk`). `hashes`: uint64[series], the hashes of the
    canonical label bytes. `counts`: int64[COUNTS], the number of exemplars, histograms and so on. `label_data`:
    contains the label bytes; in version 1.0 it is the body. `numbers`: the position of each series in the request, if
    the walk has only some of its series. `epochs`: int64[shards], the epochs of the series numbers in the table; None
    if no number is known.
    """

    body: NDArray[np.uint8]
    label_data: NDArray[np.uint8]
    table: NDArray[np.int64]
    hashes: NDArray[np.uint64]
    counts: NDArray[np.int64]
    numbers: Sequence[int] | None = None
    epochs: NDArray[np.int64] | None = None

    def name(self, row: int) -> str:
        """The series in this row, as error messages name it."""
        number = row if self.numbers is None else self.numbers[row]
        label_bytes = self.label_data[self.table[row, LABELS] : self.table[row, LABELS_END]].tobytes()
        return f"series {number} {shown([(n.encode(), v.encode()) for n, v in labels.decode(label_bytes)])}"
