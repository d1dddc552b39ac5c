"""What the check of a data directory says of a shard's rows and records. `tests/check` asks about a cluster's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

from shared.data_files import LogFacts
from shared.hashing import hash64
from shared.log.blocks import block_of
from shared.messages.log import Batch, Span
from tests.unit.log_shard import OneShard
from tests.unit.series_shard import Quiet, m
from worker.logs import rows
from worker.logs.messages import Message, Revocation
from worker.logs.verify import LogRows, check_messages, log_rows
from worker.series import journal, metadata
from worker.series.blocks import archive
from worker.series.blocks.deletions import Tombstone
from worker.series.head import NEVER
from worker.series.index import registry
from worker.series.journal import Deletion, Sealed, Written
from worker.series.series_record import SeriesRecord
from worker.series.verify import SeriesRows, check_journal, series_rows
from worker.storage.rows.damage import StoreDamaged
from worker.storage.wal import reading

# Series


@pytest.fixture
def shard(tmp_path: Path) -> Iterator[Quiet]:
    """Two sealed series, and one in the journal."""
    own = Quiet(tmp_path)
    own.write([(m(job="a"), [(1, 1.0)]), (m(job="b"), [(2, 2.0)])])
    own.seal()
    own.write([(m(job="c"), [(3, 3.0)])])
    yield own
    own.close()


def put(shard: Quiet | OneShard, family: str, *written: tuple[bytes, bytes | None]) -> None:
    batch = shard.store.batch()
    for key, value in written:
        if value is None:
            batch.delete(family, key)
        else:
            batch.put(family, key, value)
    shard.store.write(batch)


def test_rows_of_a_shard_that_is_well_are_read_and_nothing_is_wrong_with_them(shard: Quiet) -> None:
    found = series_rows(shard.store)  # type: ignore[arg-type]
    assert found.ids.tolist() == [0, 1, 2]
    assert [row.name for row in found.blocks] == [block.row.name for block in shard.part.contents.layers.blocks]
    assert found.sealed == Sealed(sequence=2, before_ms=NEVER, cut=2)
    assert (found.left_over, found.wrong) == (frozenset(), ())
    assert found.unknown(np.array([5, 1, 5, 3])).tolist() == [3, 5]
    merged = {row.name for row in found.blocks}
    shard.seal()
    shard.write([(m(job="a"), [(1, 5.0)])])
    shard.seal()
    shard.compact()
    assert series_rows(shard.store).left_over >= merged  # type: ignore[arg-type]


def test_a_store_without_rows_is_well(tmp_path: Path) -> None:
    own = Quiet(tmp_path)
    found = series_rows(own.store)  # type: ignore[arg-type]
    assert (found.ids.tolist(), found.sealed, found.blocks, found.wrong) == ([], Sealed(), (), ())
    own.close()


def series_row(*lengths: int) -> bytes:
    return registry._row(SeriesRecord(0, np.array(lengths, np.int32), np.zeros(sum(lengths), np.uint8)))


def test_rows_of_series_that_make_no_sense_are_said_and_the_others_are_read(shard: Quiet) -> None:
    key = registry._KEY.pack
    put(shard, "series", (key(3), b"\xff"), (key(4), series_row(1, 0, 2)), (key(6), series_row(1)))
    put(shard, "series", (key(7), series_row(3)))
    put(shard, "meta", (registry.GIVEN, key(8)))
    found = series_rows(shard.store)  # type: ignore[arg-type]
    assert found.ids.tolist() == [0, 1, 2, 4, 6, 7]
    unreadable, twice = found.wrong
    assert "of 'series' is invalid" in unreadable
    assert "series 6 is twice in the store" in twice
    put(shard, "meta", (registry.GIVEN, key(9)))
    assert "end at id 8, and ids were given up to 9" in series_rows(shard.store).wrong[2]  # type: ignore[arg-type]


def test_rows_of_blocks_that_make_no_sense_are_said_and_the_others_are_read(shard: Quiet) -> None:
    put(shard, "blocks", (archive.BLOCK + b"\0", b"\xc1"))
    put(shard, "meta", (journal.SEALED, b"\xc1"))
    found = series_rows(shard.store)  # type: ignore[arg-type]
    assert len(found.blocks) == 1
    assert found.sealed == Sealed()
    assert ["of 'meta'" in found.wrong[0], "of 'blocks'" in found.wrong[1]] == [True, True]


@pytest.mark.parametrize(
    ("family", "key", "value"),
    [
        ("blocks", archive.TOMBSTONE + bytes(8), b"\xc1"),
        ("blocks", archive.TOMBSTONE + bytes(8), msgspec.msgpack.encode(Tombstone(0, 0, 1, bytes(4)))[:-1]),
        ("meta", metadata.PREFIX + b"up", b"\xc1"),
        ("meta", metadata.PREFIX + b"\xff", msgspec.msgpack.encode(())),
        ("meta", journal.NEXT, b""),
        ("meta", journal.NEXT, b"abc"),
    ],
)
def test_a_row_that_a_start_refuses_is_said(tmp_path: Path, family: str, key: bytes, value: bytes) -> None:
    own = Quiet(tmp_path)
    put(own, family, (key, value))
    [text] = series_rows(own.store).wrong  # type: ignore[arg-type]
    assert f"the row {key!r} of {family!r} is invalid" in text
    with pytest.raises(StoreDamaged, match="is invalid"):
        own.reopen()
    own.store.close()
    own.log.close()


def payload(record: journal.Record, sequence: int) -> memoryview:
    return memoryview(b"".join(map(bytes, journal.encode(record, sequence))))


def written(series: list[int], counts: list[int]) -> Written:
    size = sum(counts)
    return Written(np.array(series), np.array(counts), np.arange(size), np.zeros(size))


def test_the_journal_is_checked_from_its_cut_on() -> None:
    held = SeriesRows(np.array([0, 1]), Sealed(cut=5), (), frozenset(), ())
    below = payload(written([9], [1]), 4)
    whole = [payload(written([0, 1], [2, 1]), 5), payload(Deletion(np.array([1]), 0, 9), 6)]
    assert list(check_journal(held, [below, *whole])) == []
    unknown = [payload(written([7, 1, 5], [2, 1, 3]), 5), payload(written([7], [4]), 6)]
    [text] = check_journal(held, [below, *unknown, *whole])
    assert text == "9 samples are of 2 series that the store does not have, such as id 5"
    [text] = check_journal(held, [payload(Deletion(np.array([3]), 0, 9), 7)])
    assert text.startswith("0 samples are of 1 series")
    first, second = check_journal(held, [memoryview(b"x"), *unknown, memoryview(b"")])
    assert first == "2 records of samples cannot be decoded"
    assert second.startswith("9 samples")


def test_series_that_only_the_journal_has_are_not_missing() -> None:
    held = SeriesRows(np.array([0, 1]), Sealed(cut=5), (), frozenset(), ())
    labels, offsets = np.frombuffer(b"abc", np.uint8), np.array([0, 1, 3])
    samples = payload(written([1, 2, 3], [1, 1, 1]), 7)
    assert list(check_journal(held, [payload(SeriesRecord.of(2, labels, offsets), 6), samples])) == []
    [text] = check_journal(held, [payload(SeriesRecord.of(2, labels, offsets), 4), samples])
    assert text == "2 samples are of 2 series that the store does not have, such as id 2"


def test_series_that_a_start_does_not_restore_are_missing() -> None:
    held = SeriesRows(np.array([0, 3]), Sealed(sequence=7, before_ms=0, cut=5), (), frozenset(), ())
    labels, offsets = np.frombuffer(b"abc", np.uint8), np.array([0, 1, 3])
    samples = payload(written([0, 1, 2, 3], [1, 1, 1, 1]), 8)
    assert list(check_journal(held, [payload(SeriesRecord.of(1, labels, offsets), 7), samples])) == []
    [text] = check_journal(held, [payload(SeriesRecord.of(1, labels, offsets), 6), samples])
    assert text == "2 samples are of 2 series that the store does not have, such as id 1"


def test_sealed_samples_of_series_that_are_gone_are_not_missing() -> None:
    sealed = Sealed(sequence=7, before_ms=2, cut=5)
    held = SeriesRows(np.array([1]), sealed, (), frozenset(), ())
    record = Written(np.array([0, 1]), np.array([2, 1]), np.array([0, 1, 2]), np.zeros(3))
    assert list(check_journal(held, [payload(record, 5)])) == []
    [text] = check_journal(held, [payload(record, 7)])
    assert text.startswith("2 samples are of 1 series")
    young = Written(np.array([0]), np.array([2]), np.array([1, 2]), np.zeros(2))
    [text] = check_journal(held, [payload(young, 5)])
    assert text.startswith("1 samples are of 1 series")


def test_the_check_agrees_with_a_start_about_what_retention_has_dropped(tmp_path: Path) -> None:
    shard = Quiet(tmp_path)
    shard.write([*((m(job=str(i)), [(1, 1.0)]) for i in range(19)), (m(job="live"), [(9000, 1.0)])])
    shard.seal(9000)
    shard.part._upkeep.blocks._replace(shard.part.contents.layers.blocks, [])
    shard.reopen()
    assert (shard.part.series, shard.journal()) == (1, 1)
    held = series_rows(shard.store)  # type: ignore[arg-type]
    shard.close()
    payloads = [payload for file in reading.survey(tmp_path / "wal").used for _, payload in file.records]
    assert len(payloads) == 2  # of the series, and of their samples
    assert list(check_journal(held, payloads)) == []


# The log


@pytest.fixture
def log_shard(tmp_path: Path) -> Iterator[OneShard]:
    """Two segments of two keys each in runs, the second of two gatherings."""
    own = OneShard(tmp_path)
    own.append(0, [(b"a", b"1"), (b"b", b"22"), (b"a", b"333")])
    own.append(3, [(b"b", b"4"), (b"a", b"")], segment=2)
    own.append(5, [(b"a", b"5")], segment=2)
    own.part.gather()
    own.append(6, [], segment=3)
    own.part.gather()
    yield own
    own.close()


def runs_of(shard: OneShard, kind: bytes) -> list[tuple[bytes, bytes]]:
    return list(shard.store.scan("log", kind, rows.after(kind)))


def test_a_log_that_is_well_is_counted_and_nothing_is_wrong_with_it(log_shard: OneShard) -> None:
    found = log_rows(log_shard.store)  # type: ignore[arg-type]
    assert found == LogRows(gathered=6, dropped=0, above=6, records=6, segments={0, 2}, wrong=[])
    put(log_shard, "log", (rows.DROPPED, rows.segment_bytes(2)))
    found = log_rows(log_shard.store)  # type: ignore[arg-type]
    assert found == LogRows(gathered=6, dropped=2, above=6, records=3, segments={2}, wrong=[])


def test_records_without_their_run_and_without_their_entry_are_said(log_shard: OneShard) -> None:
    runs, stored_entries = runs_of(log_shard, rows.RUN), runs_of(log_shard, rows.ENTRY)
    assert len(runs) == 5
    put(log_shard, "log", (runs[0][0], None), (stored_entries[1][0], None))
    missing, unnamed = log_rows(log_shard.store).wrong  # type: ignore[arg-type]
    assert missing.startswith("2 records of segment 0, such as number 0, are named by entries")
    assert unnamed.startswith("2 records of segment 2, such as number 3, are in runs and no entry names them")
    put(log_shard, "log", *((key, None) for key, _ in runs))
    missing, *others = log_rows(log_shard.store).wrong  # type: ignore[arg-type]
    assert missing.startswith("3 records of segment 0") and len(others) == 1


def test_records_of_another_key_than_their_entry_says_are_said(log_shard: OneShard) -> None:
    (key, value), *_ = runs_of(log_shard, rows.RUN)
    other = rows.runs_of(0, b"z") + rows.sequence_bytes(0)
    assert rows.key_of(key) == b"a" and rows.key_of(other) == b"z"
    put(log_shard, "log", (key, None), (other, value))
    missing, unnamed = log_rows(log_shard.store).wrong  # type: ignore[arg-type]
    assert missing.startswith("2 records of segment 0") and unnamed.startswith("2 records of segment 0")


@pytest.mark.parametrize(
    ("kind", "lost", "records"),
    [
        (rows.RUN, "1 records of segment 2, such as number 4, are named by entries and their runs are missing", 6),
        (rows.ENTRY, "2 records of segment 2, such as number 3, are in runs and no entry names them", 4),
    ],
)
def test_a_row_of_the_log_that_makes_no_sense_is_said_and_the_others_are_read(
    log_shard: OneShard, kind: bytes, lost: str, records: int
) -> None:
    key = next(key for key, _ in runs_of(log_shard, kind) if rows.segment_of(key) == 2)
    put(log_shard, "log", (key, b"\xc1"))
    found = log_rows(log_shard.store)  # type: ignore[arg-type]
    nonsense, lacking = found.wrong
    assert f"the row {key!r} of 'log' is invalid" in nonsense
    assert lacking.startswith(lost)
    assert found.records == records


def test_runs_that_contradict_themselves_are_said(log_shard: OneShard) -> None:
    (key, value), *_ = runs_of(log_shard, rows.RUN)
    for changed, why in (
        ((key[:-1] + b"\7", value), "2 records, and another number than its key"),
        ((key, value + b"x"), "5 bytes of values, and its lengths say 4"),
        ((key, value[:12] + value[20:28] + value[12:20] + value[28:]), "do not ascend"),
        ((key, value[:12] + value[12:20] + value[12:20] + value[28:]), "do not ascend"),
    ):
        put(log_shard, "log", (key, None))
        put(log_shard, "log", changed)
        wrong = log_rows(log_shard.store).wrong  # type: ignore[arg-type]
        assert why in wrong[0], wrong
        put(log_shard, "log", (changed[0], None), (key, value))


def group(number: int, values: list[bytes], segment: int) -> Message:
    block = block_of((hash64(b"a"), at, b"a", value) for at, value in enumerate(values))
    return Message(segment, number, number, 0, (Batch(number, len(values), (0,), "", number),), block)


def payloads(*records: Message | Revocation) -> list[memoryview]:
    return [memoryview(b"".join(bytes(piece) for piece in record.pieces())) for record in records]


def test_messages_are_checked_from_what_was_gathered_and_not_dropped() -> None:
    stored = LogRows(gathered=5, dropped=2, above=5, records=5, segments={2})
    told = payloads(
        group(4, [b"gathered"], 3),
        group(5, [b"x", b"y"], 3),
        group(6, [b"dropped"], 1),
        Revocation(5, 9, [Span((9, 12))]),
        group(7, [b"z"], 4),
    )
    assert check_messages(7, stored, told) == ([], LogFacts(7, 8, (2, 3, 4, 5), 2, 8))
    assert check_messages(7, stored, []) == ([], LogFacts(7, 5, (2,), 2, 5))
    assert stored.segments == {2}


def test_a_message_that_cannot_be_decoded_is_said_and_the_others_are_checked() -> None:
    whole, torn = payloads(group(5, [b"x"], 3)), payloads(group(6, [b"y"], 3))
    wrong, facts = check_messages(0, LogRows(), [memoryview(b"x"), torn[0][:-1], *whole])
    assert len(wrong) == 2 and all("cannot be decoded" in text for text in wrong)
    assert (facts.above, facts.records) == (6, 1)
