"""A store's files before RocksDB reads them: its manifest, and what else has to be there."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from shared.process import boot
from tests.crc32c import crc32c
from tests.powerloss.workloads.store import killed
from worker.storage.rows import check as store_check
from worker.storage.rows import files as store_files
from worker.storage.rows import manifest as store_manifest
from worker.storage.rows.damage import StoreDamaged
from worker.storage.rows.manifest import damaged_length
from worker.storage.rows.marker import Claim, Marker
from worker.storage.rows.store import Store


def record(data: bytes, length: int | None = None, kind: int = 1) -> bytes:
    """As RocksDB's log format has it; `length` is what the head says of it."""
    crc = crc32c(bytes([kind]) + data)
    masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
    return (
        masked.to_bytes(4, "little")
        + (len(data) if length is None else length).to_bytes(2, "little")
        + bytes([kind])
        + data
    )


def test_a_block_of_whole_records_is_sound() -> None:
    assert damaged_length(b"") is None
    assert damaged_length(record(b"abc") + record(b"") + record(b"defg", kind=2)) is None


@pytest.mark.parametrize("left", range(1, 11))
def test_a_record_that_a_crash_has_cut_is_no_damage(left: int) -> None:
    assert damaged_length(record(b"first") + record(b"abcd")[:left]) is None


@pytest.mark.parametrize("data", [b"", b"a", b"abcdefgh"])
@pytest.mark.parametrize("behind", [b"", record(b"following")])
def test_a_length_past_the_end_of_a_record_that_is_there_is_damage(data: bytes, behind: bytes) -> None:
    assert damaged_length(record(data, length=500) + behind) == 0
    assert damaged_length(record(b"first") + record(data, length=500) + behind) == 7 + len(b"first")


def test_a_length_that_reaches_the_end_exactly_is_sound() -> None:
    assert damaged_length(record(b"abcd", length=4)) is None
    assert damaged_length(record(b"abcd", length=5)) == 0


def store(directory: Path, manifest: bytes, current: str = "MANIFEST-000005\n") -> Path:
    path = directory / "store"
    path.mkdir()
    (path / "CURRENT").write_text(current)
    (path / "MANIFEST-000005").write_bytes(manifest)
    return path


def test_a_manifest_may_have_grown_and_not_shrunk(tmp_path: Path) -> None:
    path = store(tmp_path, whole := record(b"abc") + record(b"def"))
    assert store_manifest.current(path) == (5, len(whole))
    for claim in (None, Claim(1, 5, len(whole)), Claim(1, 5, len(whole) - 1), Claim(1, 4, 9999)):
        store_files.verify(path, claim)
    with pytest.raises(StoreDamaged, match=f"MANIFEST-000005 has {len(whole)} bytes, and had {len(whole) + 1}"):
        store_files.verify(path, Claim(1, 5, len(whole) + 1))


def test_a_wrong_length_in_the_last_block_is_named_by_its_place(tmp_path: Path) -> None:
    first = record(bytes((32 << 10) - 7))
    path = store(tmp_path, first + record(b"abc") + record(b"def", length=99))
    with pytest.raises(StoreDamaged, match=f"wrong length at {(32 << 10) + 10}$"):
        store_files.verify(path, None)


@pytest.mark.parametrize("current", ["", "5\n", "MANIFEST-\n", "MANIFEST-x\n", "MANIFEST-000006\n"])
def test_a_store_whose_manifest_is_not_named_is_damaged(tmp_path: Path, current: str) -> None:
    with pytest.raises(StoreDamaged, match="is damaged"):
        store_files.verify(store(tmp_path, record(b"abc"), current), None)


# After a loss of power

BLOCK = 32 << 10


def torn(synced_bytes: int) -> Claim:
    return Claim(1, 5, synced_bytes, after_power=True)


FIRST, SECOND = record(b"first"), record(b"second")


@pytest.mark.parametrize(
    "tail",
    [
        SECOND[:3],
        SECOND[:-1],
        bytes(len(SECOND)),
        bytes(len(SECOND)) + record(b"third"),
        SECOND[:8] + bytes(len(SECOND) - 8) + record(b"third"),
        bytes(BLOCK) + record(b"third"),
        record(b"second", length=500),
    ],
    ids=["header", "end", "zeros", "hole", "half", "block", "length"],
)
def test_what_was_not_synced_of_a_manifest_is_cut_off_where_power_was_lost(tmp_path: Path, tail: bytes) -> None:
    path = store(tmp_path, FIRST + tail)
    file = path / "MANIFEST-000005"
    assert store_files.torn_manifest(path, torn(len(FIRST))) == (file, len(FIRST))
    store_files.verify(path, torn(len(FIRST)))
    store_manifest.cut(file, len(FIRST))
    assert file.read_bytes() == FIRST
    assert store_files.torn_manifest(path, torn(len(FIRST))) is None


def test_a_manifest_is_cut_in_a_later_block(tmp_path: Path) -> None:
    full = record(bytes(BLOCK - 7 - 3)) + bytes(3)
    path = store(tmp_path, full + full + FIRST + bytes(40) + SECOND)
    for synced in (0, len(full), 2 * len(full) + len(FIRST)):
        assert store_files.torn_manifest(path, torn(synced)) == (path / "MANIFEST-000005", 2 * BLOCK + len(FIRST))


