"""Queries whose answers take next to no time to make: those are made on the event loop.

To hand work to a thread and its result back takes longer than to merge and render a few series, most of all while other
threads want the interpreter lock. A query is quick if making its answer took little time when it was last asked: that
is measured, since the cost of functions, joins and renderings differs by orders of magnitude. Dashboards and alert
rules ask the same queries again and again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable

QUICK_S = 0.0015
"""Seconds of processor time that making a quick query's answer may take. The event loop does nothing else meanwhile."""
QUICK_BYTES_MAX = 32 << 10
"""What workers may reply to a quick query. Since its text, length and step are the same as the last time, and it
touched no more memory then than fits into the time, it holds little, and no account of it is kept."""
REMEMBERED_MAX = 1024


class QuickQueries:
    """A memo of quick queries. For the event loop's thread only."""

    def __init__(self) -> None:
        self._queries: OrderedDict[Hashable, None] = OrderedDict()

    def has(self, query: Hashable, received_bytes: int) -> bool:
        """Whether the answer to this query can be made on the event loop, from replies of so many bytes."""
        return received_bytes <= QUICK_BYTES_MAX and query in self._queries

    def took(self, query: Hashable, received_bytes: int, seconds: float) -> None:
        """Making the answer to the query took so many seconds of processor time."""
        if seconds > QUICK_S or received_bytes > QUICK_BYTES_MAX:
            self.failed(query)
            return
        self._queries[query] = None
        self._queries.move_to_end(query)
        if len(self._queries) > REMEMBERED_MAX:
            self._queries.popitem(last=False)

    def failed(self, query: Hashable) -> None:
        """The query is not quick, or not any more."""
        self._queries.pop(query, None)
