"""Damage to a write-ahead log's list of files: lost, damaged in one copy, or cut while it is written."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tests.unit.wal_images import everything, expected, flip, opened, written
from worker.storage.wal import register

pytestmark = pytest.mark.usefixtures("power_stays_on")


def test_a_lost_list_of_files_is_said_and_the_records_are_read(tmp_path: Path) -> None:
    written(tmp_path, 20).close()
    (tmp_path / register.NAME).unlink()
    log = opened(tmp_path)
    assert everything(log) == expected(20)
    assert "files of the log may be missing" in log.losses_of(0)[0][1]
    log.close()


def test_one_damaged_copy_of_the_list_costs_nothing(tmp_path: Path) -> None:
    written(tmp_path, 20).close()
    for at in (9, register.COPY_BYTES + 9):
        flip(tmp_path / register.NAME, at)
        log = opened(tmp_path)
        assert everything(log) == expected(20)
        assert log.losses_of(0) == []
        log.close()


@pytest.mark.parametrize("calls", range(4))
def test_a_list_whose_writing_is_cut_is_the_one_before_or_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: int
) -> None:
    listing = register.Listing(5, {3: 100, 5: 0})
    own = register.Register(tmp_path, listing)
    write, sync, left = os.pwrite, os.fdatasync, [None] * calls

    def cut(descriptor: int, content: bytes, at: int) -> int:
        if not left:
            write(descriptor, content[: len(content) // 2], at)
            raise OSError(errno.EIO, "Input/output error")
        left.pop()
        return write(descriptor, content, at)

    def fail(descriptor: int) -> None:
        if not left:
            raise OSError(errno.EIO, "Input/output error")
        left.pop()
        sync(descriptor)

    monkeypatch.setattr(os, "pwrite", cut)
    monkeypatch.setattr(os, "fdatasync", fail)
    with pytest.raises(OSError, match="Input/output error"):
        own.change(added=6, removed=(3,))
    monkeypatch.undo()
    read = register.read(tmp_path / register.NAME)
    assert read is not None
    assert read.ends in ({3: 100, 5: 0}, {5: 0, 6: 0})
    own.change(added=7)
    read = register.read(tmp_path / register.NAME)
    assert read is not None
    assert read.ends == {3: 100, 5: 0, 7: 0}
    own.close()
