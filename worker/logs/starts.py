"""Starts of keys: every record of a key below the key's start is gone.

A start is a row of the store (`worker.logs.rows`), and is on disk before the deletion is answered. From then on every
read leaves the records out, and gathering does not store them. `worker.logs.cleaning` removes those that are stored
already, and forgets the start when none are left, in the store or in memory. So there are as many starts as there are
keys whose records still have to be removed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from itertools import islice

from shared.errors import Unavailable
from worker.logs import rows
from worker.storage.faces import RowBatch, Rows

STARTS_MAX = 100_000
STARTS_BYTES_MAX = 32 << 20
"""Starts of one shard, and their bytes with their keys, that may wait until the records have been removed."""
START_BYTES = 150
"""Memory of a start beside its key."""


class KeyStarts:
    """The starts of one shard's keys. Not safe for threads: its owner's lock guards it.

    `all`: key → start. It is replaced when starts are forgotten, so a reader that holds it still leaves out the records
    that were gone when it began. `fresh`: the starts above the mark "gathered", the only ones that concern records in
    memory; replaced with every change, so that it can be iterated. `bytes`: the memory that all starts take, about.
    `counting`: keys whose gone records are being counted and therefore stay in the store; replaced with every change.
    """

    def __init__(self) -> None:
        self.all: dict[bytes, int] = {}
        self.fresh: Mapping[bytes, int] = {}
        self.counting: tuple[bytes, ...] = ()
        self.highest = 0
        self.bytes = 0
        self.gatherings = 0
        """How many gatherings have stored records."""
        self._unclean: dict[bytes, int] = {}  # key → the last gathering that may have stored what is to be removed
        self._clean: dict[bytes, None] = {}
        self._forgotten: dict[bytes, int] = {}
        """Starts that were forgotten since the store was last flushed. A crash brings back their rows and the records
        below them, so no lower start may be written over the row."""

    def load(self, store: Rows, gathered: int) -> None:
        """Read the starts from the store."""
        head = rows.STARTS
        stored = {row[len(head) :]: rows.sequence_of(value) for row, value in store.scan("log", head, rows.after(head))}
        self.take_in(stored, gathered)

    def require_room(self, keys: Collection[bytes]) -> None:
        """Raises Unavailable when there are too many starts already."""
        size = sum(len(key) + START_BYTES for key in keys)
        if len(self.all) + len(keys) > STARTS_MAX or self.bytes + size > STARTS_BYTES_MAX:
            raise Unavailable(
                f"{len(self.all)} deleted or trimmed keys of the shard wait for the removal of their records; the "
                f"limit is {STARTS_MAX} keys or {STARTS_BYTES_MAX >> 20} MB; try again later"
            )

    def rising(self, starts: Mapping[bytes, int]) -> dict[bytes, int]:
        """Those of `starts` that are above the key's present start, and above its forgotten one."""
        return {
            key: start
            for key, start in starts.items()
            if start > max(self.all.get(key, 0), self._forgotten.get(key, 0))
        }

    def take_in(self, starts: Mapping[bytes, int], gathered: int) -> None:
        """Add starts that are on disk, each above the key's earlier one."""
        for key, start in starts.items():
            if key not in self.all:
                self.bytes += len(key) + START_BYTES
            self.all[key] = start
            self._unclean[key] = self.gatherings
            self._clean.pop(key, None)
        self.highest = max(self.highest, *starts.values(), 0)
        fresh = {key: start for key, start in starts.items() if start > gathered}
        if fresh:
            self.fresh = {**self.fresh, **fresh}

    def gathered(self, upto: int) -> None:
        """Note that no record in memory is below `upto` any more."""
        if self.fresh:
            self.fresh = {key: start for key, start in self.fresh.items() if start > upto}

    # Removal

    def unclean(self, count: int) -> dict[bytes, int]:
        """At most `count` keys, with their starts, that the store may still have records below the start of, and that
        are not being counted."""
        counting = set(self.counting)
        return {key: self.all[key] for key in islice((key for key in self._unclean if key not in counting), count)}

    def removable(self, keys: Iterable[bytes]) -> dict[bytes, int]:
        """Key → the number below which its records may be removed from the store: the starts of the keys that have one
        and are not being counted. Needs no lock."""
        starts = self.all
        removable = {key: start for key in keys if (start := starts.get(key))}
        # `counting` is read after the starts, because a key is added to it before its start is raised.
        for key in self.counting:
            removable.pop(key, None)
        return removable

    def cleaned(self, starts: Mapping[bytes, int], gatherings: int) -> None:
        """Note that after so many gatherings, the store had no record of these keys below these starts. Gatherings that
        begin later write none either."""
        for key, start in starts.items():
            if self.all.get(key) == start and self._unclean.get(key, gatherings + 1) <= gatherings:
                del self._unclean[key]
                self._clean[key] = None

    def look_again(self, left_out: Mapping[bytes, int]) -> bool:
        """Note that a gathering has stored records. It left out those below the starts in `left_out`, which were the
        fresh ones when it began. The store may now have records below a start that has been raised since. Returns
        whether there are such starts."""
        self.gatherings += 1
        raised = [key for key, start in self.fresh.items() if left_out.get(key) != start]
        for key in raised:
            self._clean.pop(key, None)
            self._unclean[key] = self.gatherings
        return bool(raised)

    def done(self, gathered: int) -> list[bytes]:
        """Keys whose start hides nothing any more: no record below it is in the store or in memory."""
        return [key for key in self._clean if self.all[key] <= gathered]

    def forget(self, keys: Collection[bytes]) -> None:
        forgotten = set(keys)
        self._forgotten.update({key: self.all[key] for key in forgotten})
        self.all = {key: start for key, start in self.all.items() if key not in forgotten}
        self.bytes -= sum(len(key) + START_BYTES for key in forgotten)
        for key in forgotten:
            self._clean.pop(key, None)

    def flushed(self) -> None:
        """Note that what was written for the forgotten starts, the removal of their records and of their own rows, is
        permanent."""
        self._forgotten.clear()

    @property
    def unclean_count(self) -> int:
        return len(self._unclean)

    def __len__(self) -> int:
        return len(self.all)


def put(changes: RowBatch, starts: Mapping[bytes, int]) -> None:
    changes.put_many("log", [rows.start(key) for key in starts], [rows.sequence_bytes(s) for s in starts.values()])
