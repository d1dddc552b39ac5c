"""The marker beside a store: what it asks of the store, and when it asks for less."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from shared import boot
from worker import store_files, store_marker
from worker.store_damage import StoreDamaged
from worker.store_files import damaged_length
from worker.store_marker import Claim, Marker


@pytest.fixture
def marker(tmp_path: Path) -> Iterator[Marker]:
    opened = Marker(tmp_path / "store")
    opened.open(5, (3, 700))
    yield opened
    opened.close()


def test_what_was_written_and_the_manifest_are_asked_for(marker: Marker) -> None:
    assert marker.read() == Claim(5, 3, 700)
    marker.write(5, 9)
    assert marker.read() == Claim(9, 3, 700)
    marker.manifest = (4, 800)
    marker.write(8, 9)
    assert marker.read() == Claim(9, 4, 800)


def test_there_is_nothing_to_ask_without_a_marker(tmp_path: Path) -> None:
    assert Marker(tmp_path / "store").read() is None


def test_only_what_was_synced_is_asked_of_a_copy(marker: Marker, tmp_path: Path) -> None:
    marker.write(6, 9)
    shutil.copy(marker.path, tmp_path / "copy.mark")
    assert Marker(tmp_path / "copy").read() == Claim(6)


def test_only_what_was_synced_is_asked_after_another_boot(
    marker: Marker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    marker.write(6, 9)
    (tmp_path / "boot_id").write_text("00000000-0000-0000-0000-000000000001\n")
    monkeypatch.setattr(boot, "BOOT_ID", tmp_path / "boot_id")
    assert marker.read() == Claim(6)
    (tmp_path / "boot_id").write_text("none\n")
    assert marker.read() == Claim(6)
    (tmp_path / "boot_id").unlink()
    assert marker.read() == Claim(6)


@pytest.mark.parametrize("at", [0, 8, 40, 71, 72, 79])
def test_a_damaged_marker_asks_for_nothing(marker: Marker, at: int) -> None:
    content = bytearray(marker.path.read_bytes())
    content[at] ^= 1
    marker.path.write_bytes(content)
    assert marker.read() == Claim()


@pytest.mark.parametrize("size", [0, 71, 72, 79])
def test_a_marker_that_was_cut_asks_for_nothing(marker: Marker, size: int) -> None:
    os.truncate(marker.path, size)
    assert marker.read() == Claim()


def test_a_marker_of_another_release_is_an_error_that_names_it(marker: Marker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_marker, "MAGIC", b"TRPMARK2")
    marker.write(6, 9)
    monkeypatch.undo()
    with pytest.raises(OSError, match=r"store\.mark is of a release.*TRPMARK2"):
        marker.read()


def test_a_marker_is_on_the_disk_with_its_name_when_it_was_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[object] = []
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.readlink(f"/proc/self/fd/{descriptor}")))
    marker = Marker(tmp_path / "store")
    marker.open(1, (1, 1))
    marker.write(2, 2)
    monkeypatch.setattr(os, "fsync", fsync)
    assert synced == [str(marker.path), str(tmp_path)]
    assert marker.path.stat().st_mode & 0o777 == 0o600
    marker.close()
    marker.close()


# The manifest


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


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
    assert store_files.manifest_of(path) == (5, len(whole))
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
