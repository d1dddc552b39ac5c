# ruff: noqa: F811 (fixtures of another module)
"""What is damaged where backups are kept: objects and inventories."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import msgspec
import pytest

from coordinator.backup import restoring, sending
from coordinator.backup.destination import open_place
from coordinator.backup.inventory import FORMAT, OBJECTS, BackupError, Inventory
from tests.unit.backup_places import (  # noqa: F401 (fixtures)
    assert_restored,
    back_up,
    names_entries,
    nothing,
    restore,
    view,
)


def test_a_damaged_object_is_named_and_never_restored(view: Path, tmp_path: Path) -> None:
    location = str(tmp_path / "place")
    back_up(view, location)
    [entry] = [e for e in names_entries(location) if e.path == "shards/0001/store/000001.sst"]
    file = tmp_path / "place" / entry.object
    content = bytearray(file.read_bytes())
    content[5000] ^= 1
    file.write_bytes(content)
    [text] = sending.verify(open_place(location), nothing)
    assert entry.object in text and entry.path in text
    with pytest.raises(BackupError, match=r"shards/0001/store/000001\.sst"):
        restore(location, tmp_path / "data")
    assert not (tmp_path / "data").exists()


def test_what_was_found_damaged_is_copied_again_by_the_next_backup(view: Path, tmp_path: Path) -> None:
    location = str(tmp_path / "place")
    back_up(view, location)
    place = open_place(location)
    [entry] = [e for e in names_entries(location) if e.path == "shards/0001/store/000001.sst"]
    file = tmp_path / "place" / entry.object
    damaged = bytes([file.read_bytes()[0] ^ 1]) + file.read_bytes()[1:]
    file.write_bytes(damaged)
    assert len(sending.verify(place, nothing)) == 1
    assert damaged in [b"".join(place.read(name)) for name in place.names(OBJECTS)], "nothing is lost"
    back_up(view, location, "20261122T000001Z-0")
    assert sending.verify(place, nothing) == [], "that also mends the backup before"
    restore(location, tmp_path / "data")
    assert_restored(view, tmp_path / "data")
    sending.prune(place, 2)
    assert damaged not in [b"".join(place.read(name)) for name in place.names(OBJECTS)]


def test_an_object_that_was_cut_short_is_copied_again_by_the_next_backup(view: Path, tmp_path: Path) -> None:
    location = str(tmp_path / "place")
    back_up(view, location)
    for name in open_place(location).names(OBJECTS):
        os.truncate(tmp_path / "place" / name, 3)
    back_up(view, location, "20261122T000001Z-0")
    restore(location, tmp_path / "data")
    assert_restored(view, tmp_path / "data")


def test_an_inventory_that_is_damaged_is_named_and_prune_refuses(view: Path, tmp_path: Path) -> None:
    location = str(tmp_path / "place")
    back_up(view, location)
    back_up(view, location, "20261122T000001Z-0")
    file = tmp_path / "place/backups/20261122T000000Z-0.json"
    file.write_bytes(file.read_bytes().replace(b"old-cluster", b"new-cluster"))
    with pytest.raises(BackupError, match="20261122T000000Z-0"):
        sending.prune(open_place(location), 1)
    assert "20261122T000000Z-0" in sending.verify(open_place(location), nothing)[0]
    assert restoring.choose(open_place(location), None).name == "20261122T000001Z-0"


def damage(place: Path, name: str, old: bytes, new: bytes) -> None:
    file = place / f"backups/{name}.json"
    assert old in file.read_bytes()
    file.write_bytes(file.read_bytes().replace(old, new))


def test_no_older_backup_is_restored_for_the_newest_that_cannot_be_used(view: Path, tmp_path: Path) -> None:
    location = str(tmp_path / "place")
    older, newest = "20261122T000000Z-0", "20261122T000001Z-0"
    back_up(view, location, older)
    back_up(view, location, newest)
    damage(tmp_path / "place", newest, b"old-cluster", b"new-cluster")
    place = open_place(location)
    with pytest.raises(BackupError, match=f"{newest}.json cannot be used: its checksum .*`--name {older}` restores"):
        restoring.choose(place, None)
    with pytest.raises(BackupError, match=f"{newest}.json cannot be used: its checksum"):
        restoring.choose(place, newest)
    assert restoring.choose(place, older).name == older
    damage(tmp_path / "place", older, b"old-cluster", b"new-cluster")
    with pytest.raises(BackupError, match=f"{older}.json .*{newest}.json .*no other backup is there"):
        restoring.choose(place, None)


def test_an_inventory_of_a_later_format_is_not_passed_over(view: Path, tmp_path: Path) -> None:
    location, later = str(tmp_path / "place"), FORMAT + 1
    back_up(view, location)
    back_up(view, location, "20261121T000000Z-0")  # the clock has been set back
    place = open_place(location)
    newest = msgspec.structs.replace(restoring.choose(place, None), format=later)
    place.publish(f"backups/{newest.name}.json", newest.encode())
    with pytest.raises(BackupError, match=f"{newest.name}.json cannot be used: it has format {later}, and this"):
        restoring.choose(place, None)


def test_the_number_of_a_backup_that_cannot_be_used_is_not_given_again(view: Path, tmp_path: Path) -> None:
    location = str(tmp_path / "place")
    back_up(view, location)
    assert back_up(view, location, "20261122T000001Z-0").inventory.number == 2
    damage(tmp_path / "place", "20261122T000001Z-0", b"old-cluster", b"new-cluster")
    assert back_up(view, location, "20261122T000002Z-0").inventory.number == 3
    assert restoring.choose(open_place(location), None).number == 3


def test_an_inventory_that_leaves_the_directory_is_refused() -> None:
    inventory = Inventory(1, 1, "x", 0, "c", 1, 1, [], [])
    for path in ("../x", "/x", "a/../../x"):
        entry = {"path": path, "size": 0, "digest": "00" * 16, "changed_ns": 0, "inode": 0}
        bad = Inventory(1, 1, "x", 0, "c", 1, 1, [], [sending.InventoryFile(**entry)])
        with pytest.raises(ValueError, match="not in a data directory"):
            Inventory.decode(bad.encode())
    assert Inventory.decode(inventory.encode()) == inventory


def test_a_disk_that_takes_only_a_part_of_a_file_is_named_instead_of_the_backup(view: Path, tmp_path: Path) -> None:
    location = str(tmp_path / "place")
    back_up(view, location)
    size = max(entry.size for entry in names_entries(location))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size - 1, limits[1]))  # the last write writes all but a byte
    try:
        with pytest.raises(OSError, match="File too large"):
            restore(location, tmp_path / "data")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    restore(location, tmp_path / "data")
    assert_restored(view, tmp_path / "data")
