"""Names and modes of what is written: durable in their directory, and for this user alone."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from shared import durable


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The directories whose names have been synced, in order."""
    directories: list[Path] = []
    sync = durable.sync_directory

    def record(directory: Path) -> None:
        directories.append(directory)
        sync(directory)

    monkeypatch.setattr(durable, "sync_directory", record)
    return directories


def test_a_new_directory_and_those_it_lies_in_have_durable_names(tmp_path: Path, synced: list[Path]) -> None:
    durable.make_directory(tmp_path / "a" / "b" / "c")
    assert synced == [tmp_path, tmp_path / "a", tmp_path / "a" / "b"]


def test_a_directory_that_a_crash_left_gets_its_name_synced_too(tmp_path: Path, synced: list[Path]) -> None:
    (tmp_path / "a").mkdir()
    durable.make_directory(tmp_path / "a")
    assert synced == [tmp_path]


def test_a_directory_that_cannot_be_listed_is_not_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    list_directory = os.scandir

    def refuse(path: str) -> Iterator[os.DirEntry[str]]:
        if str(path).endswith("b"):
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        return list_directory(path)

    with monkeypatch.context() as failing, pytest.raises(OSError, match="Input/output error"):
        failing.setattr(os, "scandir", refuse)
        durable.sync_tree(tmp_path)
    durable.sync_tree(tmp_path)


def test_what_is_made_is_for_this_user_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        durable.make_directory(tmp_path / "a" / "b")
        durable.write_atomically(tmp_path / "a" / "file", b"x")
    finally:
        os.umask(before)
    modes = [(tmp_path / name).stat().st_mode & 0o777 for name in ("a", "a/b", "a/file")]
    assert modes == [0o700, 0o700, 0o600]


def test_a_rename_is_durable(tmp_path: Path, synced: list[Path]) -> None:
    (tmp_path / "a").write_bytes(b"x")
    durable.rename(tmp_path / "a", tmp_path / "b")
    assert synced == [tmp_path]
    assert (tmp_path / "b").read_bytes() == b"x"


def test_what_is_set_aside_takes_nobodys_name(tmp_path: Path) -> None:
    names = []
    for content in (b"1", b"2", b"3"):
        (tmp_path / "f").write_bytes(content)
        names.append(durable.set_aside(tmp_path / "f"))
    assert [path.name for path in names] == ["f.damaged", "f.damaged-2", "f.damaged-3"]
    assert [path.read_bytes() for path in names] == [b"1", b"2", b"3"]
