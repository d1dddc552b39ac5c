"""Remote write 2.0: a request's body, surveyed with bounds, checked and cut into one body per shard.

Protocol: https://prometheus.io/docs/specs/prw/remote_write_spec_2_0/. What a request's labels take once its references
are resolved is known after the survey, before any of it is written: a small body can refer to a long text any number of
times. From the cut on, a request is the same as one of version 1.0 (`coordinator.series.remote_write`), whose rules and
limits hold here too.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from coordinator.series import exemplars_v2, expansion, histograms, metadata, remote_write
from coordinator.series import walk_v2 as kernels
from coordinator.series.exemplars import ROW
from coordinator.series.exemplars_v2 import Located
from coordinator.series.known_labels import KNOWN_COLUMNS, KNOWN_SET, NO_TABLES, KnownLabels, recognise
from coordinator.series.remote_write import ODD_BODY_BYTES_MAX, Cut, Limits, Walk, histograms_of
from coordinator.series.request_templates import NO_TEMPLATES, RequestTemplates
from coordinator.series.series_references import VERSION, SeriesReferences
from coordinator.series.symbols import BEGIN, SYMBOL_COLUMNS, SYMBOL_END
from coordinator.series.walk import (
    COLUMNS,
    COUNTS,
    END,
    EXEMPLARS,
    LABELS,
    METADATA,
    NUMBERED,
    ODD,
    STATUS,
)
from coordinator.series.walk_v2 import METADATA_COLUMNS, REFERENCE_COLUMNS
from proto import remote_write_v2_pb2
from shared.allocator import scratch
from shared.errors import BadData, TooLarge
from shared.wire import Frame

MESSAGE = "io.prometheus.write.v2.Request"
SYMBOLS_MAX = 1 << 20
"""Symbols of one request: their tables take 36 bytes for each of them, however little the body spends on one."""
SERIES_MAX = 1 << 19
"""Series of one request: its tables and frames take some 165 bytes for each at a time, and the body may spend 8 on
one."""

KEEPS_NONE = KnownLabels(0)

_METADATA_MIN = 2
"""Rows of the table of metadata: one, and the one that the next series is read into."""


@dataclass(slots=True)
class Survey:
    """A body with the table of its symbols and its series checked: `symbols` int64[symbols, SYMBOL_COLUMNS],
    `references` int32[series, REFERENCE_COLUMNS], `said` int64[n, METADATA_COLUMNS] and the hashes of its
    rows, `keys` uint64[n] (columns of `coordinator.series.walk_v2`). The labels of the walk, of `label_bytes`, are not
    written yet, and neither are those of the exemplars."""

    walk: Walk
    symbols: NDArray[np.int64]
    references: NDArray[np.int32]
    said: NDArray[np.int64]
    keys: NDArray[np.uint64]
    label_bytes: int
    odd: NDArray[np.int64]
    """Series that are not plain."""
    exemplars: Located
    known_labels: KnownLabels
    known: NDArray[np.int32]
    numbers: NDArray[np.int32]
    """The series with known labels, and which of the known texts each symbol is, as `recognise` gives them: as long as
    the known labels have this `generation`."""
    generation: int
    series_references: SeriesReferences
    """The series that are sent by their numbers."""
    all_keys: NDArray[np.uint64]
    """The hashes of all metadata, known or not."""
    templates: RequestTemplates
    """Which get one of this request, if it may come again."""

    @property
    def resolved_bytes(self) -> int:
        """What the labels of series and exemplars take at most when they are written."""
        return self.label_bytes + self.exemplars.label_bytes

    @property
    def bytes_total(self) -> int:
        """Of the body with the labels written out, which is what the same request takes in version 1.0."""
        return len(self.walk.body) + self.resolved_bytes

    @property
    def steps(self) -> int:
        """How many series and metadata are read by interpreted code, one by one; histograms as in version 1.0."""
        return len(self.odd) + len(self.said) + remote_write.decoding_steps(self.walk)

    def drop_references(self) -> None:
        """Give back the tables that nothing is read from once the labels are written and the histograms found, before
        frames as large are made."""
        self.references, self.known = self.references[:0].copy(), self.known[:0].copy()

    def text(self, symbol: int) -> bytes:
        return self.walk.body[self.symbols.item(symbol, BEGIN) : self.symbols.item(symbol, SYMBOL_END)].tobytes()


def survey(
    body: Frame,
    limits: Limits,
    bytes_max: int,
    known: Container[int] = (),
    known_labels: KnownLabels = KEEPS_NONE,
    series_references: SeriesReferences = remote_write.NO_REFERENCES,
    templates: RequestTemplates = NO_TEMPLATES,
) -> Survey:
    """Find the symbols and series of a decompressed request, what its labels take, and the metadata that is not among
    the `known` (by hash). Of `known_labels`, all requests have the same limits. The `series_references`, and the
    `templates` of their series, which gets one of this request, are for `cut`.

    Raises BadData if it is no Request or its table of symbols is not valid; TooLarge for more than SYMBOLS_MAX symbols,
    SERIES_MAX series, or more than `bytes_max` bytes with the labels written out, and past the bounds of version 1.0
    on series that are not plain and on metadata.
    """
    data = np.frombuffer(body, dtype=np.uint8)
    symbols_count, series, broken_at = kernels.count(data)
    if broken_at >= 0:
        raise BadData(f"the body is not a protobuf {MESSAGE}: the field at byte {broken_at} is not whole or unknown")
    if symbols_count > SYMBOLS_MAX:
        raise TooLarge(f"the request has {symbols_count} symbols; the limit is {SYMBOLS_MAX}, send it in smaller ones")
    if series > SERIES_MAX:
        raise TooLarge(f"the request has {series} series; the limit is {SERIES_MAX}, send it in smaller ones")
    symbols = np.empty((symbols_count, SYMBOL_COLUMNS), dtype=np.int64)
    table = np.zeros((series, COLUMNS), dtype=np.int64)
    kernels.index(data, symbols, table, limits.array())
    _check_symbols(symbols, len(data))
    references = scratch((series, REFERENCE_COLUMNS), np.int32)
    said = np.empty((_METADATA_MIN + min(series, metadata.METADATA_MAX), METADATA_COLUMNS), dtype=np.int64)
    counts = np.zeros(COUNTS, dtype=np.int64)
    most = bytes_max - len(data)
    numbers = np.full(symbols_count, -1, dtype=np.int32)
    recognised = scratch((series, KNOWN_COLUMNS), np.int32)
    recognised[:, KNOWN_SET] = -1
    with known_labels.lent() as tables:
        generation = known_labels.generation
        if tables is not NO_TABLES:
            recognise(data, symbols, table, tables, numbers, recognised)
    label_bytes = kernels.measure(
        data,
        symbols,
        table,
        references,
        said,
        counts,
        limits.labels,
        most,
        np.full(kernels.SHAPE_MAX + 1, -1),
        np.full(symbols_count, -1, dtype=np.int32),
        recognised,
    )
    if label_bytes < 0:
        raise _too_large("series", len(data), bytes_max)
    odd = np.flatnonzero(table[:, STATUS] == ODD)
    remote_write.check_odd_count(len(odd))
    walk = Walk(data, data[:0], table, np.empty(series, dtype=np.uint64), counts)
    if counts[METADATA] > metadata.METADATA_MAX:
        raise TooLarge(f"the series have more than {metadata.METADATA_MAX} different metadata together, the limit")
    said = said[: counts[METADATA]]
    keys = np.empty(len(said), dtype=np.uint64)
    expansion.hash_metadata(data, symbols, said, keys)
    is_new = np.array([key not in known for key in keys.tolist()], dtype=np.bool_)
    located = exemplars_v2.NONE
    if counts[EXEMPLARS] or len(odd):
        located = exemplars_v2.locate(data, symbols, table, references, odd, limits.exemplars)
        if label_bytes + located.label_bytes > most:
            raise _too_large("exemplars", len(data), bytes_max)
    return Survey(
        walk, symbols, references, said[is_new], keys[is_new], label_bytes, odd, located, known_labels, recognised,
        numbers, generation, series_references, keys, templates,
    )  # fmt: skip


def _too_large(what: str, body_bytes: int, bytes_max: int) -> TooLarge:
    return TooLarge(
        f"the body has {body_bytes} bytes, and with the labels that its {what} refer to more than {bytes_max}, "
        "which is the limit (TRIPTYCH_DECOMPRESSED_BYTES_MAX); send it in smaller ones"
    )


def _check_symbols(symbols: NDArray[np.int64], body_bytes: int) -> None:
    if not len(symbols):
        raise BadData(f"a {MESSAGE} of {body_bytes} bytes has no symbols; the first must be the empty string")
    size = symbols[0, SYMBOL_END] - symbols[0, BEGIN]
    if size:
        raise BadData(f"the first of {len(symbols)} symbols has {size} bytes; it must be the empty string")


def cut(surveyed: Survey, shards: int, limits: Limits) -> Cut:
    """Cut a request by the shard of each series, and read its metadata.

    A series or sample that is not valid is left out and named in `Cut.refused`. Raises TooLarge past the bounds of
    version 1.0.
    """
    walk, answer = surveyed.walk, Cut()
    entries = _Entries(surveyed, answer)
    rows, version = _expand(surveyed)
    entries.add_plain()
    pieces = [walk]
    if len(surveyed.odd):
        pieces.append(remote_write.rewalked(_odd(surveyed, limits, answer, entries), limits))
    located_histograms = [histograms.of_spans(walk, surveyed.references), *map(histograms_of, pieces[1:])]
    surveyed.drop_references()
    per_shard = remote_write.divide(pieces, shards, answer)
    for piece, located in zip(pieces, located_histograms, strict=True):
        remote_write.add_histograms(piece, located, shards, answer, per_shard)
    if len(surveyed.exemplars.table):
        _divide_exemplars(surveyed, pieces, shards, answer, per_shard)
    answer.exemplars_left_out += surveyed.exemplars.left_out
    answer.parts.update(per_shard)
    answer.metadata = list(entries.entries)
    if not answer.refused_count and not len(surveyed.odd) and walk.table[:, NUMBERED].all():
        table_bytes = surveyed.symbols.item(-1, SYMBOL_END)
        keys = surveyed.all_keys.tolist()
        surveyed.templates.keep(walk.body, table_bytes, rows, walk.hashes, version, surveyed.label_bytes, keys)
    return answer


def _expand(surveyed: Survey) -> tuple[NDArray[np.int64], int]:
    """Write the labels of the walk, and keep those that are not known yet. Returns (int64[series]: the rows of the
    series that are sent by their numbers, the version of the tables that these are in)."""
    walk = surveyed.walk
    rows = np.empty(len(walk.table), dtype=np.int64)
    walk.label_data = np.empty(surveyed.label_bytes + expansion.SPARE_BYTES, dtype=np.uint8)
    references = surveyed.series_references
    with surveyed.known_labels.lent() as tables, references.lent() as numbered:
        walk.epochs = references.epochs.copy()
        if tables is NO_TABLES or surveyed.known_labels.generation != surveyed.generation:
            tables = NO_TABLES  # known sets are written like the others
            surveyed.known[:, KNOWN_SET] = -1
        is_as_measured = expansion.expand(
            walk.body,
            surveyed.symbols,
            walk.table,
            surveyed.references,
            walk.label_data,
            walk.hashes,
            surveyed.known,
            surveyed.numbers,
            tables,
            numbered,
            rows,
        )
        version = int(numbered.used[VERSION])
    assert is_as_measured, "labels take as many bytes as were measured"
    return rows, version


def _divide_exemplars(
    surveyed: Survey, pieces: Sequence[Walk], shards: int, answer: Cut, per_shard: dict[int, list[Frame]]
) -> None:
    """Add the frames with the exemplars of the plain series and of those that were rewritten, whose walk is the second
    of `pieces`. The others are refused with their series."""
    read = surveyed.exemplars.read(surveyed.walk.body, surveyed.symbols)
    plain, odd = np.split(read.table, [surveyed.exemplars.plain])
    if len(plain):
        remote_write.add_exemplars(replace(read, table=plain), pieces[0], shards, answer, per_shard)
    if len(odd):
        numbers = np.array(pieces[1].numbers, dtype=np.int64)  # ascending, as the series of a request are
        rows = np.searchsorted(numbers, odd[:, ROW])
        is_kept = np.append(numbers, -1)[rows] == odd[:, ROW]
        answer.exemplars_refused += len(odd) - int(is_kept.sum())
        odd[:, ROW] = rows
        remote_write.add_exemplars(replace(read, table=odd[is_kept]), pieces[1], shards, answer, per_shard)


def _odd(surveyed: Survey, limits: Limits, answer: Cut, entries: _Entries) -> Iterator[tuple[int, bytes]]:
    """The series that are not plain, through the protobuf library one by one, in the canonical form of version 1.0.
    Refusals go to `answer`, the metadata of series with valid labels to `entries`."""
    body, symbols = surveyed.walk.body, surveyed.symbols
    begins, ends = surveyed.walk.table[surveyed.odd, LABELS], surveyed.walk.table[surveyed.odd, END]
    counts = np.zeros((len(surveyed.odd), 2), dtype=np.int64)
    kernels.count_fields(body, begins, ends, counts)  # of all of them: a call for each would not let other threads in
    label_counts = counts[:, 0] // 2
    is_read = label_counts <= limits.labels
    for number, count in zip(surveyed.odd[~is_read].tolist(), label_counts[~is_read].tolist(), strict=True):
        answer.refuse(f"series {number}: it has {count} labels; the limit is {limits.labels}")
    # Flat lists, of which no element is an object that the garbage collector must visit.
    spans = surveyed.odd[is_read].tolist(), begins[is_read].tolist(), ends[is_read].tolist()
    exemplar_counts = surveyed.exemplars.odd_counts[is_read].tolist()
    fields = np.cumsum(counts[is_read, 1]).tolist()
    for number, begin, end, fields_before in zip(*spans, fields, strict=True):
        remote_write.check_odd_size(number, end - begin, fields_before)
    text_bytes = 0
    for number, begin, end, exemplars in zip(*spans, exemplar_counts, strict=True):
        try:
            series = remote_write_v2_pb2.RawTimeSeries.FromString(body[begin:end].tobytes())
        except DecodeError as error:
            answer.refuse(f"series {number} is not a protobuf TimeSeries: {error}")
            continue
        unread = len(series.exemplars) - exemplars
        if limits.exemplars and unread:
            answer.exemplars_refused += unread
            answer.refuse(f"series {number}: {unread} exemplars come after a group, a kind of field that is not read")
        references = list(series.labels_refs)
        problem = _reference_problem(references, len(symbols))
        if problem:
            answer.refuse(f"series {number}: {problem}")
            answer.histograms_refused += len(series.histograms)
            continue
        sizes = [symbols.item(reference, SYMBOL_END) - symbols.item(reference, BEGIN) for reference in references]
        text_bytes += sum(sizes)
        if text_bytes > ODD_BODY_BYTES_MAX:
            raise TooLarge(
                f"labels of series that are not in canonical form have more than {ODD_BODY_BYTES_MAX} bytes, up to "
                f"series {number}; send the request in smaller ones"
            )
        texts = [surveyed.text(reference) for reference in references]
        pairs = list(zip(texts[::2], texts[1::2], strict=True))
        created_ms = series.created_timestamp
        own_histograms = [histograms.with_start(message, created_ms) for message in series.histograms]
        written = remote_write.canonical(
            number, pairs, series.samples, limits, answer, histograms=own_histograms, created_ms=created_ms,
            is_kept=exemplars > 0,
        )  # fmt: skip
        if written is None:
            answer.histograms_refused += len(series.histograms)
        else:
            said = series.metadata
            entries.add(number, dict(pairs)[b"__name__"].decode(), said.type, said.help_ref, said.unit_ref)
            yield number, written


def _reference_problem(references: list[int], symbols: int) -> str:
    """Why label references cannot be resolved; "" if they can."""
    if len(references) % 2:
        return f"it has {len(references)} label references; they must be pairs of name and value"
    past = next((reference for reference in references if reference >= symbols), None)
    if past is not None:
        return f"a label reference is {past}; the request has {symbols} symbols, counted from 0"
    return ""


class _Entries:
    """The metadata of a request, each once, in its order. What is not valid is refused in `answer`."""

    def __init__(self, surveyed: Survey, answer: Cut) -> None:
        self.entries: dict[metadata.FamilyMetadata, None] = {}
        self._surveyed = surveyed
        self._answer = answer

    def add_plain(self) -> None:
        """Add what plain series said; its hashes go to `Cut.metadata_keys`."""
        surveyed = self._surveyed
        for key, (metric, *said) in zip(surveyed.keys.tolist(), surveyed.said.tolist(), strict=True):
            if self.add(None, surveyed.text(metric).decode(), *said):
                self._answer.metadata_keys.append(key)

    def add(self, number: int | None, metric: str, kind: int, help_reference: int, unit_reference: int) -> bool:
        """Add what a series said of its metric; False if it is not valid. Saying nothing is valid."""
        if not (kind or help_reference or unit_reference):
            return True
        what = "metadata" if number is None else f"metadata of series {number}"
        texts = {"name": metadata.family_of(metric, kind)}
        for name, reference in (("help", help_reference), ("unit", unit_reference)):
            if not 0 <= reference < len(self._surveyed.symbols):
                count = len(self._surveyed.symbols)
                self._answer.refuse(
                    f"{what} of metric {metric[:200]!r}: its {name} is symbol {reference}; the request has {count}, "
                    "counted from 0"
                )
                return False
            try:
                texts[name] = self._surveyed.text(reference).decode()
            except UnicodeDecodeError as error:
                self._answer.refuse(f"{what} of metric {metric[:200]!r}: its {name} is not UTF-8 at byte {error.start}")
                return False
        entry = metadata.checked(texts, kind, what, self._answer.refuse)
        if entry is None:
            return False
        self.entries[entry] = None
        return True
