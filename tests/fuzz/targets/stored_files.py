"""What lies on the disk: the write-ahead log, blocks, rows, snapshots and the small documents.

Checksums are made right where a reader compares them before anything else, so that damage of every kind gets past them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import xxhash

from coordinator.log import sequencer
from coordinator.log.sequencer import Segment
from shared import catalogue_file, identity
from shared.durable import DAMAGED
from shared.errors import ConfigError
from shared.histograms.packed import PackedHistograms
from shared.histograms.references import is_reference, references
from shared.manifest import Manifest
from shared.messages.log import Batch
from shared.messages.vectors import Collection
from tests import chunks_v1 as old_chunks
from tests.fuzz import scratch
from tests.fuzz.pieces import joined, split
from tests.fuzz.target import Target
from tests.histogram_batches import batch_of
from tests.oracle_native_histograms import NativeHistogram
from worker.logs import entries, messages, runs
from worker.logs.entries import GatheringEntry
from worker.logs.messages import Message, Revocation
from worker.series import journal
from worker.series.blocks import chunks, sections
from worker.series.exemplar_record import ExemplarRecord
from worker.series.head import Head
from worker.series.index import registry
from worker.series.journal import Deletion, Written
from worker.series.series_record import SeriesRecord
from worker.storage.rows import manifest, marker
from worker.storage.rows.damage import DECODING_ERRORS
from worker.storage.wal import layout, losses, reading, record, register
from worker.storage.wal.losses import Loss
from worker.vectors import stored_rows
from worker.vectors.attributes import Attributes

DIMENSION = 2
COLUMN_ROWS = 3
CHUNK_COUNTS = np.array([3, 1, 3, 2], np.int64)
CHUNK_FIRSTS = np.array([0, 5, 0, 9], np.int64)


def _scan(data: bytes) -> None:
    """Records ascend and lie within the file."""
    at = 0
    for item in record.scan(1, memoryview(data)):
        assert item.offset >= at, f"the record at {item.offset} follows one that ends at {at}"
        at = item.end
    record.read_header(data)
    record.begins_header(1, data[: record.FILE_HEADER_BYTES])


def _survey(data: bytes) -> None:
    """A log's directory: the list of files, and two of them."""
    directory = scratch.directory()
    names = (register.NAME, f"00000001{reading.SUFFIX}", f"00000002{reading.SUFFIX}")
    pieces = split(data, len(names))
    for name, piece in zip(names, [*pieces, *[b""] * len(names)], strict=False):
        (directory / name).write_bytes(piece)
    survey = reading.survey(directory)
    assert sum(len(payload) for content in survey.used for _, payload in content.records) <= len(data)
    reading.check_versions(directory)


def _read_by_path(read: Callable[[Path], object], data: bytes) -> None:
    path = scratch.directory() / "file"
    path.write_bytes(data)
    read(path)


def _marker(data: bytes) -> None:
    store = scratch.directory() / "store"
    mark = marker.Marker(store)
    mark.path.write_bytes(data[:-8] + xxhash.xxh64_intdigest(data[:-8]).to_bytes(8, "little"))
    mark.read()
    mark.defect()


