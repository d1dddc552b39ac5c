"""Bytes of a store's files are damaged one at a time. The store is refused then, or every row is there."""

from __future__ import annotations

import os
import random
import shutil
import struct
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from rocksdict import Options

from shared.errors import Unavailable
from worker.storage.rows import iteration
from worker.storage.rows.check import check
from worker.storage.rows.store import FAMILIES, Store, StoreDamaged, StoreLocked, _until

PLACES = 100
SEEDS = (3, 4, 5)
OPEN_MAX = 40
KINDS = ("CURRENT", "IDENTITY", "MANIFEST", "OPTIONS", "log", "sst", "mark")

Rows = dict[str, dict[bytes, bytes]]


def fill(store: Store, rows: Rows, first: int, count: int, rng: random.Random) -> None:
    for family in FAMILIES:
        batch = store.batch()
        for number in range(first, first + count):
            key, value = b"%s-%05d" % (family.encode(), number), rng.randbytes(40)
            batch.put(family, key, value)
            rows[family][key] = value
        store.write(batch)


@pytest.fixture(scope="module")
def stores(tmp_path_factory) -> tuple[list[Path], Rows]:
    """A store as a kill leaves it, with two log files and tables, and the same one closed; what both must have."""
    base = tmp_path_factory.mktemp("stores")
    rng = random.Random(11)
    rows: Rows = {family: {} for family in FAMILIES}
    store = Store(base / "closed" / "store")
    fill(store, rows, 0, 300, rng)
    store.flush("log")
    store.flush("meta")
    for first in range(300, 330, 10):
        fill(store, rows, first, 10, rng)
    store.sync()
    shutil.copytree(base / "closed", base / "killed")
    store.close()
    return [base / "killed", base / "closed"], rows


def copied(directory: Path, target: Path) -> Path:
    shutil.copytree(directory, target)
    return target / "store"


def flip(file: Path, at: int, bits: int) -> None:
    with open(file, "r+b") as data:
        data.seek(at)
        [byte] = data.read(1)
        data.seek(at)
        data.write(bytes([byte ^ bits]))


READS: dict[str, Callable[[Store, str, dict[bytes, bytes]], bool]] = {
    "scan": lambda store, family, rows: dict(store.scan(family)) == rows,
    "backwards": lambda store, family, rows: dict(store.scan(family, reverse=True)) == rows,
    "keys": lambda store, family, rows: list(store.keys(family)) == sorted(rows),
    "get_many": lambda store, family, rows: store.get_many(family, list(rows)) == list(rows.values()),
    "get": lambda store, family, rows: all(store.get(family, key) == rows[key] for key in list(rows)[::10]),
}


@pytest.fixture
def opened() -> Iterator[deque[Store]]:
    """Stores that are closed later, and in the end at the latest: after a compaction that has met damage RocksDB waits
    a second before it can be closed, which has passed then. It waits in a thread of this process, of which all stores
    would otherwise have one."""
    Options().increase_parallelism(2 * OPEN_MAX)
    stores: deque[Store] = deque()
    yield stores
    for store in stores:
        store.close()


def outcome(path: Path, rows: Rows, opened: deque[Store]) -> str:
    """ "refused" or "good"; fails where something is answered that is not so."""
    try:
        store = Store(path)
    except StoreDamaged:
        return "refused"
    opened.append(store)
    if len(opened) > OPEN_MAX:
        opened.popleft().close()
    result = "good"
    for family, expected in rows.items():
        for name, read in READS.items():
            try:
                assert read(store, family, expected), f"{name} of {family} gives other rows"
            except StoreDamaged as error:
                assert str(path) in str(error)
                assert store.damage is not None
                result = "refused"
    return result


def kind_of(file: Path) -> str:
    return next(kind for kind in KINDS if file.name.startswith(kind) or file.name.endswith(kind))


@pytest.mark.parametrize("seed", SEEDS)
def test_no_flipped_byte_gives_a_wrong_or_a_shorter_answer(stores, opened, tmp_path, seed):
    directories, rows = stores
    rng = random.Random(seed)
    results: dict[str, set[str]] = {}
    files = [file for own in directories for file in sorted(own.rglob("*")) if file.name not in ("LOG", "LOCK")]
    files = [file for file in files if file.is_file() and file.stat().st_size and file.suffix != ".json"]
    assert {kind_of(file) for file in files} == set(KINDS)
    for turn in range(PLACES):
        file = files[turn % len(files)]
        own = next(own for own in directories if own in file.parents)
        target = copied(own, tmp_path / f"copy-{turn}").parent
        flip(target / file.relative_to(own), rng.randrange(file.stat().st_size), 1 << rng.randrange(8))
        results.setdefault(kind_of(file), set()).add(outcome(target / "store", rows, opened))
    assert results["sst"] == results["log"] == {"refused"}
    assert results["CURRENT"] == {"refused"}
    assert "refused" in results["MANIFEST"]
    assert results["OPTIONS"] == results["IDENTITY"] == results["mark"] == {"good"}


