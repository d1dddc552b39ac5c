"""The ids of series: no two series ever have the same one, and what names an unknown one is said to be missing."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from coordinator.series import remote_write
from loadtest.harness.remote_write_bodies import UNLIMITED, body
from shared.errors import Unavailable
from shared.frames.references import COUNT_SHIFT, ReferenceColumns
from shared.labels import encode
from shared.process import boot
from shared.settings import Settings
from tests.unit.series_shard import EVERYTHING, TIMEOUT_S, A, B, Quiet, Shard, m
from worker.series import journal, series_record
from worker.series.arrivals import Arrival, parse
from worker.series.index import registry
from worker.series.journal import Deletion, Written
from worker.series.series_record import IDS_MAX, SeriesRecord
from worker.series.writing import write_to
from worker.storage.rows.store import StoreDamaged


@pytest.fixture
def shard(tmp_path: Path):
    opened = Shard(tmp_path / "store")
    yield opened
    opened.close()


def without(shard: Shard, family: str, key: bytes) -> None:
    batch = shard.store.batch()
    batch.delete(family, key)
    shard.store.write(batch)


def ids_of(shard: Shard) -> list[int]:
    return shard.part.contents.permanent.rows().tolist()


def test_series_rows_that_are_missing_at_the_end_refuse_the_shard(shard: Shard) -> None:
    shard.write([(m(job="a"), [(1, 1.0)])])
    shard.write([(m(job="b"), [(1, 2.0)])])
    shard.part._upkeep.sealing._seal(1 << 60)
    without(shard, "series", (1).to_bytes(8, "big"))
    with pytest.raises(StoreDamaged, match="rows of its series end at id 1, and ids were given up to 2"):
        shard.reopen()


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_rows_that_the_store_lost_before_later_ones_are_restored_from_the_journal(shard: Shard, lost: int) -> None:
    for job in "abc":
        shard.write([(m(job=job), [(1, 1.0)])])
    before = shard.samples()
    without(shard, "series", lost.to_bytes(8, "big"))
    shard.reopen()
    assert not shard.part._damage.texts("series")
    assert (ids_of(shard), shard.samples()) == ([0, 1, 2], before)
    shard.write([(m(job="d"), [(1, 1.0)])])
    assert ids_of(shard) == [0, 1, 2, 3]


def test_swept_series_are_not_restored_although_the_journal_still_has_their_labels(shard: Shard) -> None:
    for job, time_ms in (("young", 5000), ("a", 1), ("b", 1)):
        shard.write([(m(job=job), [(time_ms, 1.0)])])
    shard.part._upkeep.sealing._seal(1000)
    shard.part._upkeep.blocks._replace(shard.part.contents.layers.blocks, [])
    for _ in range(2):
        shard.reopen()
        assert ids_of(shard) == [0]
    assert sum(isinstance(journal.decode(record)[1], SeriesRecord) for _, record in shard.part.journal._wal.records())


def test_an_id_named_by_the_journal_is_not_given_again(shard: Shard) -> None:
    shard.write([(m(job="a"), [(1, 1.0)])])
    one = np.ones(2, dtype=np.int64)
    lost = Written(np.array([0, 7]), one, one * 5, one * 2.5)
    shard.part.journal.write(lost, durable=True)
    shard.part.journal.write(Deletion(np.array([7, 9]), 0, 10), durable=True)
    shard.reopen()
    [text] = shard.part._damage.texts("series")
    assert "1 samples of series the store does not have, ids up to 9" in text
    assert shard.samples() == {A: [(1, 1.0), (5, 2.5)]}
    shard.write([(m(job="b"), [(3, 3.0)])])
    assert ids_of(shard) == [0, 10]
    assert shard.samples()[B] == [(3, 3.0)]


def test_a_store_that_does_not_say_which_ids_were_given_is_refused(shard: Shard) -> None:
    shard.write([(m(job="a"), [(1, 1.0)])])
    without(shard, "meta", b"series/ids")
    with pytest.raises(StoreDamaged, match="end at id 1, and ids were given up to 0"):
        shard.reopen()


@pytest.mark.parametrize("durability", ["synced", "buffered"])
def test_a_record_with_the_labels_of_new_series_precedes_the_record_that_names_them(
    shard: Shard, monkeypatch: pytest.MonkeyPatch, durability: str
) -> None:
    shard.part._settings = Settings(durability=durability)
    writes: list[list[journal.Record]] = []
    write = shard.log.write

    def noted(records):
        writes.append([journal.decode(b"".join(map(bytes, frames)))[1] for _, frames in records])
        return write(records)

    monkeypatch.setattr(shard.log, "write", noted)
    shard.write([(m(job="a"), [(1, 1.0)]), (m(job="b"), [(1, 1.0)])])
    shard.write([(m(job="a"), [(2, 1.0)])])
    (new, samples), (known,) = writes
    assert isinstance(new, SeriesRecord) and isinstance(samples, Written) and isinstance(known, Written)
    assert (new.first, new.labels.tobytes()) == (0, encode(A) + encode(B))
    assert samples.series.tolist() == [0, 1]


def lose_series(shard: Shard, first: int, end: int) -> None:
    """Have the store without its series from id `first` on, as after a loss of power."""
    for series in range(first, end):
        without(shard, "series", series.to_bytes(8, "big"))
    batch = shard.store.batch()
    if first:
        batch.put("meta", registry.GIVEN, first.to_bytes(8, "big"))
    else:
        batch.delete("meta", registry.GIVEN)
    shard.store.write(batch)


@pytest.mark.parametrize("first", [0, 1, 2])
def test_series_that_the_store_lost_with_the_power_are_restored_from_the_journal(shard: Shard, first: int) -> None:
    shard.write([(m(job="a"), [(1, 1.0)])])
    shard.write([(m(job="b"), [(1, 2.0)])])
    shard.write([(m(job="a"), [(2, 3.0)]), (m(job="c"), [(2, 4.0)])])
    before = shard.samples()
    lose_series(shard, first, 3)
    shard.reopen()
    assert not shard.part._damage.texts("series")
    assert shard.samples() == before
    shard.write([(m(job="d"), [(3, 3.0)])])
    assert ids_of(shard) == [0, 1, 2, 3]
    shard.reopen()
    assert ids_of(shard) == [0, 1, 2, 3]


def test_restored_series_replace_the_row_of_a_smaller_commit_that_failed(
    shard: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = shard.log.write

    def full(records):
        raise Unavailable("disk full")

    monkeypatch.setattr(shard.log, "write", full)
    with pytest.raises(Unavailable):
        shard.write([(m(job="a"), [(1, 1.0)])])
    [(_, smaller)] = shard.store.scan("series")
    monkeypatch.setattr(shard.log, "write", write)
    shard.write([(m(job="b"), [(1, 2.0)])])
    [(key, larger)] = shard.store.scan("series")
    assert [registry.parsed(key, row).labels.tobytes() for row in (smaller, larger)] == [
        encode(A), encode(A) + encode(B),
    ]  # fmt: skip
    batch = shard.store.batch()
    batch.put("series", key, smaller)
    batch.put("meta", registry.GIVEN, (1).to_bytes(8, "big"))
    shard.store.write(batch)
    shard.reopen()
    assert shard.samples() == {B: [(1, 2.0)]}
    assert ids_of(shard) == [0, 1]


def test_series_with_ids_after_skipped_ones_are_restored(shard: Shard) -> None:
    shard.write([(m(job="a"), [(1, 1.0)])])
    shard.part.journal.write(Deletion(np.array([7, 9]), 0, 10), durable=True)
    shard.reopen()
    shard.write([(m(job="b"), [(3, 3.0)])])
    assert ids_of(shard) == [0, 10]
    lose_series(shard, 1, 11)
    shard.reopen()
    assert not shard.part._damage.texts("series")
    assert ids_of(shard) == [0, 10]
    assert shard.samples() == {A: [(1, 1.0)], B: [(3, 3.0)]}
    shard.write([(m(job="c"), [(3, 3.0)])])
    assert ids_of(shard) == [0, 10, 11]


def test_a_damaged_record_of_new_series_costs_only_their_samples(shard: Shard) -> None:
    for job in ("a", "damaged", "b"):
        shard.write([(m(job=job), [(1, 1.0)])])
    lose_series(shard, 0, 3)
    shard.close()
    path = next(path for path in (shard.path / "wal").glob("*.wal") if b"damaged" in path.read_bytes())
    path.write_bytes(path.read_bytes().replace(b"damaged", b"DAMAGED"))
    shard.open()
    [text] = shard.part._damage.texts("series")
    assert "the journal has 1 samples of series the store does not have, ids up to 1" in text
    assert shard.samples() == {A: [(1, 1.0)], B: [(1, 1.0)]}
    shard.write([(m(job="damaged"), [(2, 2.0)])])
    assert ids_of(shard) == [0, 2, 3]


def test_new_series_that_were_lost_before_their_reply_are_no_damage_where_the_boot_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(boot, "BOOT_ID", tmp_path / "none")
    shard = Shard(tmp_path / "store")
    for job in ("a", "unsynced"):
        shard.write([(m(job=job), [(1, 1.0)])])
    shutil.copytree(shard.path / "wal", tmp_path / "wal")
    lose_series(shard, 1, 2)
    shard.close()
    shutil.rmtree(shard.path / "wal")
    (tmp_path / "wal").rename(shard.path / "wal")
    path = next(path for path in (shard.path / "wal").glob("*.wal") if b"unsynced" in path.read_bytes())
    path.write_bytes(path.read_bytes().replace(b"unsynced", bytes(8)))  # a page that has not reached the disk
    for _ in range(2):
        shard.open()
        assert shard.samples() == {A: [(1, 1.0)]}
        assert shard.part._damage.texts("series") == []
        shard.close()
    assert not list((shard.path / "wal").glob("*.damaged"))


def test_a_deletion_names_no_series_that_a_commit_has_failed_to_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard = Quiet(tmp_path)
    shard.seal_each((1, 1.0))
    with monkeypatch.context() as full:
        full.setattr(shard.log, "write", Mock(side_effect=Unavailable("disk full")))
        with pytest.raises(Unavailable):
            shard.write([(m(job="b"), [(1, 2.0)])])
    shard.part.contents.set_aside(shard.part.contents.layers.blocks[0], "damaged")
    shard.part.delete([[]], *EVERYTHING, TIMEOUT_S)
    shard.reopen()
    [(_, deletion, _)] = shard.part.journal.records()
    assert deletion.series.tolist() == [0]
    shard.close()


@pytest.mark.parametrize("before_ms", [0, 1 << 60], ids=["no block", "a block"])
def test_sealing_makes_new_series_durable_before_their_records_are_released(
    shard: Shard, monkeypatch: pytest.MonkeyPatch, before_ms: int
) -> None:
    steps: list[str] = []
    store, wal = shard.store, shard.part.journal._wal

    def noted(owner: object, name: str, step: str) -> None:
        method = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *args, **options: (steps.append(step), method(*args, **options))[1])

    shard.write([(m(job="a"), [(1, 1.0)])])
    noted(shard.part.journal, "seal", "row of the seal")
    noted(store, "sync", "store synced")
    noted(wal, "release", "records released")
    shard.write([(m(job="b"), [(1, 1.0)])])
    assert steps == []
    shard.part._upkeep.sealing._seal(before_ms)
    assert steps == ["store synced", "row of the seal", "store synced", "records released"]


def test_a_record_of_another_release_is_known_as_damage(shard: Shard) -> None:
    shard.write([(m(job="a"), [(1, 1.0)])])
    shard.part.journal._wal.write([b"\x01\x63" + bytes(30)])
    shard.reopen()
    [text] = shard.part._damage.texts("series")
    assert "version 99 is not known to this release" in text
    assert shard.samples() == {A: [(1, 1.0)]}


def test_a_series_row_that_makes_no_sense_is_named(shard: Shard) -> None:
    shard.write([(m(job="a"), [(1, 1.0)])])
    batch = shard.store.batch()
    batch.put("series", bytes(8), (3).to_bytes(8, "little") + bytes(12) + b"labels")
    shard.store.write(batch)
    with pytest.raises(StoreDamaged, match=r"the row b'\\x00.*' of 'series' is invalid: its 3 series have 0 bytes"):
        shard.reopen()


LENGTHS, LABELS = np.array([2, 1], np.int32), np.frombuffer(b"abc", np.uint8)
COLUMNS = struct.pack("<ii", 2, 1) + b"abc"


def test_a_record_of_the_journal_and_a_row_of_the_store_have_the_same_columns() -> None:
    record = SeriesRecord.of(7, LABELS, np.array([0, 2, 3]))
    payload = struct.pack("<BBHIQQQ", 5, 1, 0, 2, 3, 9, 7) + COLUMNS
    row = struct.pack("<Q", 2) + COLUMNS
    batch = Mock()
    registry._put_row(batch, record)
    batch.put.assert_called_once_with("series", bytes(7) + b"\7", row)
    assert b"".join(map(bytes, journal.encode(record, 9))) == payload
    sequence, decoded = journal.decode(payload)
    assert sequence == 9 and isinstance(decoded, SeriesRecord)
    for read in (decoded, registry.parsed(bytes(7) + b"\7", row)):
        assert (read.first, read.end, read.lengths.tolist(), read.labels.tobytes()) == (7, 9, [2, 1], b"abc")


@pytest.mark.parametrize(
    ("first", "columns", "why"),
    [
        (7, COLUMNS[:7], "it has 7 bytes for 2 series, whose lengths alone have 8"),
        (7, COLUMNS + b"d", "its 2 series have 3 bytes of labels, not 4"),
        (7, struct.pack("<ii", 4, -1) + b"abc", "one of its 2 series has -1 bytes of labels"),
        (IDS_MAX - 1, COLUMNS, f"its series have ids up to {IDS_MAX + 1}, and ids end at {IDS_MAX}"),
    ],
)
def test_columns_of_series_that_make_no_sense_are_refused(first: int, columns: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        series_record.decode(first, 2, columns)


def test_a_record_with_a_hole_is_refused() -> None:
    payload = struct.pack("<BBHIQQQ", 5, 1, 0, 2, 3, 9, 7) + struct.pack("<ii", 3, 0) + b"abc"
    with pytest.raises(ValueError, match="one of its 2 series has no labels"):
        journal.decode(payload)


@pytest.mark.parametrize(("first", "end", "labels"), [(7, 9, b"abc"), (7, 8, b"ab"), (8, 9, b"c"), (8, 8, b"")])
def test_part_of_a_record_has_the_labels_of_its_own_series(first: int, end: int, labels: bytes) -> None:
    part = SeriesRecord(7, LENGTHS, LABELS).between(first, end)
    assert (part.first, part.end, part.labels.tobytes()) == (first, end, labels)


def test_a_shard_gives_no_ids_that_records_have_no_room_for(shard: Shard, monkeypatch) -> None:
    shard.write([(m(job="a"), [(1, 1.0)])])
    monkeypatch.setattr(registry, "IDS_MAX", 2)
    with pytest.raises(Unavailable, match="has had 1 series, and may have 2"):
        shard.write([(m(job="b"), [(1, 1.0)]), (m(job="c"), [(1, 1.0)])])


def arrival(*points: tuple[str, int]) -> Arrival:
    """Samples of jobs, each at a time in ms."""
    split_request = remote_write.split(body([(m(job=job), [(t, float(t))]) for job, t in points]), 1, UNLIMITED)
    return Arrival(parse(split_request.parts[0][0]))


def numbered(shard: Shard, number: int, time_ms: int) -> Arrival:
    """One sample of the series with this number, with the value 7."""
    words = np.array([number | 1 << COUNT_SHIFT, time_ms, np.array([7.0]).view(np.int64)[0]], np.int64)
    return Arrival(ReferenceColumns(words, 0, shard.part.epoch, 1, 1, False, number, time_ms))


def test_known_series_are_stored_when_there_are_no_more_ids_and_new_ones_are_not_remembered(
    shard: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard.write([(m(job="a"), [(1, 1.0)])])
    monkeypatch.setattr(registry, "IDS_MAX", 1)
    for _ in range(2):
        with pytest.raises(Unavailable, match="has had 1 series, and may have 1: it takes no more new ones"):
            shard.write([(m(job=str(i)), [(1, 1.0)]) for i in range(100)])
    assert shard.part.series == 1
    shard.write([(m(job="a"), [(2, 2.0)])])
    rounds = shard.part.services.rounds
    rounds.add({shard.part: [numbered(shard, 0, 3)]}, TIMEOUT_S)
    new, known = arrival(("a", 9), ("b", 9)), arrival(("a", 4))
    rounds.add({shard.part: [new, known, numbered(shard, 0, 5)]}, TIMEOUT_S)
    assert new.refusal is not None and known.refusal is None
    expected = {A: [(1, 1.0), (2, 2.0), (3, 7.0), (4, 4.0), (5, 7.0)]}
    assert shard.samples() == expected
    shard.reopen()
    assert shard.samples() == expected


def test_a_write_of_new_and_known_series_is_refused_when_there_are_no_more_ids(
    shard: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard.write([(m(job="a"), [(1, 1.0)])])
    monkeypatch.setattr(registry, "IDS_MAX", 1)
    frames = remote_write.split(body([(m(job="b"), [(2, 2.0)])]), 1, UNLIMITED).parts[0]
    known = remote_write.split(body([(m(job="a"), [(2, 2.0)])]), 1, UNLIMITED).parts[0]
    with pytest.raises(Unavailable, match="takes no more new ones"):
        write_to(shard.part, [*frames, *known], TIMEOUT_S)


def test_a_sweep_begins_another_row_after_a_large_hole(shard: Shard) -> None:
    series = shard.part._registry
    gap = 100 * registry.HOLE_MAX
    alive = [0, 2, 2 + registry.HOLE_MAX, gap, gap + 1]
    for number in [*alive, gap + 2]:
        series.next_id = number
        label_bytes = np.frombuffer(encode((("__name__", "m"), ("i", str(number)))), np.uint8)
        batch = shard.store.batch()
        series.put(batch, label_bytes, np.array([0, len(label_bytes)]))
        shard.store.write(batch)
    assert series.sweep(np.array(alive)) == 1
    rows = list(shard.store.scan("series"))
    assert [int.from_bytes(key, "big") for key, _ in rows] == [0, gap, gap + 2]
    assert max(len(value) for _, value in rows) < 5 * registry.HOLE_MAX
    shard.reopen()
    assert ids_of(shard) == alive
    found = shard.part.lookup()
    assert [dict(found.frame(np.array([i]), found.symbols).labels(0))["i"] for i in range(5)] == list(map(str, alive))
    assert shard.part._registry.next_id == gap + 3


def test_rows_that_large_holes_need_are_not_swept_again(shard: Shard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "ROWS_MAX", 2)
    series = shard.part._registry
    alive = [number * 2 * registry.HOLE_MAX for number in range(4)]
    for number in [*alive, alive[-1] + 1]:
        series.next_id = number
        label_bytes = np.frombuffer(encode((("__name__", "m"), ("i", str(number)))), np.uint8)
        batch = shard.store.batch()
        series.put(batch, label_bytes, np.array([0, len(label_bytes)]))
        shard.store.write(batch)
    assert series.sweep(np.array(alive)) == 1
    monkeypatch.setattr(shard.store, "write", lambda *_, **__: pytest.fail("the rows were written again"))
    assert series.sweep(np.array(alive)) == 0


def test_ids_of_swept_series_are_not_given_again(shard: Shard) -> None:
    shard.write([(m(job="a"), [(1, 1.0)])])
    shard.write([(m(job="b"), [(1, 2.0)])])
    assert shard.part._registry.sweep(np.array([0])) == 1
    shard.reopen()
    shard.write([(m(job="c"), [(1, 2.0)])])
    assert ids_of(shard) == [0, 2]
