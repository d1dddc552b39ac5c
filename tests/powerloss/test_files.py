"""The model of the file system: what POSIX promises of a crash, and nothing more."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from tests.powerloss.crash import MODES, crash
from tests.powerloss.files import FileSystem
from tests.powerloss.trace import Event, Op, read

CREATE = os.O_CREAT | os.O_RDWR


class Disk:
    """A file system and the acts of a program on it."""

    def __init__(self) -> None:
        self.files = FileSystem("/root")

    def play(self, op: Op, number: int = 0, offset: int = 0, first: str | bytes = b"", second: str = "") -> None:
        one = first.encode() if isinstance(first, str) else first
        self.files.play(Event(op, number, offset, one, second.encode()))

    def write(self, name: str, content: bytes, *, at: int = 0, synced: bool = False) -> None:
        self.play(Op.OPEN, 3, CREATE, f"/root/{name}")
        self.play(Op.WRITE, 3, at, content)
        if synced:
            self._sync()
        self.play(Op.CLOSE, 3)

    def sync_directory(self, name: str = "") -> None:
        self.play(Op.OPEN, 3, os.O_RDONLY, f"/root/{name}")
        self._sync()
        self.play(Op.CLOSE, 3)

    def _sync(self) -> None:
        self.play(Op.SYNC_BEGIN, 3, 1)
        self.play(Op.SYNC_END, 3, 1)

    def left(self, mode: str, seed: int = 0) -> dict[str, bytes | None]:
        return crash(self.files, mode, seed).entries

    def all_left(self, mode: str) -> list[dict[str, bytes | None]]:
        return [self.left(mode, seed) for seed in range(60)]


def test_a_synced_file_has_no_name_before_its_directory_is_synced() -> None:
    disk = Disk()
    disk.write("a", b"content", synced=True)
    assert disk.left("drop") == {}
    assert disk.left("names") == {"a": b"content"}
    disk.sync_directory()
    assert disk.left("drop") == {"a": b"content"}


def test_a_name_that_is_synced_says_nothing_of_the_content() -> None:
    disk = Disk()
    disk.write("a", b"content")
    disk.sync_directory()
    assert disk.left("drop") == {"a": b""}
    assert disk.left("keep") == {"a": b"content"}


def test_what_is_written_while_a_sync_runs_is_not_synced() -> None:
    disk = Disk()
    disk.write("a", b"old", synced=True)
    disk.sync_directory()
    disk.play(Op.OPEN, 4, CREATE, "/root/a")
    disk.play(Op.SYNC_BEGIN, 4, 7)
    disk.play(Op.WRITE, 4, 0, b"new")
    disk.play(Op.SYNC_END, 4, 7)
    assert disk.left("drop") == {"a": b"old"}


def test_a_renamed_file_has_one_of_its_names() -> None:
    disk = Disk()
    disk.write("a", b"old", synced=True)
    disk.write("a.new", b"new", synced=True)
    disk.sync_directory()
    disk.play(Op.RENAME, 0, 0, "/root/a.new", "/root/a")
    assert {frozenset(left.items()) for left in disk.all_left("mixed")} == {
        frozenset({"a": b"old", "a.new": b"new"}.items()),
        frozenset({"a": b"new"}.items()),
    }
    disk.sync_directory()
    assert disk.left("drop") == {"a": b"new"}


def test_a_removed_file_may_come_back_until_the_directory_is_synced() -> None:
    disk = Disk()
    disk.write("a", b"content", synced=True)
    disk.sync_directory()
    disk.play(Op.UNLINK, 0, 0, "/root/a")
    assert disk.left("drop") == {"a": b"content"}
    assert disk.left("keep") == {}


def test_writes_survive_in_any_order_and_in_parts() -> None:
    disk = Disk()
    disk.write("a", bytes(8192), synced=True)
    disk.sync_directory()
    disk.write("a", b"1" * 4096)
    disk.write("a", b"2" * 4096, at=4096)
    halves = {(left["a"][:4096].strip(b"\0"), left["a"][4096:].strip(b"\0")) for left in disk.all_left("mixed")}  # type: ignore[index]
    assert halves == {(one, two) for one in (b"", b"1" * 4096) for two in (b"", b"2" * 4096)}
    torn = {left["a"].count(b"1") for left in disk.all_left("torn")}  # type: ignore[union-attr]
    assert len(torn) > 5


def test_a_write_within_a_sector_is_there_whole_or_not() -> None:
    disk = Disk()
    disk.write("a", b"0" * 1024, synced=True)
    disk.sync_directory()
    disk.write("a", b"1" * 64, at=64)
    assert {left["a"].count(b"1") for left in disk.all_left("torn")} == {0, 64}  # type: ignore[union-attr]


def test_a_directory_that_was_renamed_keeps_what_is_in_it() -> None:
    disk = Disk()
    disk.play(Op.MKDIR, 0, 0, "/root/new")
    disk.write("new/a", b"content", synced=True)
    disk.sync_directory("new")
    disk.sync_directory()
    disk.play(Op.RENAME, 0, 0, "/root/new", "/root/base")
    assert disk.left("drop") == {"new": None, "new/a": b"content"}
    assert disk.left("keep") == {"base": None, "base/a": b"content"}


@pytest.mark.parametrize("mode", MODES)
def test_the_same_seed_gives_the_same_state(mode: str) -> None:
    disk = Disk()
    for number in range(20):
        disk.write(f"f{number % 3}", b"%d" % number * 700, at=number * 100)
    assert crash(disk.files, mode, 5).digest == crash(disk.files, mode, 5).digest


def test_a_trace_with_writes_that_cannot_be_followed_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "trace"
    file.write_bytes(struct.pack("<IiQII", Op.UNSEEN, 0, 0, 4, 0) + b"mmap")
    with pytest.raises(ValueError, match="mmap"):
        read(file)
