"""The time series of one shard: index and head in memory, a journal of both in the store."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from shared.config import Settings
from shared.labels import Symbols
from shared.promql.ast import Matcher
from shared.promql.model import Samples
from shared.wire import Frame
from shared.xxh64 import hash_slices
from worker.series.head import Head
from worker.series.index import Index
from worker.series.ingest import Arrival, GroupCommit, parse
from worker.series.journal import Deletion, Journal, Written
from worker.series.lookup import Lookup
from worker.series.patterns import Patterns
from worker.series.postings import Ids
from worker.storage import Store


class SeriesPart:
    """Safe to use from many threads.

    Two locks. The commit's turn serialises whatever changes the journal, and is held while the store writes and syncs.
    `_memory` guards index and head, and is held for one kernel call or registration at a time, never while waiting for
    the disk; readers need only this one.
    """

    def __init__(self, store: Store, settings: Settings, symbols: Symbols, directory: Path) -> None:
        self._store = store
        self._symbols = symbols
        self._index = Index(symbols, Patterns())
        self._head = Head()
        self._journal = Journal(store)
        self._memory = Lock()
        self._commits = GroupCommit(self._commit)
        self._samples_in = 0

    @property
    def symbols(self) -> Symbols:
        """The process's table: the codes of this part's labels are of it."""
        return self._symbols

    def load(self) -> None:
        """Rebuild index and head from the store. Raises ValueError where the store's rows make no sense."""
        for label_bytes, offsets in self._journal.series():
            data = np.frombuffer(label_bytes, dtype=np.uint8)
            hashes = hash_slices(data, offsets)
            with self._memory:
                self._index.resolve(data, offsets[:-1], offsets[1:], hashes)
                if len(self._index) != self._journal.series_saved:
                    raise ValueError(f"a series below id {self._journal.series_saved} is twice in the store")
        with self._memory:
            self._head.extend(len(self._index))
        for record in self._journal.records():
            with self._memory:
                if isinstance(record, Written):
                    self._head.append(record.rows(), record.times_ms, record.values)
                else:
                    self._head.delete(record.series, record.start_ms, record.end_ms)

    def counts(self) -> dict[str, int]:
        """`samples_in`: accepted since the start; `samples`: held now."""
        return {"series": len(self._index), "samples": self._head.samples, "samples_in": self._samples_in}

    def close(self) -> None:
        """Every write has been journaled before it was answered, so there is nothing left to do."""

    def write(self, bodies: Sequence[Frame], timeout_s: float) -> int:
        """Store the samples of these bodies (made by `remote_write.cut`); returns how many there were.

        When this returns, all of them survive the loss of power and every later read sees them. When it raises, none
        of them is visible; after a restart all or none of this call's samples may be there. Writing them again
        changes nothing, so a failed write is to be repeated.
        """
        arrivals = [parse(body) for body in bodies]
        self._commits.add(arrivals, timeout_s)
        return sum(len(arrival.times_ms) for arrival in arrivals)

    def delete(self, selectors: Iterable[Sequence[Matcher]], start_ms: int, end_ms: int, timeout_s: float) -> int:
        """Delete the samples with start ≤ t ≤ end of the series any selector matches; returns how many there were.

        When this returns, they are gone for good, as the journal says durably; samples written later stay. Raises
        BadData for an expression RE2 refuses, DeadlineExceeded when the store was busy too long.
        """
        with self._commits.exclusive(timeout_s):
            ids = self.select(selectors, start_ms, end_ms)[1]
            if not len(ids):
                return 0
            batch = self._store.batch()
            self._journal.put(batch, Deletion(ids, start_ms, end_ms))
            self._journal.next_sequence += 1
            self._store.write(batch, durable=True)
            with self._memory:
                return self._head.delete(ids, start_ms, end_ms)

    def select(self, selectors: Iterable[Sequence[Matcher]], start_ms: int, end_ms: int) -> tuple[Lookup, Ids]:
        """(the index as it is, ascending ids of the series that match any selector and may have samples with
        start ≤ t ≤ end). No matchers match every series. Raises BadData for an expression RE2 refuses."""
        with self._memory:
            lookup = self._index.lookup()
        found = [lookup.select(matchers) for matchers in selectors]
        ids = found[0] if len(found) == 1 else np.unique(np.concatenate(found))
        if not len(ids):
            return lookup, ids
        with self._memory:
            return lookup, ids[self._head.overlapping(ids, start_ms, end_ms)]

    def read(self, ids: NDArray[np.int64], start_ms: int, end_ms: int) -> Samples:
        """Samples of these series with start ≤ t ≤ end."""
        with self._memory:
            return self._head.read(ids, start_ms, end_ms)

    def _commit(self, arrivals: Sequence[Arrival]) -> None:
        """Journal first, memory second: what is visible is durable, and the order of equal times is the journal's.

        Series are registered before either, which shows nothing while they have no samples; if the store fails, the
        next commit saves them.
        """
        with self._memory:
            ids = [self._index.resolve(a.data, a.starts, a.ends, a.hashes) for a in arrivals]
            series = len(self._index)
            self._head.extend(series)
            batch = self._store.batch()
            if series > self._journal.series_saved:
                self._journal.put_series(batch, *self._index.label_bytes(self._journal.series_saved))
        written = Written(
            np.concatenate(ids),
            np.concatenate([a.counts for a in arrivals]),
            np.concatenate([a.times_ms for a in arrivals]),
            np.concatenate([a.values for a in arrivals]),
        )
        self._journal.put(batch, written)
        # Counted on before the outcome is known: a failed write may be in the store all the same, and must not be
        # overwritten by a later record of its number.
        self._journal.next_sequence += 1
        self._store.write(batch, durable=True)
        self._journal.series_saved = series
        rows = written.rows()
        with self._memory:
            self._head.append(rows, written.times_ms, written.values)
        self._samples_in += len(rows)
