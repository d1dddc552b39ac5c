"""A sample of the queries that clients send, with which `calibration` measures the recall."""

from __future__ import annotations

from threading import Lock

import numpy as np

from shared.messages.vectors import Floats

QUERIES_MAX = 128
SAMPLE_BYTES_MAX = 2 << 20
"""The sample has fewer queries of many components: 32 of 16,384."""
PAUSE_S = 0.1
"""The shortest time between two queries of a full sample. So it covers some seconds, however much one client sends."""


class QuerySample:
    """The latest queries, one of each message. Safe to use from many threads."""

    def __init__(self, dimension: int) -> None:
        self._table = np.zeros((min(QUERIES_MAX, SAMPLE_BYTES_MAX // (4 * dimension)), dimension), np.float32)
        self._lock = Lock()
        self._taken_at = 0.0
        self._measured = 0
        self.taken = 0
        """How many queries the sample has ever taken."""

    def offer(self, queries: Floats, now_s: float) -> None:
        """Perhaps take one of the queries float32[q, dimension] of a message. `now_s`: `time.monotonic`."""
        size = len(self._table)
        if len(queries) and (self.taken < size or now_s - self._taken_at >= PAUSE_S):
            with self._lock:
                self._table[self.taken % size] = queries[self.taken % len(queries)]
                self.taken += 1
                self._taken_at = now_s

    def is_full(self) -> bool:
        return self.taken >= len(self._table)

    def is_renewed(self) -> bool:
        """Whether every query of the sample is newer than the last call of `queries`."""
        return self.taken - self._measured >= len(self._table)

    def queries(self) -> Floats:
        """The distinct queries of the sample, float32[n, dimension]."""
        with self._lock:
            self._measured = self.taken
            return np.unique(self._table[: self.taken], axis=0)
