"""Holes in what was not synced: after the loss of power the log ends there, under the same boot they are damage."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path
from uuid import uuid4

import pytest

from shared.process import boot
from tests.unit.wal_images import SMALL, files_with_records, flip, held, killed, opened
from tests.unit.wal_kills import killed_at
from worker.storage.wal import check, layout, reading, record, register
from worker.storage.wal.log import LOG, SERIES, WriteAheadLog

pytestmark = pytest.mark.usefixtures("power_stays_on")

BEHIND = [b"behind", b"the hole"]


def lose_power(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on it is another boot of the system."""
    path = tmp_path / f"boot-{uuid4()}"
    path.write_text(str(uuid4()))
    monkeypatch.setattr(boot, "BOOT_ID", path)


def with_hole(directory: Path, image: Path, inside: int = record.HEADER_BYTES) -> Path:
    """What a kill leaves of two synced records, and behind them a hole and two records that nobody synced."""
    log = opened(directory)
    log.stream(0, LOG).write([b"synced"])
    log.stream(1, SERIES).write([b"synced too"])
    log.sync()
    torn = log.stream(0, LOG).write([b"lost" * 20]) & (1 << 40) - 1
    log.stream(1, SERIES).write([BEHIND[0]])
    log.stream(0, LOG).write([BEHIND[1]])
    killed(log, image)
    log.close()
    [path] = files_with_records(image)
    flip(path, torn + inside)
    return path


def contents(log: WriteAheadLog) -> tuple[list[bytes], list[bytes]]:
    return held(log.stream(0, LOG)), held(log.stream(1, SERIES))


@pytest.mark.parametrize("inside", [0, 12, record.HEADER_BYTES])
def test_after_the_loss_of_power_a_log_ends_at_its_first_hole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, inside: int
) -> None:
    path = with_hole(tmp_path / "wal", tmp_path / "image", inside)
    [content] = [own for own in reading.survey(path.parent).used if own.records]
    end = max(found.end for found, _ in content.records)
    lose_power(tmp_path, monkeypatch)
    log = opened(path.parent)
    assert contents(log) == ([b"synced"], [b"synced too"])
    assert log.losses_of(0) == log.losses_of(1) == []
    [cut] = [own for own in caplog.records if own.message == "write-ahead log cut"]
    assert cut.__dict__["fields"]["at"] + cut.__dict__["fields"]["bytes"] == end
    log.stream(0, LOG).write([b"after"])
    log.close()
    again = opened(path.parent)
    assert contents(again) == ([b"synced", b"after"], [b"synced too"])
    assert again.losses_of(0) == []
    again.close()


@pytest.mark.parametrize("inside", [0, 12, record.HEADER_BYTES])
def test_a_hole_under_the_same_boot_is_damage_and_the_records_behind_it_count(tmp_path: Path, inside: int) -> None:
    path = with_hole(tmp_path / "wal", tmp_path / "image", inside)
    for _ in range(2):
        log = opened(path.parent)
        assert contents(log) == ([b"synced", BEHIND[1]], [b"synced too", BEHIND[0]])
        assert [area for area, _ in log.losses_of(0)] in ([LOG], [SERIES, LOG])
        log.close()
    assert (path.parent / (path.name + ".damaged")).exists()


def test_a_list_that_does_not_say_the_boot_loses_no_record_behind_a_hole(tmp_path: Path) -> None:
    path = with_hole(tmp_path / "wal", tmp_path / "image")
    listing = register.read(path.parent / register.NAME)
    assert listing is not None
    assert listing.power == "kept"
    former = register.Listing(listing.highest, listing.ends, listing.changes)
    register.Register(path.parent, former).close()
    log = opened(path.parent)
    assert contents(log) == ([b"synced", BEHIND[1]], [b"synced too", BEHIND[0]])
    assert log.losses_of(0) == []
    log.close()


def test_where_the_boot_is_unknown_a_log_ends_at_its_first_hole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(boot, "BOOT_ID", tmp_path / "none")
    path = with_hole(tmp_path / "wal", tmp_path / "image")
    for _ in range(2):
        log = opened(path.parent)
        assert contents(log) == ([b"synced"], [b"synced too"])
        assert log.losses_of(0) == log.losses_of(1) == []
        log.close()


