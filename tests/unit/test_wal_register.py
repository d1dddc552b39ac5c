"""The list of a write-ahead log's files in use: what it says after changes, failed ones, damage and crashes."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from shared.errors import ConfigError
from worker.storage.wal import register
from worker.storage.wal.register import COPY_BYTES, FILES_MAX, NAME, Listing, Register, read


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Register]:
    opened = Register(tmp_path, Listing(7, {3: 0, 7: 640}))
    yield opened
    opened.close()


def listed(directory: Path) -> dict[int, int]:
    listing = read(directory / NAME)
    assert listing is not None
    assert listing.is_whole
    return listing.ends


def test_a_list_is_read_as_it_was_begun(own: Register, tmp_path: Path) -> None:
    assert read(tmp_path / NAME) == Listing(7, {3: 0, 7: 640}, 1)
    assert read(tmp_path / "none") is None


def test_a_change_adds_removes_and_says_ends(own: Register, tmp_path: Path) -> None:
    own.change(added=9, removed=(3, 5), ends={7: 800})
    assert read(tmp_path / NAME) == Listing(9, {7: 800, 9: 0}, 2)
    own.change(added=8)
    listing = read(tmp_path / NAME)
    assert listing is not None
    assert (listing.highest, listing.ends, listing.changes) == (9, {7: 800, 8: 0, 9: 0}, 3)


def test_the_highest_number_stays_when_its_file_goes(own: Register, tmp_path: Path) -> None:
    own.change(removed=(3, 7))
    assert read(tmp_path / NAME) == Listing(7, {}, 2)


def test_each_copy_is_synced_before_the_other_one_is_written(
    own: Register, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[object] = []
    write = os.pwrite

    def pwrite(descriptor: int, content: bytes, at: int) -> int:
        steps.append(at)
        return write(descriptor, content, at)

    monkeypatch.setattr(os, "pwrite", pwrite)
    monkeypatch.setattr(os, "fdatasync", lambda _: steps.append("sync"))
    own.change(added=8)
    assert steps == [0, "sync", COPY_BYTES, "sync"]


@pytest.mark.parametrize("part", [0, 10])
def test_a_change_that_cannot_be_written_changes_nothing(
    own: Register, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: int
) -> None:
    def fail(descriptor: int, content: bytes, at: int) -> int:
        if not part:
            raise OSError(errno.EIO, "Input/output error")
        return part

    monkeypatch.setattr(os, "pwrite", fail)
    with pytest.raises(OSError, match=r"Input/output error|written in part"):
        own.change(added=8, removed=(3,), ends={7: 1})
    monkeypatch.undo()
    own.change(added=9)
    listing = read(tmp_path / NAME)
    assert listing is not None
    assert (listing.highest, listing.ends) == (9, {3: 0, 7: 640, 9: 0})


def test_what_is_noted_is_written_once_and_with_the_next_change(
    own: Register, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes: list[int] = []
    write = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda *told: writes.append(told[2]) or write(*told))
    own.catch_up()
    assert writes == []
    own.note(3, 64)
    own.note(4, 64)
    assert listed(tmp_path) == {3: 0, 7: 640}
    own.catch_up()
    assert listed(tmp_path) == {3: 64, 7: 640}
    assert len(writes) == 2
    own.note(4, 64)
    own.catch_up()
    assert len(writes) == 2
    own.note(3, 128)
    own.change(added=8)
    own.catch_up()
    assert listed(tmp_path) == {3: 128, 7: 640, 8: 0}
    assert len(writes) == 4


def test_a_list_has_a_place_for_so_many_files_and_refuses_one_more(tmp_path: Path) -> None:
    own = Register(tmp_path, Listing(FILES_MAX, dict.fromkeys(range(1, FILES_MAX), 64)))
    own.change(added=FILES_MAX)
    with pytest.raises(OSError, match=f"more than {FILES_MAX} files"):
        own.change(added=FILES_MAX + 1)
    assert len(listed(tmp_path)) == FILES_MAX
    assert (tmp_path / NAME).stat().st_size == 2 * COPY_BYTES
    own.close()


def test_a_closed_list_takes_no_change(tmp_path: Path) -> None:
    own = Register(tmp_path, Listing())
    own.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        own.change(added=1)
    assert listed(tmp_path) == {}


def copies(directory: Path, *lists: bytes) -> Path:
    path = directory / NAME
    path.write_bytes(b"".join(each.ljust(COPY_BYTES, b"\0") for each in lists))
    return path


@pytest.mark.parametrize("newer_first", [True, False])
def test_the_newer_of_two_copies_counts(tmp_path: Path, newer_first: bool) -> None:
    older, newer = Listing(4, {4: 8}, 10).encode(), Listing(5, {5: 0}, 11).encode()
    path = copies(tmp_path, *((newer, older) if newer_first else (older, newer)))
    assert read(path) == Listing(5, {5: 0}, 11)


def test_one_good_copy_is_enough_and_is_said(tmp_path: Path) -> None:
    good = Listing(4, {4: 8}, 10)
    for lists in ((good.encode(), b"x"), (b"x", good.encode())):
        assert read(copies(tmp_path, *lists)) == Listing(4, {4: 8}, 10, is_whole=False)


@pytest.mark.parametrize("size", [0, 1, 8, 31, 32, 40])
def test_a_list_that_is_cut_short_is_damaged(tmp_path: Path, size: int) -> None:
    path = tmp_path / NAME
    path.write_bytes(Listing(4, {4: 8}, 10).encode()[:size])
    with pytest.raises(ValueError, match="neither copy"):
        read(path)


def test_a_count_that_reaches_past_the_copy_is_damage(tmp_path: Path) -> None:
    content = bytearray(Listing(4, {4: 8}, 10).encode())
    content[8 + 12 : 8 + 16] = (1 << 31).to_bytes(4, "little")
    with pytest.raises(ValueError, match="neither copy"):
        read(copies(tmp_path, bytes(content), bytes(content)))


def test_a_list_of_a_newer_release_is_refused_with_both_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(register, "VERSION", 2)
    content = Listing(4, {4: 8}, 10).encode()
    monkeypatch.undo()
    with pytest.raises(ConfigError, match="version 2; this program reads 1"):
        read(copies(tmp_path, content, content))
