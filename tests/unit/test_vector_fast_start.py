"""A start that reads only the vectors that have changed since a snapshot of many vectors, and compares the others with
their store later: it has the same vectors as one that reads everything."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest
import xxhash

from shared.errors import Unavailable
from shared.messages.vectors import Collection
from shared.settings import Settings
from worker.damage import DamageReport
from worker.storage.objects import LocalObjects
from worker.storage.rows.store import Store, StoreBatch
from worker.vectors import change_log, check, indexing, loading, saved_vectors, snapshot, stored_rows
from worker.vectors.collection import WorkerCollection
from worker.vectors.indexing import Indexing

ROWS, DIMENSION = 400, 8
VECTORS = np.random.default_rng(5).standard_normal((2 * ROWS, DIMENSION)).astype(np.float32)


@pytest.fixture(autouse=True)
def few_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexing, "SAVED_ROWS_MIN", 1)


class Own:
    """A collection of one worker over the stores of some shards."""

    def __init__(self, path: Path, shards: Sequence[int] = (0,), storage: str = "f32", text: tuple[str, ...] = ()):
        self.path, self.shards = path, shards
        self.description = Collection(1, "c", DIMENSION, "cosine", storage, text)
        self.snapshots = LocalObjects(path / "vector-index" / "000001")
        self.reads: list[bytes] = []
        self.open()

    def open(self) -> None:
        self.collection = WorkerCollection(self.description, self.snapshots, self.path)
        self.indexing = Indexing(self.collection, self.snapshots, Settings())
        self.stores = {shard: Store(self.path / f"store-{shard}") for shard in self.shards}
        self.damage = DamageReport()
        for shard, store in self.stores.items():
            self.collection.attach(shard, store, self.damage)

    def close(self) -> None:
        for store in self.stores.values():
            store.close()

    def reopen(self, shards: Sequence[int] | None = None) -> None:
        self.close()
        self.shards = self.shards if shards is None else shards
        self.open()

    def write(self, numbers: Sequence[int], vectors: np.ndarray = VECTORS, packed: bytes = b"") -> None:
        for shard in self.shards:
            own = [number for number in numbers if number % len(self.shards) == self.shards.index(shard)]
            if own:
                self.collection.upsert(shard, [b"%d" % n for n in own], vectors[own], [packed] * len(own))

    def save(self) -> None:
        while self.indexing.index_step():
            pass
        self.indexing.save()

    def verify(self) -> None:
        while self.indexing.verify_step():
            pass

    def held(self) -> dict[bytes, bytes]:
        """The components of each vector as they are compared, by id."""
        view = self.collection.view()
        rows = np.flatnonzero(view.alive[: view.size])
        assert len(rows) == view.size - view.dead == sum(self.collection.counts(shard)[0] for shard in self.stores)
        components = [view.vectors[row].tobytes() + view.norms[row].tobytes() for row in rows]
        return dict(zip(view.ids.take(rows), components, strict=True))

    @property
    def trusted(self) -> list[int]:
        return self.collection.loading.unverified


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Own]:
    """With a snapshot of all vectors."""
    opened = Own(tmp_path)
    opened.write(range(ROWS))
    opened.save()
    yield opened
    opened.close()


@pytest.mark.parametrize("storage", ["f32", "f16", "bf16", "i8", "b1"])
def test_only_what_has_changed_is_read(tmp_path: Path, storage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    own = Own(tmp_path, storage=storage)
    own.write(range(ROWS))
    own.save()
    own.write([3, 4, ROWS + 1], VECTORS + 1)
    own.collection.delete(0, [b"7", b"8"])
    own.write([8])
    expected = own.held()
    read: list[bytes] = []
    get_many = Store.get_many
    monkeypatch.setattr(
        Store, "get_many", lambda store, family, keys: (read.extend(keys), get_many(store, family, keys))[1]
    )
    own.reopen()
    assert sorted(key[4:] for key in read) == sorted([b"3", b"4", b"%d" % (ROWS + 1), b"7", b"8"])
    assert own.held() == expected and own.trusted == [0]
    own.verify()
    assert own.held() == expected and own.trusted == []
    own.close()


def test_what_was_pending_at_the_snapshot_is_read(own: Own) -> None:
    own.write([1, ROWS, ROWS + 1])
    own.collection.delete(0, [b"5"])
    own.write([2, ROWS + 2], VECTORS + 1)
    own.collection.table.advance(ROWS + 2)  # two of the new ones are indexed
    own.indexing.save()
    expected = own.held()
    own.reopen()
    assert own.trusted == [0] and own.held() == expected
    own.verify()
    assert own.held() == expected


def test_a_vector_that_was_replaced_and_deleted_again_and_again_is_as_it_was_last(own: Own) -> None:
    for generation in range(5):
        own.write([1, 2], VECTORS + generation)
        own.collection.delete(0, [b"1"])
        if generation % 2:
            own.save()
        expected = own.held()
        own.reopen()
        assert own.trusted == [0] and own.held() == expected
    assert b"1" not in expected


@pytest.mark.parametrize("change", ["many", "text", "few", "format"])
def test_everything_is_read_where_that_is_better(tmp_path: Path, change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many changes, texts to index, few vectors, a snapshot of an earlier release."""
    if change == "few":
        monkeypatch.setattr(indexing, "SAVED_ROWS_MIN", ROWS + 1)
    own = Own(tmp_path, text=("t",) if change == "text" else ())
    own.write(range(ROWS))
    if change == "format":
        monkeypatch.setattr(WorkerCollection, "positions", lambda *_: {})
        monkeypatch.setattr(snapshot, "FORMAT", 3)
    own.save()
    if change == "many":
        own.write(range(int(ROWS * loading.CHANGED_SHARE_MAX) + 1))
    expected = own.held()
    own.reopen()
    assert own.trusted == [] and own.held() == expected
    assert list(tmp_path.rglob("*.vectors")) == [] or change in ("many", "text")
    own.close()


