"""Requests of remote write 2.0 that were sent before, with all but their samples: what repeats of them is compared as
it stands, and nothing of it is looked up.

A sender whose requests have the same series each time sends the same table of symbols with them, and the same
references. If the table is that of an earlier request byte by byte, references with the same bytes name the same
labels. So a request is an instance of a template if its table is equal, and each of its series has the references and
the metadata, byte by byte, of the series at the same place. Its labels then need no look-up, no check and no hash: if
each series has one sample, only times and values are read, and with the shards and numbers of the template they are
known samples, as those of version 1.0 (`coordinator.series.known_samples`). Some words of the table tell which
template that may be; all bytes are compared, so that no hash decides which series a sample belongs to.

A template has the series' rows of `series_references`, and their numbers as long as the shards have the eras of then.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from random import SystemRandom
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from coordinator.series import histograms, known_samples, remote_write
from coordinator.series import template_kernels as kernels
from coordinator.series.known_samples import KnownSamples
from coordinator.series.remote_write import Cut
from coordinator.series.series_references import NOW, VERSION, SeriesReferences, Tables
from coordinator.series.template_kernels import PROBE_COLUMNS, PROBES, SPARE_BYTES, TABLE_BYTES, WORD_BYTES, Template
from coordinator.series.walk import COLUMNS, COUNTS
from coordinator.series.walk_v2 import REFERENCE_COLUMNS
from coordinator.series.walked import Walk
from shared.allocator import scratch
from shared.xxh64 import xxh64

TEMPLATES_MAX = 1024
"""However small they are: each request looks at a word of all."""
CANDIDATES_MAX = 16
"""Templates that a request is compared with, whatever tables of symbols a sender chooses: those that have the same
words at some random places."""
SAME_TABLE_MAX = 4
"""Templates with one table of symbols: who sends one table with other series each time gains nothing."""
SERIES_MIN = 16
"""Of a request that is kept: smaller ones cost little anyway."""
SEEN_MAX = 4096
"""Tables of symbols of which it is known that they were sent, by their hashes, at some 100 bytes each: templates are
made of those that come again."""
UNUSED_MINUTES = 5
"""Templates that no request was an instance of for so long make room for others."""

_SERIES_BYTES = 8 * 4 + 4 * 2
"""What a template takes for a series, beside its references and metadata."""
_ENTRY_BYTES, _SHARD_BYTES, _KEY_BYTES = 2048, 16, 64
"""About what a template takes beside that: for its objects, for each shard, and for each of its metadata."""

_random = SystemRandom()


@dataclass(slots=True)
class _Entry:
    """`keys`: hashes of all metadata in a request. `label_bytes`: what the labels take when they are written.
    `version`: of the tables in which the series have their rows. `minute`: in which the template was used last.
    `epochs`: of the shards when the series had the numbers in the template; None if these are not filled in yet."""

    template: Template
    keys: frozenset[int]
    label_bytes: int
    version: int
    minute: int
    epochs: NDArray[np.int64] | None = None

    @property
    def bytes(self) -> int:
        return sum(part.nbytes for part in self.template) + _KEY_BYTES * len(self.keys) + _ENTRY_BYTES


@dataclass(frozen=True, slots=True)
class Instance:
    """A body that is an instance of a template: `known`, if each of its series has one sample, and nothing else.
    Otherwise the `walk`, in which all series have numbers, and `spans`, as `walk_v2.measure` fills them in."""

    body: NDArray[np.uint8]
    known: KnownSamples | None = None
    walk: Walk | None = None
    spans: NDArray[np.int32] | None = None

    resolved_bytes = 0
    """Of labels: none is written."""

    @property
    def bytes_total(self) -> int:
        return len(self.body)

    @property
    def steps(self) -> int:
        """As `remote_write.steps`."""
        return remote_write.decoding_steps(self.walk) if self.walk is not None else 0

    def cut(self, shards: int) -> Cut | None:
        """The frames of each shard; None if a histogram is not valid, whose series nobody has the labels of here."""
        if self.known is not None:
            cut = Cut(samples=self.known.samples, known_series=self.known.series)
            if cut.samples <= known_samples.SAMPLES_MAX:
                cut.known = self.known
            else:
                cut.parts = {shard: [frame] for shard, frame in known_samples.frames([self.known]).items()}
            return cut
        assert self.walk is not None and self.spans is not None
        answer = Cut()
        located = histograms.of_spans(self.walk, self.spans)
        per_shard = remote_write.divide([self.walk], shards, answer)
        remote_write.add_histograms(self.walk, located, shards, answer, per_shard)
        answer.parts.update(per_shard)
        return None if answer.refused_count else answer


class RequestTemplates:
    """The templates that are kept, in `bytes_max` bytes at most: some 110 for each series of a request.

    One request at a time uses them; another one, in another thread, does without. The series of a template have rows in
    `references`, the only ones that its requests may be cut with.
    """

    def __init__(self, bytes_max: int, references: SeriesReferences) -> None:
        self.references = references
        self._bytes_max = bytes_max
        self._bytes = 0
        self._probes = np.zeros((TEMPLATES_MAX if bytes_max else 0, PROBE_COLUMNS), dtype=np.int64)
        self._places = 0
        """Rows of the table of probes that are looked at: the others never had a template."""
        self._entries: dict[int, _Entry] = {}
        """By their rows in the table of probes, the one that was used last at the end."""
        self._seen: dict[int, None] = {}
        self._lock = Lock()

    @property
    def bytes(self) -> int:
        """Memory that the templates and what finds them take."""
        return self._bytes + self._probes.nbytes if self._entries else 0

    def read(self, body: NDArray[np.uint8], bytes_max: int, known_metadata: Iterable[int]) -> Instance | None:
        """What a decompressed request is if it is an instance of a template, its metadata is known (by hash), and it
        has no more than `bytes_max` bytes with the labels written out."""
        if not self._entries or not self._lock.acquire(blocking=False):
            return None
        try:
            for place in self._candidates(body):
                entry = self._entries[place]
                if len(body) + entry.label_bytes <= bytes_max and entry.keys.issubset(known_metadata):
                    instance = self._read(body, place, entry)
                    if instance is not None:
                        return instance
            return None
        finally:
            self._lock.release()

    def _candidates(self, body: NDArray[np.uint8]) -> list[int]:
        """The templates that have the table of symbols of a body, CANDIDATES_MAX at most."""
        found = np.empty(CANDIDATES_MAX, dtype=np.int64)
        places = found[: kernels.find(body, self._probes[: self._places], found)].tolist()
        return [place for place in places if kernels.begins_with(body, self._entries[place].template.table)]

    def _read(self, body: NDArray[np.uint8], place: int, entry: _Entry) -> Instance | None:
        with self.references.lent() as tables:
            version = tables.used.item(VERSION)
            if version != entry.version:
                if version:  # not while another thread has the tables
                    self._drop(place)
                return None
            if not self._has_numbers(entry, tables):
                return None
        self._entries[place] = self._entries.pop(place)
        template, epochs = entry.template, entry.epochs
        assert epochs is not None
        times, bits = (np.empty(len(template.rows), dtype=np.int64) for _ in range(2))
        if kernels.read_samples(body, template, times, bits):
            known = KnownSamples(template.runs, template.shard_of, times, bits, template.totals, epochs)
            return Instance(body, known)
        return _rows_of(body, template, epochs)

    def _has_numbers(self, entry: _Entry, tables: Tables) -> bool:
        """Whether the template has the numbers of now, after it has taken them where it had not. Earlier ones stay in
        the arrays of requests that are under way."""
        minute, epochs = tables.used.item(NOW), self.references.epochs
        if minute == entry.minute and epochs is entry.epochs:
            return True
        runs = np.empty_like(entry.template.runs)
        if not kernels.renew(entry.template.rows, tables, runs):
            return False
        entry.template, entry.minute, entry.epochs = entry.template._replace(runs=runs), minute, epochs
        return True

    def keep(
        self,
        body: NDArray[np.uint8],
        table_bytes: int,
        rows: NDArray[np.int64],
        hashes: NDArray[np.uint64],
        version: int,
        label_bytes: int,
        keys: Iterable[int],
    ) -> None:
        """Make a template of a body without exemplars whose table of symbols, of so many bytes, was sent before. Its
        series have these hashes, and these rows in the tables of the references of this version; `keys` are the hashes
        of its metadata. All of it is valid."""
        if len(rows) < SERIES_MIN or table_bytes < WORD_BYTES or not version or not self._bytes_max:
            return
        if not self._lock.acquire(blocking=False):
            return
        try:
            if self._is_wanted(body, int(xxh64(body, 0, table_bytes))):
                self._keep(body, table_bytes, rows, hashes, version, label_bytes, frozenset(keys))
        finally:
            self._lock.release()

    def _is_wanted(self, body: NDArray[np.uint8], table_hash: int) -> bool:
        """Whether a template of this body is to be made: its table of symbols was sent before, and is not that of one
        of which it is an instance, or of SAME_TABLE_MAX others."""
        if table_hash not in self._seen:
            self._seen[table_hash] = None
            if len(self._seen) > SEEN_MAX:
                del self._seen[next(iter(self._seen))]
            return False
        same_table = [self._entries[place].template for place in self._candidates(body)]
        return len(same_table) < SAME_TABLE_MAX and not any(_rows_of(body, each, None) for each in same_table)

    def _keep(
        self,
        body: NDArray[np.uint8],
        table_bytes: int,
        rows: NDArray[np.int64],
        hashes: NDArray[np.uint64],
        version: int,
        label_bytes: int,
        keys: frozenset[int],
    ) -> None:
        with self.references.lent() as tables:
            minute = int(tables.used[NOW])
        fixed = kernels.fixed_bytes(body, table_bytes, len(rows))
        own_bytes = table_bytes + fixed + SPARE_BYTES + _SERIES_BYTES * len(rows) + _KEY_BYTES * len(keys)
        own_bytes += _ENTRY_BYTES + _SHARD_BYTES * len(self.references.epochs)
        if fixed < 0 or not self._make_room(own_bytes, minute):
            return
        template = _template(body, table_bytes, fixed, rows, hashes, len(self.references.epochs))
        entry = _Entry(template, keys, label_bytes, version, minute)
        place = int(np.flatnonzero(self._probes[:, TABLE_BYTES] == 0)[0])
        self._probes[place] = table_bytes, *_probes_of(template.table)
        self._places = max(self._places, place + 1)
        self._entries[place] = entry
        self._bytes += entry.bytes

    def _make_room(self, more_bytes: int, now: int) -> bool:
        """Drop templates that were not used for a while, the one that was used longest ago first, as far as another one
        of so many bytes needs it. Returns whether it has room."""
        wanted = self._bytes_max - self._probes.nbytes - more_bytes
        while self._entries and (self._bytes > wanted or len(self._entries) == TEMPLATES_MAX):
            place, oldest = next(iter(self._entries.items()))
            if now - oldest.minute < UNUSED_MINUTES:
                return False
            self._drop(place)
        return self._bytes <= wanted

    def _drop(self, place: int) -> None:
        self._probes[place] = 0
        self._bytes -= self._entries.pop(place).bytes


def _probes_of(table: NDArray[np.uint8]) -> Iterator[int]:
    """Where PROBES words of a table of symbols begin, and these words; nobody can know which."""
    for _ in range(PROBES):
        at = _random.randrange(len(table) - WORD_BYTES + 1)
        yield at
        yield table[at : at + WORD_BYTES].view("<i8").item()


def _rows_of(body: NDArray[np.uint8], template: Template, epochs: NDArray[np.int64] | None) -> Instance | None:
    """What a body is that begins with the table of symbols of a template, if it is an instance of it."""
    series = len(template.rows)
    table, spans = np.zeros((series, COLUMNS), dtype=np.int64), scratch((series, REFERENCE_COLUMNS), np.int32)
    counts = np.zeros(COUNTS, dtype=np.int64)
    if not kernels.read_rows(body, template, table, spans, counts):
        return None
    walk = Walk(body, body[:0], table, template.hashes, counts, epochs=epochs)
    return Instance(body, None, walk, spans)


def _template(
    body: NDArray[np.uint8],
    table_bytes: int,
    fixed: int,
    rows: NDArray[np.int64],
    hashes: NDArray[np.uint64],
    shards: int,
) -> Template:
    shard_of = (hashes % np.uint64(shards)).astype(np.int64)
    series = len(rows)
    template = Template(
        table=np.empty(table_bytes, dtype=np.uint8),
        fixed=np.empty(fixed + SPARE_BYTES, dtype=np.uint8),
        bounds=np.empty((series, 2), dtype=np.int32),
        rows=rows.copy(),
        hashes=hashes.copy(),
        shard_of=shard_of,
        runs=np.zeros(series, dtype=np.int64),
        totals=np.repeat(np.bincount(shard_of, minlength=shards)[:, np.newaxis], 2, axis=1),
    )
    kernels.fill(body, template)
    return template


NO_TEMPLATES = RequestTemplates(0, SeriesReferences(0, 1))
"""Which are none, and keep none."""
