"""Remote write 2.0: surveys a decompressed request body, checks it and splits it into frames, by shard.

Protocol: https://prometheus.io/docs/specs/prw/remote_write_spec_2_0/. A small body can refer to a long text any number
of times. The survey therefore measures how many bytes the labels of a request take once its references are resolved,
before any label is written. A split request is the same as one of version 1.0 (`coordinator.series.remote_write`),
whose rules and limits apply here too.
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
from coordinator.series.remote_write import ODD_BODY_BYTES_MAX, Limits, Walk, histograms_of
from coordinator.series.request_templates import NO_TEMPLATES, RequestTemplates
from coordinator.series.series_references import VERSION, SeriesReferences
from coordinator.series.split_request import SplitRequest
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
from shared.errors import BadData, TooLarge
from shared.process.allocator import scratch
from shared.wire import Frame

MESSAGE = "io.prometheus.write.v2.Request"
SYMBOLS_MAX = 1 << 20
"""Symbols of one request: the tables take 36 bytes for each symbol, however few bytes the body has for it."""
SERIES_MAX = 1 << 19
"""Series of one request: tables and frames take up to about 165 bytes at a time for each series, for which the body may
have only 8 bytes."""

KEEPS_NONE = KnownLabels(0)

_METADATA_MIN = 2
"""The fewest rows of the metadata table: one row, and one that the metadata of the next series is read into."""


@dataclass(slots=True)
class Survey:
    """A checked body with tables of its symbols, series and metadata. The labels of series and exemplars are measured,
    but not written yet.

    `symbols`: int64[symbols, SYMBOL_COLUMNS]. `references`: int32[series, REFERENCE_COLUMNS]. `metadata_table`:
    int64[n, METADATA_COLUMNS], the metadata that is not known yet, and `metadata_keys`: uint64[n], the hashes of its
    rows (columns of `coordinator.series.walk_v2`). `label_bytes`: the bytes of the labels of all plain series.
    """

    walk: Walk
    symbols: NDArray[np.int64]
    references: NDArray[np.int32]
    metadata_table: NDArray[np.int64]
    metadata_keys: NDArray[np.uint64]
    label_bytes: int
    odd: NDArray[np.int64]
    """int64[n]: the rows of the series that are not plain."""
    exemplars: Located
    known_labels: KnownLabels
    recognised: NDArray[np.int32]
    numbers: NDArray[np.int32]
    """Results of `known_labels.recognise`: the series with known labels, and the known text that each symbol equals.
    Only valid while the known labels have this `generation`."""
    generation: int
    series_references: SeriesReferences
    """The known series, which are sent by their numbers."""
    all_metadata_keys: NDArray[np.uint64]
    """The hashes of all metadata of the request, known or not."""
    templates: RequestTemplates
    """Gets a template of this request if the request may be repeated."""

    @property
    def resolved_bytes(self) -> int:
        """An upper bound of the bytes that the labels of series and exemplars take when they are written."""
        return self.label_bytes + self.exemplars.label_bytes

    @property
    def bytes_total(self) -> int:
        """The bytes of the body with all labels written out: about the size of the same request in version 1.0."""
        return len(self.walk.body) + self.resolved_bytes

    @property
    def steps(self) -> int:
        """The cost of splitting the request, as `remote_write.steps`."""
        return len(self.odd) + len(self.metadata_table) + remote_write.decoding_steps(self.walk)

    def drop_references(self) -> None:
        """Free the tables that are not needed once the labels are written and the histograms are located. The frames,
        which are built next, are as large as these tables."""
        self.references, self.recognised = self.references[:0].copy(), self.recognised[:0].copy()

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
    """Find and check the symbols and series of a decompressed request, measure its labels, and find the metadata whose
    hash is not in `known`. All requests with the same `known_labels` must have the same limits. `split` uses the
    `series_references`, and adds a template of the request to `templates`, which must be for the same references.

    Raises BadData if the body is not a Request or its symbol table is invalid. Raises TooLarge for more than
    SYMBOLS_MAX symbols, more than SERIES_MAX series, or more than `bytes_max` bytes with all labels written out, and if
    the limits of version 1.0 on series that are not plain or on metadata are exceeded.
    """
    data = np.frombuffer(body, dtype=np.uint8)
    symbols_count, series, broken_at = kernels.count(data)
    if broken_at >= 0:
        raise BadData(f"the body is not a protobuf {MESSAGE}: the field at byte {broken_at} is truncated or unknown")
    if symbols_count > SYMBOLS_MAX:
        raise TooLarge(f"the request has {symbols_count} symbols; the limit is {SYMBOLS_MAX}, send it in smaller ones")
    if series > SERIES_MAX:
        raise TooLarge(f"the request has {series} series; the limit is {SERIES_MAX}, send it in smaller ones")
    symbols = np.empty((symbols_count, SYMBOL_COLUMNS), dtype=np.int64)
    table = np.zeros((series, COLUMNS), dtype=np.int64)
    kernels.index(data, symbols, table, limits.array())
    _check_symbols(symbols, len(data))
    references = scratch((series, REFERENCE_COLUMNS), np.int32)
    metadata_table = np.empty((_METADATA_MIN + min(series, metadata.METADATA_MAX), METADATA_COLUMNS), dtype=np.int64)
    counts = np.zeros(COUNTS, dtype=np.int64)
    label_bytes_max = bytes_max - len(data)
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
        metadata_table,
        counts,
        limits.labels,
        label_bytes_max,
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
    metadata_table = metadata_table[: counts[METADATA]]
    metadata_keys = np.empty(len(metadata_table), dtype=np.uint64)
    expansion.hash_metadata(data, symbols, metadata_table, metadata_keys)
    is_new = np.array([key not in known for key in metadata_keys.tolist()], dtype=np.bool_)
    located = exemplars_v2.NONE
    if counts[EXEMPLARS] or len(odd):
        located = exemplars_v2.locate(data, symbols, table, references, odd, limits.exemplars)
        if label_bytes + located.label_bytes > label_bytes_max:
            raise _too_large("exemplars", len(data), bytes_max)
    return Survey(
        walk, symbols, references, metadata_table[is_new], metadata_keys[is_new], label_bytes, odd, located,
        known_labels, recognised, numbers, generation, series_references, metadata_keys, templates,
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


def split(surveyed: Survey, shards: int, limits: Limits) -> SplitRequest:
    """Split a request by the shard of each series, and read its metadata.

    Invalid series and samples are left out and named in `SplitRequest.refused`. Raises TooLarge if the request exceeds
    a limit of version 1.0.
    """
    walk, split_request = surveyed.walk, SplitRequest()
    entries = _Entries(surveyed, split_request)
    rows, version = _expand(surveyed)
    entries.add_plain()
    walks = [walk]
    if len(surveyed.odd):
        walks.append(remote_write.rewalked(_rewrite_odd(surveyed, limits, split_request, entries), limits))
    located_histograms = [histograms.of_spans(walk, surveyed.references), *map(histograms_of, walks[1:])]
    surveyed.drop_references()
    per_shard = remote_write.divide_samples(walks, shards, split_request)
    for walked, located in zip(walks, located_histograms, strict=True):
        remote_write.add_histograms(walked, located, shards, split_request, per_shard)
    if len(surveyed.exemplars.table):
        _divide_exemplars(surveyed, walks, shards, split_request, per_shard)
    split_request.exemplars_left_out += surveyed.exemplars.left_out
    split_request.parts.update(per_shard)
    split_request.metadata = list(entries.entries)
    if not split_request.refused_count and not len(surveyed.odd) and walk.table[:, NUMBERED].all():
        table_bytes = surveyed.symbols.item(-1, SYMBOL_END)
        keys = surveyed.all_metadata_keys.tolist()
        surveyed.templates.keep(walk.body, table_bytes, rows, walk.hashes, version, surveyed.label_bytes, keys)
    return split_request


def _expand(surveyed: Survey) -> tuple[NDArray[np.int64], int]:
    """Write the labels of the walk, and keep those that are not known yet. Returns (the rows of the known series in the
    tables of references, int64[series]; the version of these tables)."""
    walk = surveyed.walk
    rows = np.empty(len(walk.table), dtype=np.int64)
    walk.label_data = np.empty(surveyed.label_bytes + expansion.SPARE_BYTES, dtype=np.uint8)
    references = surveyed.series_references
    with surveyed.known_labels.lent() as tables, references.lent() as numbered:
        walk.epochs = references.epochs.copy()
        if tables is NO_TABLES or surveyed.known_labels.generation != surveyed.generation:
            tables = NO_TABLES  # the labels of known sets are written like all others
            surveyed.recognised[:, KNOWN_SET] = -1
        is_as_measured = expansion.expand(
            walk.body,
            surveyed.symbols,
            walk.table,
            surveyed.references,
            walk.label_data,
            walk.hashes,
            surveyed.recognised,
            surveyed.numbers,
            tables,
            numbered,
            rows,
        )
        version = int(numbered.used[VERSION])
    assert is_as_measured, "labels take as many bytes as were measured"
    return rows, version


def _divide_exemplars(
    surveyed: Survey, walks: Sequence[Walk], shards: int, split_request: SplitRequest, per_shard: dict[int, list[Frame]]
) -> None:
    """Add the frames with the exemplars of the plain series and of the rewritten series, whose walk is the second of
    `walks`. The other exemplars are refused together with their series."""
    exemplars = surveyed.exemplars.read(surveyed.walk.body, surveyed.symbols)
    plain, odd = np.split(exemplars.table, [surveyed.exemplars.plain])
    if len(plain):
        remote_write.add_exemplars(replace(exemplars, table=plain), walks[0], shards, split_request, per_shard)
    if len(odd):
        numbers = np.array(walks[1].numbers, dtype=np.int64)  # ascending, as the series of a request are
        rows = np.searchsorted(numbers, odd[:, ROW])
        is_kept = np.append(numbers, -1)[rows] == odd[:, ROW]
        split_request.exemplars_refused += len(odd) - int(is_kept.sum())
        odd[:, ROW] = rows
        remote_write.add_exemplars(replace(exemplars, table=odd[is_kept]), walks[1], shards, split_request, per_shard)


def _rewrite_odd(
    surveyed: Survey, limits: Limits, split_request: SplitRequest, entries: _Entries
) -> Iterator[tuple[int, bytes]]:
    """Parse the series that are not plain one by one with the protobuf library. Yields (number, the series in the
    canonical form of version 1.0). Refusals go to `split_request`, the metadata of series with valid labels to
    `entries`."""
    body, symbols = surveyed.walk.body, surveyed.symbols
    begins, ends = surveyed.walk.table[surveyed.odd, LABELS], surveyed.walk.table[surveyed.odd, END]
    counts = np.zeros((len(surveyed.odd), 2), dtype=np.int64)
    kernels.count_fields(body, begins, ends, counts)  # one call for all lets other threads run meanwhile
    label_counts = counts[:, 0] // 2
    is_read = label_counts <= limits.labels
    for number, count in zip(surveyed.odd[~is_read].tolist(), label_counts[~is_read].tolist(), strict=True):
        split_request.refuse(f"series {number}: it has {count} labels; the limit is {limits.labels}")
    # Flat lists of ints, which the garbage collector does not have to traverse.
    spans = surveyed.odd[is_read].tolist(), begins[is_read].tolist(), ends[is_read].tolist()
    exemplar_counts = surveyed.exemplars.odd_counts[is_read].tolist()
    field_counts = np.cumsum(counts[is_read, 1]).tolist()
    for number, begin, end, fields_so_far in zip(*spans, field_counts, strict=True):
        remote_write.check_odd_size(number, end - begin, fields_so_far)
    text_bytes = 0
    for number, begin, end, exemplar_count in zip(*spans, exemplar_counts, strict=True):
        try:
            series = remote_write_v2_pb2.RawTimeSeries.FromString(body[begin:end].tobytes())
        except DecodeError as error:
            split_request.refuse(f"series {number} is not a protobuf TimeSeries: {error}")
            continue
        unread = len(series.exemplars) - exemplar_count
        if limits.exemplars and unread:
            split_request.exemplars_refused += unread
            split_request.refuse(
                f"series {number}: {unread} exemplars come after a group, a kind of field that is not read"
            )
        references = list(series.labels_refs)
        problem = _reference_problem(references, len(symbols))
        if problem:
            split_request.refuse(f"series {number}: {problem}")
            split_request.histograms_refused += len(series.histograms)
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
        series_histograms = [histograms.with_start(message, created_ms) for message in series.histograms]
        written = remote_write.canonical(
            number, pairs, series.samples, limits, split_request, histograms=series_histograms, created_ms=created_ms,
            is_kept=exemplar_count > 0,
        )  # fmt: skip
        if written is None:
            split_request.histograms_refused += len(series.histograms)
        else:
            series_metadata = series.metadata
            metric = dict(pairs)[b"__name__"].decode()
            entries.add(number, metric, series_metadata.type, series_metadata.help_ref, series_metadata.unit_ref)
            yield number, written


def _reference_problem(references: list[int], symbols: int) -> str:
    """Why label references cannot be resolved; "" if they can."""
    if len(references) % 2:
        return f"it has {len(references)} label references; they must be pairs of name and value"
    beyond = next((reference for reference in references if reference >= symbols), None)
    if beyond is not None:
        return f"a label reference is {beyond}; the request has {symbols} symbols, counted from 0"
    return ""


class _Entries:
    """The metadata of a request, in order and without duplicates. Invalid metadata is refused in `split_request`."""

    def __init__(self, surveyed: Survey, split_request: SplitRequest) -> None:
        self.entries: dict[metadata.FamilyMetadata, None] = {}
        self._surveyed = surveyed
        self._split_request = split_request

    def add_plain(self) -> None:
        """Add the metadata of plain series. Its hashes go to `SplitRequest.metadata_keys`."""
        surveyed = self._surveyed
        keys, rows = surveyed.metadata_keys.tolist(), surveyed.metadata_table.tolist()
        for key, (metric, *fields) in zip(keys, rows, strict=True):
            if self.add(None, surveyed.text(metric).decode(), *fields):
                self._split_request.metadata_keys.append(key)

    def add(self, number: int | None, metric: str, kind: int, help_reference: int, unit_reference: int) -> bool:
        """Add the metadata that came with a series, None for `number` if the series is plain. Returns False if it is
        invalid; empty metadata is valid."""
        if not (kind or help_reference or unit_reference):
            return True
        what = "metadata" if number is None else f"metadata of series {number}"
        texts = {"name": metadata.family_of(metric, kind)}
        for name, reference in (("help", help_reference), ("unit", unit_reference)):
            if not 0 <= reference < len(self._surveyed.symbols):
                count = len(self._surveyed.symbols)
                self._split_request.refuse(
                    f"{what} of metric {metric[:200]!r}: its {name} is symbol {reference}; the request has {count}, "
                    "counted from 0"
                )
                return False
            try:
                texts[name] = self._surveyed.text(reference).decode()
            except UnicodeDecodeError as error:
                self._split_request.refuse(
                    f"{what} of metric {metric[:200]!r}: its {name} is not UTF-8 at byte {error.start}"
                )
                return False
        entry = metadata.checked(texts, kind, what, self._split_request.refuse)
        if entry is None:
            return False
        self.entries[entry] = None
        return True