def test_no_damaged_length_in_the_manifest_makes_it_a_shorter_one(stores, opened, tmp_path):
    directories, rows = stores
    for own in directories:
        [manifest] = (own / "store").glob("MANIFEST-*")
        data, at, places = manifest.read_bytes(), 0, []
        while at < len(data):
            places += [at + 4, at + 5]
            at += 7 + struct.unpack_from("<H", data, at + 4)[0]
        for place in places:
            path = copied(own, tmp_path / f"{own.name}-{place}")
            flip(path / manifest.name, place, 0x40)
            assert outcome(path, rows, opened) == "refused", f"{own.name} {place}"


def test_a_store_whose_log_ends_before_what_was_synced_is_refused(stores, tmp_path):
    directories, rows = stores
    path = copied(directories[0], tmp_path / "copy")
    log = max(path.glob("*.log"))
    os.truncate(log, log.stat().st_size // 2)
    with pytest.raises(StoreDamaged, match=r"had acknowledged .* delete .*store\.mark to accept the loss"):
        Store(path)
    (tmp_path / "copy" / "store.mark").unlink()
    store = Store(path)
    assert len(dict(store.scan("series"))) < len(rows["series"])
    store.close()


def put(store: Store, *keys: bytes, durable: bool = False) -> None:
    batch = store.batch()
    for key in keys:
        batch.put("log", key, b"v")
    store.write(batch, durable=durable)


def killed(path: Path) -> Path:
    """The store as a kill would leave it now, in another place, but with the same file for a marker."""
    shutil.copytree(path / "store", path / "killed" / "store")
    os.link(path / "store.mark", path / "killed" / "store.mark")
    return path / "killed" / "store"


def test_a_write_that_was_not_synced_is_missed_while_no_power_was_lost(tmp_path):
    store = Store(tmp_path / "store")
    put(store, b"a", durable=True)
    put(store, b"b")
    path = killed(tmp_path)
    log = max(path.glob("*.log"))
    os.truncate(log, log.stat().st_size - 1)
    with pytest.raises(StoreDamaged, match="its log ends"):
        Store(path)
    store.close()


def test_a_write_that_was_not_synced_may_be_gone_after_a_loss_of_power(tmp_path):
    store = Store(tmp_path / "store")
    put(store, b"a", durable=True)
    put(store, b"b")
    path = killed(tmp_path)
    log = max(path.glob("*.log"))
    os.truncate(log, log.stat().st_size - 1)
    marker = path.with_name("store.mark")
    content = marker.read_bytes()
    marker.unlink()
    marker.write_bytes(content)  # another file, which is as good as another boot
    reopened = Store(path)
    assert list(reopened.keys("log")) == [b"a"]
    reopened.close()
    store.close()


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize(("what", "message"), [("missing", "Missing WAL"), ("shorter", "Size mismatch: WAL")])
def test_a_store_that_lacks_writes_of_a_log_before_its_last_one_is_refused(
    tmp_path: Path, place: int, what: str, message: str
) -> None:
    store = Store(tmp_path / "store")
    ends = []
    for number in range(3):
        put(store, b"%d" % number)
        [log] = {*(tmp_path / "store").glob("*.log")} - {log for log, _ in ends}
        ends.append((log, log.stat().st_size))
        batch = store.batch()
        batch.put("meta", b"%d" % number, b"v")
        store.write(batch)
        store.flush("meta")  # RocksDB begins another log
    put(store, b"synced", durable=True)
    path = killed(tmp_path)
    log, first_write = ends[place]
    if what == "missing":
        (path / log.name).unlink()
    else:
        os.truncate(path / log.name, first_write)
    with pytest.raises(StoreDamaged, match=message):
        Store(path)
    assert any(message in text for text in check(path))
    store.close()


def test_writes_without_the_log_are_not_missed_after_a_crash(tmp_path):
    store = Store(tmp_path / "store")
    put(store, b"a", durable=True)
    batch = store.batch()
    batch.put("log", b"b", b"v")
    store.write(batch, logged=False)
    store.sync()
    reopened = Store(killed(tmp_path))
    assert list(reopened.keys("log")) == [b"a"]
    reopened.close()
    store.close()


@pytest.mark.parametrize("lost", ["CURRENT", "."])
def test_a_store_that_is_gone_is_not_begun_anew(tmp_path, lost):
    store = Store(tmp_path / "store")
    put(store, b"a")
    store.close()
    if lost == ".":
        shutil.rmtree(tmp_path / "store")
    else:
        (tmp_path / "store" / lost).unlink()
        (tmp_path / "store.mark").unlink()
    with pytest.raises(StoreDamaged, match="CURRENT is missing"):
        Store(tmp_path / "store")


def test_a_manifest_that_was_cut_is_refused(tmp_path):
    store = Store(tmp_path / "store")
    put(store, b"a")
    store.flush("log")
    path = killed(tmp_path)
    [manifest] = path.glob("MANIFEST-*")
    os.truncate(manifest, manifest.stat().st_size - 20)
    with pytest.raises(StoreDamaged, match=r"MANIFEST-\d+ has \d+ bytes, and had \d+"):
        Store(path)
    store.close()


def damaged_table(path: Path) -> None:
    """Damages the rows of a store with one large table."""
    table = max(path.glob("*.sst"), key=lambda file: file.stat().st_size)
    flip(table, table.stat().st_size // 2, 1)


@pytest.fixture
def damaged(tmp_path):
    store = Store(tmp_path / "store")
    put(store, *(b"k%05d" % number for number in range(20_000)))
    store.close()
    damaged_table(tmp_path / "store")
    opened = Store(tmp_path / "store")
    yield opened
    opened.close()


def test_damage_is_not_taken_for_a_lock(damaged):
    with pytest.raises(StoreDamaged, match=r"block checksum mismatch.*\.sst") as raised:
        list(damaged.scan("log"))
    assert not isinstance(raised.value, StoreLocked)


def test_a_damaged_store_takes_no_writes_and_is_not_opened_again_by_a_restart(damaged):
    put(damaged, b"x")
    with pytest.raises(StoreDamaged):
        list(damaged.keys("log"))
    assert "checksum" in str(damaged.damage)
    with pytest.raises(Unavailable, match="checksum"):
        put(damaged, b"y")
    assert not damaged.recoverable()


def test_a_compaction_over_damage_is_noticed(damaged):
    put(damaged, *(b"k%05d" % number for number in range(5_000, 15_000)))
    damaged.flush("log")
    with pytest.raises(StoreDamaged, match="checksum"):
        damaged.reclaim("log", b"k", b"l")
    assert damaged.damage is not None


def test_a_row_that_makes_no_sense_is_named(tmp_path):
    store = Store(tmp_path / "store")
    names_it = r"store is damaged: the row b'k' of 'meta' is invalid: unpack requires"
    with pytest.raises(StoreDamaged, match=names_it), store.decoding("meta", b"k"):
        struct.unpack("<Q", b"short")
    assert store.damage is not None
    store.close()


def test_after_a_failed_sync_none_succeeds(tmp_path, monkeypatch):
    store = Store(tmp_path / "store")

    class Failing:
        def __init__(self, db):
            self.db, self.failures = db, 1

        def __getattr__(self, name):
            return getattr(self.db, name)

        def flush_wal(self, sync):
            self.failures -= 1
            if self.failures >= 0:
                raise Exception("IO error: While fdatasync: Input/output error")

    put(store, b"a")
    db, store._db = store._db, Failing(store._db)
    for _ in range(2):
        with pytest.raises(Unavailable):
            store.sync()
    with pytest.raises(Unavailable, match="takes no writes"):
        put(store, b"b")
    assert store.recoverable()
    store._db = db
    store.close()


@pytest.mark.parametrize("left", [1, 2, 4])
def test_a_scan_whose_loop_ends_before_its_last_row_is_no_shorter_scan(tmp_path: Path, left: int) -> None:
    store = Store(tmp_path / "store")
    batch = store.batch()
    keys = [b"%02d" % number for number in range(iteration.FEW_ROWS + left)]
    for key in keys:
        batch.put("meta", key, b"value")
    store.write(batch)
    snapshot = store._families["meta"].snapshot()
    rows = [(key, b"value") for key in keys[iteration.FEW_ROWS : -1]]
    ended = SimpleNamespace(iter=snapshot.iter, items=lambda **_: iter(rows))
    for check_end in (store._check_end, partial(iteration.check_end, store.path)):
        with pytest.raises(Unavailable, match="could not be read on from"):
            list(iteration.ascending(ended, b"", _until(None), check_end))
    store.close()