def test_a_whole_manifest_is_not_cut(tmp_path: Path) -> None:
    path = store(tmp_path, FIRST + record(bytes(BLOCK - 7 - len(FIRST))) + SECOND)
    assert store_files.torn_manifest(path, torn(0)) is None
    assert store_files.torn_manifest(path, torn(len(FIRST))) is None


def test_a_damaged_manifest_is_not_cut(tmp_path: Path) -> None:
    """Where power was not lost, or below what was synced, or in another manifest than the marker says."""
    damaged = bytearray(FIRST + SECOND + record(b"third"))
    damaged[len(FIRST) + 8] ^= 1
    path = store(tmp_path, bytes(damaged))
    for claim in (
        None,
        Claim(1, 5, len(FIRST)),
        torn(len(FIRST) + 1),
        torn(len(damaged)),
        Claim(1, 4, 0, after_power=True),
    ):
        assert store_files.torn_manifest(path, claim) is None
    assert store_files.torn_manifest(path, torn(len(FIRST))) is not None


def test_a_manifest_may_not_have_lost_what_was_synced(tmp_path: Path) -> None:
    path = store(tmp_path, FIRST)
    store_files.verify(path, torn(len(FIRST)))
    with pytest.raises(StoreDamaged, match="and had"):
        store_files.verify(path, torn(len(FIRST) + 1))


# Files that are not there


@pytest.mark.parametrize(
    ("name", "size", "is_data"), [("1.sst", 1, True), ("1.log", 1, True), ("1.log", 0, False), ("LOG", 1, False)]
)
def test_a_store_without_current_is_begun_only_where_there_is_no_data(
    tmp_path: Path, name: str, size: int, is_data: bool
) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / name).write_bytes(bytes(size))
    if is_data:
        with pytest.raises(StoreDamaged, match="CURRENT is missing"):
            store_files.verify(tmp_path / "store", None)
    else:
        store_files.verify(tmp_path / "store", None)
        with pytest.raises(StoreDamaged, match="CURRENT is missing"):
            store_files.verify(tmp_path / "store", Claim())


def test_a_store_that_nobody_has_opened_is_not_locked(tmp_path: Path) -> None:
    assert not store_files.is_locked(tmp_path)
    (tmp_path / "LOCK").touch()
    assert not store_files.is_locked(tmp_path)


# The store itself


def torn_by_power(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store with one synced row, whose manifest a loss of power has torn behind what was synced."""
    own = Store(directory / "store")
    batch = own.batch()
    batch.put("meta", b"key", b"value")
    own.write(batch, durable=True)
    own.flush("meta")
    killed(own)
    (directory / "boot_id").write_text("00000000-0000-0000-0000-000000000001\n")
    monkeypatch.setattr(boot, "BOOT_ID", directory / "boot_id")
    number, _ = store_manifest.current(own.path)
    with open(store_manifest.path_of(own.path, number), "ab") as manifest:
        manifest.write(bytes(len(SECOND)) + record(b"third"))
    return own.path


def test_a_store_whose_manifest_was_torn_has_all_that_was_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = torn_by_power(tmp_path, monkeypatch)
    assert store_check.check(path) == []
    again = Store(path)
    assert again.get("meta", b"key") == b"value"
    again.close()


def test_a_marker_says_of_a_manifest_only_what_was_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = Store(tmp_path / "store")
    fsync, synced = os.fsync, []

    def watched(descriptor: int) -> None:
        synced.append((os.readlink(f"/proc/self/fd/{descriptor}"), os.fstat(descriptor).st_size))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", watched)
    batch = own.batch()
    batch.put("meta", b"key", b"value")
    own.write(batch, durable=True)
    own.flush("meta")
    number, size = store_manifest.current(own.path)
    assert synced == [(str(store_manifest.path_of(own.path, number)), size)]
    assert Marker(own.path).read() == Claim(1, number, size)
    own.sync()
    assert len(synced) == 1, "nothing has changed"
    own.close()


def test_a_write_does_not_wait_for_the_sync_of_the_manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = Store(tmp_path / "store")
    begun, let_go = threading.Event(), threading.Event()

    def hangs(descriptor: int) -> None:
        begun.set()
        assert let_go.wait(10)

    def put(key: bytes) -> None:
        batch = own.batch()
        batch.put("meta", key, b"value")
        own.write(batch)

    put(b"first")
    monkeypatch.setattr(os, "fsync", hangs)
    flushing = threading.Thread(target=own.flush, args=("meta",))
    writing = threading.Thread(target=put, args=(b"second",))
    flushing.start()
    assert begun.wait(10)
    writing.start()
    writing.join(5)
    was_written = not writing.is_alive()
    let_go.set()
    for thread in (flushing, writing):
        thread.join()
    monkeypatch.undo()
    own.close()
    assert was_written


def test_a_marker_asks_for_no_manifest_that_could_not_be_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Store(tmp_path / "store")
    before = Marker(own.path).read()

    def fails(descriptor: int) -> None:
        raise OSError(errno.EIO, "the disk fails")

    monkeypatch.setattr(os, "fsync", fails)
    own.flush("meta")
    batch = own.batch()
    batch.put("meta", b"key", b"value")
    own.write(batch)
    own.flush("meta")
    monkeypatch.undo()
    now = Marker(own.path).read()
    assert before is not None and now is not None
    assert (now.manifest, now.manifest_bytes) == (before.manifest, before.manifest_bytes)
    assert now.writes == 1
    own.close()