def test_shards_that_come_from_another_worker_are_read(tmp_path: Path) -> None:
    own = Own(tmp_path, (0, 1))
    own.write(range(ROWS))
    own.save()
    expected = own.held()
    own.reopen((0, 1, 2))
    assert own.trusted == [0, 1] and own.held() == expected
    own.reopen((1,))
    assert own.trusted == [1] and own.held().keys() == {b"%d" % n for n in range(1, ROWS, 2)}
    own.save()
    own.reopen((0, 1))
    own.verify()
    assert own.held() == expected
    own.close()


def test_a_shard_that_is_loaded_again_is_read(own: Own) -> None:
    """As after a disk that was full: the table has other rows since."""
    expected = own.held()
    own.reopen()
    assert own.trusted == [0]
    own.collection.detach(0)
    assert own.trusted == [] and own.collection.view().size == 0
    own.collection.attach(0, own.stores[0], own.damage)
    assert own.held() == expected


def test_a_store_that_is_older_than_the_snapshot_is_read(own: Own) -> None:
    """It was restored from a copy: it has the same versions, and a vector that was deleted later."""
    own.close()
    copy = {path.name: path.read_bytes() for path in (own.path / "store-0").iterdir() if path.is_file()}
    mark = (own.path / "store-0.mark").read_bytes() if (own.path / "store-0.mark").exists() else None
    own.open()
    expected = own.held()
    own.collection.delete(0, [b"1"])
    own.collection.saved_rows = 0
    own.save()
    own.close()
    for path in (own.path / "store-0").iterdir():
        path.unlink()
    for name, content in copy.items():
        (own.path / "store-0" / name).write_bytes(content)
    if mark is not None:
        (own.path / "store-0.mark").write_bytes(mark)
    own.open()
    assert own.trusted == [] and own.held() == expected
    own.collection.delete(0, [b"2"])  # as many deletions as the snapshot has
    own.reopen()
    assert own.trusted == [] and own.held().keys() == expected.keys() - {b"2"}


