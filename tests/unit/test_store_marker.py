"""The marker beside a store: what it asks of the store, and when it asks for less."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from shared.process import boot
from worker.storage.rows import marker as store_marker
from worker.storage.rows.marker import Claim, Marker


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
    assert Marker(tmp_path / "copy").read() == Claim(6, 3, 700, after_power=True)


def test_only_what_was_synced_is_asked_after_another_boot(
    marker: Marker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    marker.write(6, 9)
    (tmp_path / "boot_id").write_text("00000000-0000-0000-0000-000000000001\n")
    monkeypatch.setattr(boot, "BOOT_ID", tmp_path / "boot_id")
    assert marker.read() == Claim(6, 3, 700, after_power=True)
    (tmp_path / "boot_id").write_text("none\n")
    assert marker.read() == Claim(6, 3, 700, after_power=True)
    (tmp_path / "boot_id").unlink()
    assert marker.read() == Claim(6, 3, 700, after_power=True)


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
