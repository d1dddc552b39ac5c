"""The search of one page of a read: which records it finds, and when it has examined enough."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from shared.log_search.filter import compiled
from shared.messages.log import Search
from shared.messages.log_pages import Records

EXAMINED_BYTES_MAX = 16 << 20
EXAMINED_S = 0.25
"""A page ends with the run that takes it beyond one of these."""


class Examination:
    """The search of one page. Raises BadData for a search that cannot be compiled. `check` is called repeatedly; it
    raises when the request's time is up. `left_out` says which values could not be examined."""

    def __init__(self, search: Search, check: Callable[[], None]) -> None:
        self._filter = compiled(search)
        self._check = check
        self._bytes = 0
        self._began_s = time.monotonic()
        self.left_out: set[str] = set()

    def matching(self, records: Records) -> Records:
        """Those of the records that the search finds."""
        values = records.value_list()
        self._bytes += sum(map(len, values))
        is_matching = self._filter.matching(values, self._check, self.left_out)
        return records if is_matching.all() else records.taking(np.flatnonzero(is_matching))

    @property
    def is_over(self) -> bool:
        return self._bytes >= EXAMINED_BYTES_MAX or time.monotonic() - self._began_s >= EXAMINED_S
