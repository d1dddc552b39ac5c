"""The check of write-ahead logs while no worker runs, and opens that are refused until the damage is written down."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from shared.errors import ConfigError, Unavailable
from tests.unit.wal_images import SMALL, everything, expected, files_with_records, flip, opened, written
from worker.storage.wal import check, layout, losses, reading
from worker.storage.wal.log import LOG, SERIES, WriteAheadLog

pytestmark = pytest.mark.usefixtures("power_stays_on")


def test_the_check_says_what_is_damaged_and_what_is_good_and_changes_nothing(tmp_path: Path) -> None:
    base = tmp_path / "wal"
    layout.arrange(base, 1)
    directory = layout.directory_of(base, 0)
    written(directory, 20).close()
    assert all(report.is_good for report in check.check(base))
    first, second, third, *_ = files_with_records(directory)
    flip(first, 9)
    place = reading.survey(directory).used[1].records[0][0]
    flip(second, place.start)
    third.unlink()
    before = {path: path.read_bytes() for path in base.rglob("*") if path.is_file()}
    reports = {report.path: report for report in check.check(base)}
    assert {path: path.read_bytes() for path in base.rglob("*") if path.is_file()} == before
    assert [path for path, report in reports.items() if not report.is_good] == [third, first, second]
    assert reports[first].shards == []
    assert reports[second].shards == [place.shard]
    assert reports[third].shards is None
    text = "\n".join(line for report in reports.values() for line in report.lines())
    assert f"{second}: a record of {place.length} bytes at {place.offset} is damaged" in text
    assert f"{second}: lacking: shard {place.shard}" in text
    total = sum(sum(report.records.values()) for report in reports.values())
    assert total == sum(len(content.records) for content in reading.survey(directory).used)
    opened(directory).close()
    assert sum(path.name.endswith(".damaged") for path in (report.path for report in check.check(base))) == 3


def test_the_check_tells_a_damaged_worker_count(tmp_path: Path) -> None:
    base = tmp_path / "wal"
    layout.arrange(base, 2)
    content = (base / "workers").read_bytes()
    for at in range(len(content)):
        flip(base / "workers", at, 1)
        assert not check.check(base)[0].is_good
        with pytest.raises(ConfigError, match="damaged"):
            layout.arrange(base, 2)
        (base / "workers").write_bytes(content)


def test_losses_are_refused_when_their_own_record_is_damaged(tmp_path: Path) -> None:
    loss = losses.Loss("0000/00000001.wal", 64, 128, "bytes", ((3, LOG),))
    losses.remember(tmp_path / "00000001.wal", [loss], [b"raw"])
    [own] = losses.known(tmp_path)
    assert own.losses == (loss,)
    flip(own.path, 30)
    [own] = losses.known(tmp_path)
    assert own.losses[0].concerns(7, SERIES)


@pytest.mark.parametrize("step", ["fsync", "pwrite", "replace"])
def test_an_open_that_failed_can_be_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    written(tmp_path / "wal", 20).close()
    log = WriteAheadLog(tmp_path / "wal", file_bytes=SMALL)
    original = getattr(os, step)
    for calls in range(4):
        left = [None] * calls

        def fail(*arguments: object, left: list[None] = left) -> object:
            if not left:
                raise OSError(errno.EIO, "Input/output error")
            left.pop()
            return original(*arguments)

        monkeypatch.setattr(os, step, fail)
        try:
            log.open()
        except OSError:
            with pytest.raises(Unavailable):
                log.stream(0, LOG).write([b"x"])
        monkeypatch.undo()
    log.open()
    assert everything(log) == expected(20)
    assert log.losses_of(0) == []
    log.close()