def _store_manifest(data: bytes) -> None:
    path = scratch.directory() / "MANIFEST-000001"
    path.write_bytes(data)
    manifest.torn_at(path, len(data) // 3)
    manifest.damaged_length(data)


def _journal(data: bytes) -> None:
    _, decoded = journal.decode(data)
    if isinstance(decoded, Written):
        later = decoded.since(0)
        head = Head()
        head.extend(1)
        first = np.zeros(len(later.times_ms), np.int64)
        head.append(first, later.times_ms, later.values, later.start_timestamps_ms, later.histograms)
        found = head.read(first[:1], -(1 << 62), 1 << 62)
        if found.histograms is not None:
            assert len(found.histograms.layouts.edges) == len(found.histograms.layouts.columns.indexes)
    elif isinstance(decoded, ExemplarRecord):
        assert b"".join(map(bytes, journal.encode(decoded.between(0, len(decoded)), 0)))[24:] == data[24:]
    elif isinstance(decoded, SeriesRecord):
        assert b"".join(map(bytes, journal.encode(decoded, 0)))[24:] == data[24:]


def _chunk(data: bytes) -> None:
    """Both readers of a chunk have the same times."""
    chunk = sections.decode(data, CHUNK_COUNTS, CHUNK_FIRSTS)
    sections.between(data, CHUNK_COUNTS, CHUNK_FIRSTS, 1, 8)
    assert len(chunk.times_ms) == len(chunk.values) == CHUNK_COUNTS.sum()
    if chunk.histograms is not None:
        assert len(chunk.histograms) == np.count_nonzero(is_reference(chunk.values))
        assert len(chunk.histograms.layouts.edges) == len(chunk.histograms.layouts.columns.indexes)
        sections.encode(CHUNK_COUNTS, chunk)


def _log_record(data: bytes) -> None:
    messages.read(memoryview(data))


def _run(data: bytes) -> None:
    run = runs.unpacked(data)
    run.between(1, 5)
    run.find(2)
    run.without([(1, 2)])


def _entry(data: bytes) -> None:
    entry = entries.unpacked(data)
    entry.of_rows(np.zeros(len(entry.numbers), np.bool_), entry.groups)
    entry.last_tombstones()


def _series_row(data: bytes) -> None:
    registry.parsed(data[:8], data[8:])


def _vector_rows(data: bytes) -> None:
    whole, _ = stored_rows.checked([(piece[:3], piece[3:]) for piece in split(data)], DIMENSION)
    assert np.isfinite(whole.vectors).all()
    for packed in whole.attributes(range(len(whole.ids))):
        assert not packed or isinstance(msgspec.msgpack.decode(packed), dict)


def _columns(data: bytes) -> None:
    """Columns that are accepted can be compared and indexed."""
    columns = Attributes.restore(data, COLUMN_ROWS)
    columns.build_index(COLUMN_ROWS)


def _identity(data: bytes) -> None:
    """An identity, without its checksum."""
    identity.decode(xxhash.xxh3_64_hexdigest(data).encode() + b" " + data + b"\n")


def _sequencer(data: bytes) -> None:
    """The sequencer's state, without its checksum."""
    state = sequencer.decode(xxhash.xxh64_digest(data) + data)
    for fields in state.segments:
        Segment(*fields)
    assert sequencer.decode(sequencer.encode(state)) == state


def _losses(data: bytes) -> None:
    """What was set aside of a log's file: the losses in the first line, without their checksum, and any bytes."""
    line, _, rest = data.partition(b"\n")
    directory = scratch.directory() / "losses"
    directory.mkdir(exist_ok=True)
    content = xxhash.xxh3_64_hexdigest(line).encode() + b" " + line + b"\n" + rest
    (directory / f"00000001{reading.SUFFIX}{DAMAGED}").write_bytes(content)
    (known,) = losses.known(directory)
    assert known.losses or line == b"[]"


# Inputs


def _wal_file(number: int, payloads: Sequence[bytes]) -> bytes:
    content = [record.file_header(number)]
    for place, payload in enumerate(payloads):
        content += record.frames(number, place, 1, [payload], record.FILE_HEADER_BYTES)[0]  # type: ignore[arg-type]
    return b"".join(content)


def _wal_files() -> Iterator[bytes]:
    yield _wal_file(1, [b"one", b"two" * 9, b""])
    yield _wal_file(1, [b"whole"]) + b"torn" * 8 + _wal_file(1, [b"behind a hole"])[record.FILE_HEADER_BYTES :]


def _logs() -> Iterator[bytes]:
    files = [_wal_file(1, [b"one", b"two"]), _wal_file(2, [b"three"])]
    listing = register.Listing(2, {1: len(files[0]), 2: 0}, 3, 4).encode()
    yield joined([(listing * 2)[:60_000], *files])
    yield joined([b"", *files])


def _journal_records() -> Iterator[bytes]:
    ids, counts = np.array([1, 2], np.int64), np.array([2, 1], np.int64)
    written = Written(ids, counts, np.array([1, 2, 1], np.int64), np.array([0.5, 1, 2]))
    histograms = PackedHistograms.of(batch_of([NativeHistogram(count=1.0, sum=0.5, positive={0: 1.0}, schema=1)]))
    extended = replace(written, values=references(np.array([0, 0, 0])), histograms=histograms)
    for record_of_samples in (written, extended, replace(extended, start_timestamps_ms=np.array([0, 1, 2]))):
        yield b"".join(map(bytes, journal.encode(record_of_samples, 7)))
    yield b"".join(map(bytes, journal.encode(Deletion(ids, 0, 5), 8)))
    offsets, labels = np.array([0, 0, 8], np.int64), np.frombuffer(b"\x0a\x06\x0a\x01a\x12\x01b", np.uint8)
    exemplars = ExemplarRecord(ids, np.array([1, 2], np.int64), np.array([0.5, 1]), offsets, labels)
    yield b"".join(map(bytes, journal.encode(exemplars, 9)))
    yield b"".join(map(bytes, journal.encode(SeriesRecord.of(7, labels, np.array([0, 3, 8])), 10)))


def _chunks() -> Iterator[bytes]:
    times = np.array([0, 1, 2, 5, 0, 1, 2, 9, 10], np.int64)
    for values in ([1.0] * 9, [0.5, 1, 2, 3, 1, 2, 3, 7.25, np.nan], list(range(9))):
        for encode in (chunks.encode, old_chunks.encode):
            yield encode(CHUNK_COUNTS, times, np.array(values, np.float64))
    grown = [NativeHistogram(schema=3, count=n, positive={-2: n, 5: 0.0}, sum=n / 3) for n in (1.0, 4.0, 90.0, 95.0)]
    custom = NativeHistogram(schema=-53, count=2.0, positive={0: 1.5, 2: 0.5}, bounds=(0.5, 1.0))
    values_with = np.concatenate((references(np.arange(6)), [1.0, 2.0, 3.0]))
    batch = batch_of([*grown, custom, custom])
    yield sections.encode(CHUNK_COUNTS, sections.Chunk(times, values_with, times - 1, batch))


_BATCH = Batch(5, 2, (0, 1), "p", 3)


def _log_records() -> Iterator[bytes]:
    yield b"".join(map(bytes, Message(1, 2, 3, 4, (_BATCH,), b"frame").pieces()))
    yield b"".join(map(bytes, Revocation(1, 2, [(5, 7)]).pieces()))


def _runs() -> Iterator[bytes]:
    yield runs.run_of(np.array([1, 2, 5], np.uint64), [b"a", b"", b"ccc"]).packed()


def _entries() -> Iterator[bytes]:
    numbers, codes = np.array([5, 6], np.uint64), np.array([0, 1], np.uint32)
    yield GatheringEntry(7, [(2, (_BATCH,))], numbers, codes, [b"k", b"l"]).packed()
    yield GatheringEntry(7, [(2, (_BATCH,))], numbers, codes, [b"k", b"l"], numbers[1:]).packed()


def _saved_columns() -> Iterator[bytes]:
    columns = Attributes()
    columns.append(0, [msgspec.msgpack.encode({"name": "a", "n": 1}), b"", msgspec.msgpack.encode({"x": 0.5})])
    yield columns.save(COLUMN_ROWS)


def _series_rows() -> Iterator[bytes]:
    yield bytes(8) + registry._row(SeriesRecord(0, np.array([1, 0, 2], np.int32), np.frombuffer(b"abc", np.uint8)))


def _vectors() -> Iterator[bytes]:
    head = (7).to_bytes(8, "little") + np.array([1, 2], np.float32).tobytes()
    yield joined([b"id1" + head, b"id2" + head + msgspec.msgpack.encode({"name": "a"})])


def _catalogues() -> Iterator[bytes]:
    collection = Collection(1, "c", 3, "cosine", "f32", ("name",))
    yield catalogue_file.CatalogueContent(3, [collection]).encode()


def _store_manifests() -> Iterator[bytes]:
    yield bytes.fromhex("562f6f4a1a0001") + b"\x01\x1aleveldb.BytewiseComparator" + bytes(20)


def _markers() -> Iterator[bytes]:
    yield marker.MAGIC + bytes(80)


def _states() -> Iterator[bytes]:
    revoked = sequencer.Revoked(1, 2, [(5, 7)], [0])
    state = sequencer.State(sequencer.FORMAT, 100, None, 3, [(1, 0, 5, 6)], [revoked])
    yield sequencer.encode(state)[8:]


def _lists_of_losses() -> Iterator[bytes]:
    yield msgspec.json.encode((Loss("log-00/00000001.wal", 64, 128, "they are damaged"),)) + b"\nbytes"


ROW = DECODING_ERRORS

TARGETS = [
    Target("wal-scan", _scan, _wal_files, refusals=()),
    Target("wal-directory", _survey, _logs, refusals=(ConfigError,), bytes_max=70_000),
    Target("wal-list", partial(_read_by_path, register.read), lambda: [register.Listing(1, {1: 64}).encode()],
           refusals=(ValueError, ConfigError)),
    Target("wal-workers", partial(_read_by_path, layout.read_workers), lambda: [layout.encode_workers(3)],
           refusals=(ValueError,), bytes_max=64),
    Target("journal-record", _journal, _journal_records, refusals=ROW),
    Target("block-chunk", _chunk, _chunks, refusals=(ValueError, struct.error)),
    Target("log-record", _log_record, _log_records, refusals=ROW),
    Target("log-run", _run, _runs, refusals=ROW),
    Target("log-entry", _entry, _entries, refusals=ROW),
    Target("series-row", _series_row, _series_rows, refusals=ROW),
    Target("vector-rows", _vector_rows, _vectors, refusals=ROW),
    Target("vector-columns", _columns, _saved_columns, refusals=(ValueError,)),
    Target("document-identity", _identity, lambda: [b"c shard 3"], refusals=(ValueError,)),
    Target("document-manifest", Manifest.decode, lambda: [Manifest("c", 3).encode()], refusals=(ValueError,)),
    Target("document-catalogue", catalogue_file.decode, _catalogues, refusals=(ValueError,)),
    Target("document-sequencer", _sequencer, _states, refusals=(ValueError,)),
    Target("wal-losses", _losses, _lists_of_losses, refusals=()),
    Target("store-manifest", _store_manifest, _store_manifests, refusals=()),
    Target("store-marker", _marker, _markers, refusals=(OSError,)),
]  # fmt: skip