@pytest.mark.parametrize("is_contained", [True, False])
@pytest.mark.parametrize("change", ["upsert", "delete"])
def test_a_snapshot_after_a_change_that_was_refused_vouches_for_nothing(
    own: Own, change: str, is_contained: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store may have the batch nevertheless."""
    write = Store.write

    def refuse(store: Store, batch: StoreBatch, **how: bool) -> None:
        if is_contained:
            write(store, batch, **how)
        raise Unavailable("the disk does not answer")

    with monkeypatch.context() as refusing, pytest.raises(Unavailable):
        refusing.setattr(Store, "write", refuse)
        own.collection.delete(0, [b"1"]) if change == "delete" else own.write([1], VECTORS + 1)
    own.write(range(ROWS, ROWS + 20))
    own.save()
    expected = own.held()
    own.reopen()
    assert own.trusted == []
    if is_contained and change == "delete":
        del expected[b"1"]
    changed = {key for key in expected.keys() | own.held().keys() if expected.get(key) != own.held().get(key)}
    assert changed == ({b"1"} if is_contained and change == "upsert" else set())


@pytest.mark.parametrize("saved_rows_min", [1, 100 * ROWS])
def test_records_of_changes_do_not_pile_up(own: Own, saved_rows_min: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where no snapshot has the vectors."""
    monkeypatch.setattr(indexing, "SAVED_ROWS_MIN", saved_rows_min)
    for generation in range(5):
        own.write([1, 2], VECTORS + generation)
        own.collection.delete(0, [b"1"])
        own.save()
        assert not list(own.stores[0].scan(change_log.META, change_log.RECORDS, change_log.RECORDS + b"\xff"))
    expected = own.held()
    own.reopen()
    assert own.trusted == ([0] if saved_rows_min == 1 else []) and own.held() == expected


def raw(own: Own, change: Callable[[object], None]) -> None:
    """A change of the store that leaves no record, as of an earlier release."""
    batch = own.stores[0].batch()
    change(batch)
    own.stores[0].write(batch)


def own_records(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """What this thread has logged: threads of earlier tests may still be at work."""
    return [record for record in caplog.records if record.thread == threading.get_ident()]


def test_what_differs_from_the_store_is_corrected(own: Own, caplog: pytest.LogCaptureFixture) -> None:
    new = (9).to_bytes(8, "little") + VECTORS[ROWS].tobytes()
    raw(own, lambda batch: batch.delete(stored_rows.FAMILY, own.collection.prefix + b"3"))  # type: ignore[attr-defined]
    raw(own, lambda batch: batch.put(stored_rows.FAMILY, own.collection.prefix + b"new", new))  # type: ignore[attr-defined]
    raw(own, lambda batch: batch.put(stored_rows.FAMILY, own.collection.prefix + b"4", new))  # type: ignore[attr-defined]
    before = own.held()
    own.reopen()
    assert own.trusted == [0] and own.held() == before
    own.verify()
    after = own.held()
    assert after.keys() == before.keys() - {b"3"} | {b"new"}
    assert after[b"new"] == after[b"4"] != before[b"4"]
    assert {key: after[key] for key in before if key not in (b"3", b"4")}.items() <= before.items()
    (record,) = own_records(caplog)
    assert record.fields["vectors"] == 3  # type: ignore[attr-defined]
    own.save()
    own.reopen()
    assert own.held() == after


def test_a_damaged_row_is_found_and_reported(own: Own) -> None:
    raw(own, lambda batch: batch.put(stored_rows.FAMILY, own.collection.prefix + b"4", b"short"))  # type: ignore[attr-defined]
    own.reopen()
    assert b"4" in own.held() and not own.damage.texts("vector")
    own.verify()
    assert b"4" not in own.held()
    (text,) = own.damage.texts("vector")
    assert "1 such as '4'" in text
    own.save()
    own.reopen()  # this time at once: no snapshot stands for a shard with damage
    assert own.trusted == [] and own.damage.texts("vector") == [text]
    assert own.collection.delete(0, [b"4"]) == 1
    own.save()


def test_a_damaged_row_that_is_shown_before_it_is_compared_is_deleted_once(own: Own) -> None:
    raw(own, lambda batch: batch.put(stored_rows.FAMILY, own.collection.prefix + b"4", b"short"))  # type: ignore[attr-defined]
    own.reopen()
    assert own.collection.contents(0, [b"4"]) == [None]
    assert b"4" not in own.held()
    assert own.collection.delete(0, [b"4"]) == 1
    own.verify()
    assert own.damage.texts("vector")


def test_writes_between_two_slices_of_the_comparison_are_no_differences(
    own: Own, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.vectors.verification.ROWS", 16)
    own.reopen()
    choice = np.random.default_rng(1)
    while own.indexing.verify_step():
        numbers = choice.integers(0, 2 * ROWS, 6).tolist()
        own.write(sorted(set(numbers)), VECTORS + 1)
        own.collection.delete(0, [b"%d" % n for n in numbers[:3]])
    assert not own_records(caplog)
    expected = own.held()
    own.reopen()
    assert own.held() == expected


def test_a_comparison_holds_nothing_of_a_store_between_its_slices(own: Own) -> None:
    own.reopen()
    assert own.indexing.verify_step()
    own.close()
    own.stores = {0: Store(own.path / "store-0")}  # would be locked


def test_a_table_is_not_compacted_before_it_was_compared(own: Own, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexing, "DEAD_ROWS_MIN", 1)
    own.reopen()
    own.collection.delete(0, [b"%d" % n for n in range(ROWS // 2)])
    assert not own.indexing.compact_due()
    own.verify()
    assert own.indexing.compact_due()
    for _ in own.indexing.compact():
        pass
    own.save()
    expected = own.held()
    own.reopen()
    assert own.trusted == [0] and own.held() == expected and len(expected) == ROWS // 2


@pytest.mark.parametrize("harm", ["flipped", "short", "long", "missing"])
def test_damaged_vectors_of_a_snapshot_are_read_from_the_store(
    own: Own, harm: str, caplog: pytest.LogCaptureFixture
) -> None:
    expected = own.held()
    (path,) = own.path.rglob("*.vectors")
    content = bytearray(path.read_bytes())
    if harm == "missing":
        path.unlink()
    else:
        content[1234] ^= 4
        path.write_bytes({"flipped": content, "short": content[:-1], "long": content + b"x"}[harm])
    (finding,) = check.check_index(own.path / "vector-index")
    assert finding.path == path and not finding.costs_data
    own.reopen()
    assert own.trusted == [] and own.held() == expected
    assert "vectors of a snapshot not usable" in caplog.text
    own.write([ROWS])
    own.save()
    assert not list(check.check_index(own.path / "vector-index"))
    expected = own.held()
    own.reopen()
    assert own.trusted == [0] and own.held() == expected


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("norms", b""),
        ("shards", bytes(2)),
        ("segments", ()),
        ("segments", (saved_vectors.Segment("1.vectors", ROWS - 1, 0),)),
        ("segments", (saved_vectors.Segment("1.vectors", -1, 0), saved_vectors.Segment("1.vectors", ROWS, 0))),
        ("positions", {}),
    ],
)
def test_a_snapshot_whose_vectors_contradict_its_rows_is_not_used(own: Own, field: str, value: object) -> None:
    place = own.snapshots.within("0")
    content = snapshot.verified(place)
    setattr(content, field, value)
    body = msgspec.msgpack.encode(content)
    place.replace(snapshot.ROWS, snapshot.xxhash.xxh3_64_digest(body) + body)
    with pytest.raises(ValueError, match="vectors up to the rows"):
        snapshot.verified(place)
    expected = own.held()
    own.reopen()
    assert own.held() == expected


def test_a_snapshot_writes_new_vectors_only_and_segments_stay_few(tmp_path: Path) -> None:
    own = Own(tmp_path)
    place = tmp_path / "vector-index" / "000001" / "0"
    written = 0
    for first in range(0, 2 * ROWS, 10):
        own.write(range(first, first + 10))
        before = {path.name for path in place.glob("*.vectors")}
        own.save()
        files = list(place.glob("*.vectors"))
        written += sum(path.stat().st_size for path in files if path.name not in before)
        assert sum(path.stat().st_size for path in files) == 4 * DIMENSION * (first + 10)
        assert len(files) <= 7
        if first % 70 == 0:
            expected = own.held()
            own.reopen()
            assert own.trusted == [0] and own.held() == expected
    assert written <= 7 * 4 * DIMENSION * 2 * ROWS
    own.close()


def test_what_a_crash_has_left_of_a_snapshot_is_removed(own: Own) -> None:
    place = own.path / "vector-index" / "000001" / "0"
    for name in ("9.index", "9.writing", "9.vectors", "9.attributes"):
        (place / name).write_bytes(b"part")
    own.write([ROWS])
    own.save()
    assert sorted(path.name.partition(".")[0] for path in place.iterdir() if path.suffix) == ["1", "10", "10", "10"]


def test_the_log_says_why_nothing_more(own: Own, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "triptych"):
        own.reopen()
        own.verify()
    assert not own_records(caplog)


def test_the_objects_of_a_snapshot_have_the_vectors_among_them(own: Own) -> None:
    """A backup has these, or none of the snapshot."""
    own.write(range(ROWS, ROWS + 9))
    own.save()
    saved = own.snapshots.within("0")
    assert snapshot.object_names(saved) == {entry.name for entry in saved.list()} >= {"1.vectors", "2.vectors"}
    saved.delete("1.vectors")
    with pytest.raises(ValueError, match=r"1\.vectors is missing"):
        snapshot.object_names(saved)


def test_a_segment_is_not_looked_for_elsewhere(own: Own) -> None:
    saved = own.snapshots.within("0")
    content = snapshot.verified(saved)
    elsewhere = [msgspec.structs.replace(segment, name=f"../0/{segment.name}") for segment in content.segments]
    body = msgspec.msgpack.encode(msgspec.structs.replace(content, segments=elsewhere))
    saved.replace(snapshot.ROWS, xxhash.xxh3_64_digest(body) + body)
    with pytest.raises(ValueError, match=r"'\.\./0/1\.vectors' is no name of a segment"):
        snapshot.object_names(saved)
    expected = own.held()
    own.reopen()
    assert own.trusted == [] and own.held() == expected
