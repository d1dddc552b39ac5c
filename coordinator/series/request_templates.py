"""Templates of remote-write 2.0 requests: a repeated request is recognised by comparing its bytes, without look-ups.

A sender whose requests always have the same series repeats the symbol table and the references. If the symbol tables of
two requests are equal byte by byte, references with the same bytes mean the same labels. A request is therefore an
instance of a template if its symbol table is equal, and each of its series has the same references and metadata, byte
by byte, as the template's series at the same position. Its labels need no look-up, no check and no hash.

If each series has exactly one sample, only times and values are read. Together with the shards and series numbers of
the template they are known samples, as in version 1.0 (`coordinator.series.known_samples`). The candidate templates for
a request are those that agree with it in a few random words of the symbol table. All bytes of a candidate are compared
then, so that a hash alone never decides which series a sample belongs to.

A template has the rows of its series in `series_references`. It also has their numbers, which are valid as long as the
eras of the shards do not change.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from random import SystemRandom
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from coordinator.series import histograms, remote_write
from coordinator.series import template_kernels as kernels
from coordinator.series.known_samples import KnownSamples
from coordinator.series.series_references import NOW, VERSION, SeriesReferences, Tables
from coordinator.series.split_request import SplitRequest
from coordinator.series.template_kernels import PROBE_COLUMNS, PROBES, SPARE_BYTES, TABLE_BYTES, WORD_BYTES, Template
from coordinator.series.walk import COLUMNS, COUNTS
from coordinator.series.walk_v2 import REFERENCE_COLUMNS
from coordinator.series.walked import Walk
from shared.process.allocator import scratch
from shared.xxh64 import xxh64

TEMPLATES_MAX = 1024
"""A limit even for small templates, since each request reads a word of every template."""
CANDIDATES_MAX = 16
"""The most templates that a request is compared with, whatever symbol tables a sender chooses. Candidates have the same
words as the request at a few random positions."""
SAME_TABLE_MAX = 4
"""The most templates with the same symbol table: a sender of one table with ever different series gains nothing."""
SERIES_MIN = 16
"""The fewest series of a request that a template is made of: smaller requests cost little anyway."""
SEEN_MAX = 4096
"""How many hashes of symbol tables are remembered, at about 100 bytes each. A template is made when a table is sent for
the second time."""
UNUSED_MINUTES = 5
"""A template without an instance for this long may be dropped to make room for another."""

_SERIES_BYTES = 8 * 4 + 4 * 2
"""Bytes that a template takes for each series, besides its references and metadata."""
_ENTRY_BYTES, _SHARD_BYTES, _KEY_BYTES = 2048, 16, 64
"""Approximate bytes that a template takes in addition: for its objects, for each shard, and for each metadata key."""

_random = SystemRandom()


@dataclass(slots=True)
class _Entry:
    """A template and what belongs to it.

    `metadata_keys`: hashes of all metadata of the request. `label_bytes`: the bytes of its labels when written out.
    `version`: the version of the tables that the template's rows are in. `minute`: when the template was last used.
    `epochs`: the epochs of the series numbers in the template; None if the numbers are not filled in yet.
    """

    template: Template
    metadata_keys: frozenset[int]
    label_bytes: int
    version: int
    minute: int
    epochs: NDArray[np.int64] | None = None

    @property
    def bytes(self) -> int:
        return sum(part.nbytes for part in self.template) + _KEY_BYTES * len(self.metadata_keys) + _ENTRY_BYTES


@dataclass(frozen=True, slots=True)
class Instance:
    """A body that is an instance of a template. `known`: its samples, if each of its series has one sample and nothing
    else. Otherwise the `walk`, in which all series have numbers, and the `spans`, as filled in by `walk_v2.measure`."""

    body: NDArray[np.uint8]
    known: KnownSamples | None = None
    walk: Walk | None = None
    spans: NDArray[np.int32] | None = None

    resolved_bytes = 0
    """No labels are written for an instance."""

    @property
    def bytes_total(self) -> int:
        return len(self.body)

    @property
    def steps(self) -> int:
        """The cost of splitting the request, as `remote_write.steps`."""
        return remote_write.decoding_steps(self.walk) if self.walk is not None else 0

    def split(self, shards: int) -> SplitRequest | None:
        """Split the request by shard. Returns None if a histogram is invalid: the labels that an error message needs
        are not available here."""
        if self.known is not None:
            return SplitRequest.of_known(self.known)
        assert self.walk is not None and self.spans is not None
        split_request = SplitRequest()
        located = histograms.of_spans(self.walk, self.spans)
        per_shard = remote_write.divide_samples([self.walk], shards, split_request)
        remote_write.add_histograms(self.walk, located, shards, split_request, per_shard)
        split_request.parts.update(per_shard)
        return None if split_request.refused_count else split_request


class RequestTemplates:
    """The templates, in at most `bytes_max` bytes: about 110 for each series of a request.

    One request at a time uses them; a request in another thread is read without templates meanwhile. The rows of a
    template are rows of `references`, and its requests may only be split with these references.
    """

    def __init__(self, bytes_max: int, references: SeriesReferences) -> None:
        self.references = references
        self._bytes_max = bytes_max
        self._bytes = 0
        self._probes = np.zeros((TEMPLATES_MAX if bytes_max else 0, PROBE_COLUMNS), dtype=np.int64)
        self._places = 0
        """How many rows of the table of probes have ever had a template. The others are not read."""
        self._entries: dict[int, _Entry] = {}
        """Row in the table of probes → entry, in the order of last use."""
        self._seen: dict[int, None] = {}
        self._lock = Lock()

    @property
    def bytes(self) -> int:
        """Memory of the templates and of the table of probes."""
        return self._bytes + self._probes.nbytes if self._entries else 0

    def read(self, body: NDArray[np.uint8], bytes_max: int, known_metadata: Iterable[int]) -> Instance | None:
        """Read a decompressed request as an instance of a template. Returns None if there is no template for it, if the
        hash of some of its metadata is not in `known_metadata`, or if it has more than `bytes_max` bytes with the
        labels written out."""
        if not self._entries or not self._lock.acquire(blocking=False):
            return None
        try:
            for place in self._candidates(body):
                entry = self._entries[place]
                if len(body) + entry.label_bytes <= bytes_max and entry.metadata_keys.issubset(known_metadata):
                    instance = self._read(body, place, entry)
                    if instance is not None:
                        return instance
            return None
        finally:
            self._lock.release()

    def _candidates(self, body: NDArray[np.uint8]) -> list[int]:
        """The places of the templates with the symbol table of a body, at most CANDIDATES_MAX."""
        candidates = np.empty(CANDIDATES_MAX, dtype=np.int64)
        places = candidates[: kernels.find(body, self._probes[: self._places], candidates)].tolist()
        return [place for place in places if kernels.begins_with(body, self._entries[place].template.table)]

    def _read(self, body: NDArray[np.uint8], place: int, entry: _Entry) -> Instance | None:
        with self.references.lent() as tables:
            version = tables.used.item(VERSION)
            if version != entry.version:
                if version:  # it is 0 while another thread uses the tables
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
        return _read_rows(body, template, epochs)

    def _has_numbers(self, entry: _Entry, tables: Tables) -> bool:
        """Bring the series numbers of a template up to date. Returns False if one of its series has no number now. The
        new numbers are in a new array, since requests in progress still use the old one."""
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
        metadata_keys: Iterable[int],
    ) -> None:
        """Make a template of a valid body without exemplars, if the same symbol table was sent before.

        `table_bytes`: the size of the symbol table. `rows`: the rows of the series in the tables of `references`, and
        `version`: the version of these tables. `hashes`: the hashes of the series. `label_bytes`: the bytes of the
        labels when written out. `metadata_keys`: the hashes of all metadata.
        """
        if len(rows) < SERIES_MIN or table_bytes < WORD_BYTES or not version or not self._bytes_max:
            return
        if not self._lock.acquire(blocking=False):
            return
        try:
            if self._is_wanted(body, int(xxh64(body, 0, table_bytes))):
                self._keep(body, table_bytes, rows, hashes, version, label_bytes, frozenset(metadata_keys))
        finally:
            self._lock.release()

    def _is_wanted(self, body: NDArray[np.uint8], table_hash: int) -> bool:
        """Whether to make a template of this body: its symbol table was sent before, it is not an instance of a
        template, and there are fewer than SAME_TABLE_MAX templates with its table."""
        if table_hash not in self._seen:
            self._seen[table_hash] = None
            if len(self._seen) > SEEN_MAX:
                del self._seen[next(iter(self._seen))]
            return False
        same_table = [self._entries[place].template for place in self._candidates(body)]
        return len(same_table) < SAME_TABLE_MAX and not any(_read_rows(body, each, None) for each in same_table)

    def _keep(
        self,
        body: NDArray[np.uint8],
        table_bytes: int,
        rows: NDArray[np.int64],
        hashes: NDArray[np.uint64],
        version: int,
        label_bytes: int,
        metadata_keys: frozenset[int],
    ) -> None:
        with self.references.lent() as tables:
            minute = int(tables.used[NOW])
        fixed_bytes = kernels.fixed_bytes(body, table_bytes, len(rows))
        template_bytes = _ENTRY_BYTES + _SHARD_BYTES * len(self.references.epochs) + _KEY_BYTES * len(metadata_keys)
        template_bytes += table_bytes + fixed_bytes + SPARE_BYTES + _SERIES_BYTES * len(rows)
        if fixed_bytes < 0 or not self._make_room(template_bytes, minute):
            return
        template = _template(body, table_bytes, fixed_bytes, rows, hashes, len(self.references.epochs))
        entry = _Entry(template, metadata_keys, label_bytes, version, minute)
        place = int(np.flatnonzero(self._probes[:, TABLE_BYTES] == 0)[0])
        self._probes[place] = table_bytes, *_probes_of(template.table)
        self._places = max(self._places, place + 1)
        self._entries[place] = entry
        self._bytes += entry.bytes

    def _make_room(self, template_bytes: int, minute: int) -> bool:
        """Make room for a template of `template_bytes` by dropping templates that have not been used for
        UNUSED_MINUTES, the least recently used first. Returns whether there is room."""
        bytes_max = self._bytes_max - self._probes.nbytes - template_bytes
        while self._entries and (self._bytes > bytes_max or len(self._entries) == TEMPLATES_MAX):
            place, least_recent = next(iter(self._entries.items()))
            if minute - least_recent.minute < UNUSED_MINUTES:
                return False
            self._drop(place)
        return self._bytes <= bytes_max

    def _drop(self, place: int) -> None:
        self._probes[place] = 0
        self._bytes -= self._entries.pop(place).bytes


def _probes_of(table: NDArray[np.uint8]) -> Iterator[int]:
    """Yield the positions of PROBES words of a symbol table, each followed by the word. The positions are random, so
    that a sender cannot know them."""
    for _ in range(PROBES):
        at = _random.randrange(len(table) - WORD_BYTES + 1)
        yield at
        yield table[at : at + WORD_BYTES].view("<i8").item()


def _read_rows(body: NDArray[np.uint8], template: Template, epochs: NDArray[np.int64] | None) -> Instance | None:
    """Read a body that begins with the symbol table of a template; None if it is not an instance of the template."""
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
    fixed_bytes: int,
    rows: NDArray[np.int64],
    hashes: NDArray[np.uint64],
    shards: int,
) -> Template:
    shard_of = (hashes % np.uint64(shards)).astype(np.int64)
    series = len(rows)
    template = Template(
        table=np.empty(table_bytes, dtype=np.uint8),
        fixed=np.empty(fixed_bytes + SPARE_BYTES, dtype=np.uint8),
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
"""Never contains a template."""