def test_a_hole_below_what_was_synced_is_damage_also_after_the_loss_of_power(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = opened(tmp_path / "wal")
    first = log.stream(0, LOG).write([b"damaged"]) & (1 << 40) - 1
    log.sync()
    log.stream(0, LOG).write([b"says what was synced"])
    image = killed(log, tmp_path / "image")
    log.close()
    [path] = files_with_records(image)
    flip(path, first + record.HEADER_BYTES)
    lose_power(tmp_path, monkeypatch)
    again = opened(image)
    assert held(again.stream(0, LOG)) == [b"says what was synced"]
    assert [area for area, _ in again.losses_of(0)] == [LOG]
    again.close()


def test_a_kill_at_any_step_of_the_start_after_a_loss_of_power_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = with_hole(tmp_path / "wal", tmp_path / "image")
    lose_power(tmp_path, monkeypatch)
    for call in range(60):
        start = tmp_path / f"start-{call}"
        shutil.copytree(path.parent, start)
        log = WriteAheadLog(start, file_bytes=SMALL)
        with pytest.MonkeyPatch.context() as patch, killed_at(call, patch) as steps:
            log.open()
        if log._files is not None:
            log.close()
        again = opened(start)
        assert contents(again) == ([b"synced"], [b"synced too"]), steps
        assert again.losses_of(0) == again.losses_of(1) == [], steps
        again.close()
        if "killed" not in steps:
            return
    pytest.fail("the start never came to its end")


def test_a_hole_at_the_beginning_of_the_last_file_leaves_the_files_before_it_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = opened(tmp_path / "wal")
    stream = log.stream(0, LOG)
    payloads: list[bytes] = []
    numbers: list[int] = []
    while len(set(numbers)) < 3 or numbers.count(numbers[-1]) < 3:
        payloads.append(b"%03d" % len(payloads) * 100)
        numbers.append(stream.write([payloads[-1]]) >> 40)
    image = killed(log, tmp_path / "image")
    log.close()
    *before, last = files_with_records(image)
    assert before
    flip(last, record.FILE_HEADER_BYTES)
    lose_power(tmp_path, monkeypatch)
    again = opened(image)
    assert held(again.stream(0, LOG)) == payloads[:-3]
    assert again.losses_of(0) == []
    again.close()


def test_what_lies_behind_a_hole_is_not_laid_out_for_other_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = tmp_path / "data" / "wal"
    layout.arrange(base, 1)
    path = with_hole(tmp_path / "wal", tmp_path / "image")
    shutil.rmtree(layout.directory_of(base, 0), ignore_errors=True)
    shutil.copytree(path.parent, layout.directory_of(base, 0))
    lose_power(tmp_path, monkeypatch)
    assert all(report.is_good for report in check.check(base))
    layout.arrange(base, 2)
    with contextlib.closing(opened(layout.directory_of(base, 0))) as log:
        assert held(log.stream(0, LOG)) == [b"synced"]
    with contextlib.closing(opened(layout.directory_of(base, 1))) as log:
        assert held(log.stream(1, SERIES)) == [b"synced too"]


@pytest.mark.parametrize("least_bytes", [0, SMALL, 0x12345 * record.SIZE_UNIT])
@pytest.mark.parametrize("rest", [b"", bytes(SMALL)])
def test_a_file_that_was_being_made_ready_is_no_damage(tmp_path: Path, rest: bytes, least_bytes: int) -> None:
    log = opened(tmp_path)
    log.stream(0, LOG).write([b"synced"])
    log.close()
    number = int(reading.paths_of(tmp_path)[-1].stem) + 1
    for size in range(record.FILE_HEADER_BYTES):
        path = tmp_path / f"{number + size:08d}.wal"
        path.write_bytes(record.file_header(number + size, least_bytes=least_bytes)[:size] + rest)
    with contextlib.closing(opened(tmp_path)) as again:
        assert held(again.stream(0, LOG)) == [b"synced"]
        assert again.losses_of(0) == []
    assert not list(tmp_path.glob("*.damaged*"))
