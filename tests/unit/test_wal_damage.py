"""Damage to a write-ahead log: what can be read is read, what is lost is said until it is accepted, none is deleted."""

from __future__ import annotations

import errno
import os
import random
import shutil
from pathlib import Path

import pytest

from shared.errors import ConfigError, Unavailable
from tests.unit.wal_images import (
    SMALL,
    everything,
    expected,
    files_with_records,
    flip,
    held,
    killed,
    opened,
    payload,
    written,
)
from worker.storage.wal import layout, reading, record
from worker.storage.wal.log import LOG, SERIES, WriteAheadLog

pytestmark = pytest.mark.usefixtures("power_stays_on")

FLIPS = 500


def set_aside(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.glob("*.damaged*"))


@pytest.mark.parametrize("at", range(record.FILE_HEADER_BYTES))
def test_a_flipped_bit_in_a_files_header_loses_nothing_and_is_said(tmp_path: Path, at: int) -> None:
    written(tmp_path, 20).close()
    path = files_with_records(tmp_path)[0]
    flip(path, at, at % 8)
    log = opened(tmp_path)
    assert everything(log) == expected(20)
    assert log.losses_of(0) == []
    assert set_aside(tmp_path) == [path.name + ".damaged"]
    log.close()


def test_a_newer_format_is_refused_naming_both_versions_and_stays(tmp_path: Path) -> None:
    layout.arrange(tmp_path / "wal", 1)
    directory = layout.directory_of(tmp_path / "wal", 0)
    written(directory, 20).close()
    path = files_with_records(directory)[-1]
    number = int(path.stem)
    content = record.file_header(number, 7) + path.read_bytes()[record.FILE_HEADER_BYTES :]
    path.write_bytes(content)
    text = f"{path} has version 7 .* reads versions up to {record.VERSION}"
    with pytest.raises(ConfigError, match=text):
        layout.arrange(tmp_path / "wal", 1)
    with pytest.raises(ConfigError, match=text):
        opened(directory)
    assert path.read_bytes() == content


@pytest.mark.parametrize("inside", [0, 8, 16, 28, 33, 40])
def test_damage_is_said_at_each_start_until_what_was_set_aside_is_deleted(tmp_path: Path, inside: int) -> None:
    log = opened(tmp_path)
    positions = [log.stream(1, LOG).write([payload(1, n)]) for n in (20, 22, 24)]
    log.close()
    [path] = files_with_records(tmp_path)
    flip(path, (positions[1] & (1 << 40) - 1) + inside)
    for _ in range(3):
        log = opened(tmp_path)
        assert held(log.stream(1, LOG)) == [payload(1, 20), payload(1, 24)]
        [text] = [text for area, text in log.losses_of(1) if area == LOG]
        assert f"write-ahead log {tmp_path.name}/{path.name}: " in text
        is_payload = inside > record.HEADER_BYTES
        assert bool(log.losses_of(0)) is not is_payload  # a header that cannot be read does not say whose it was
        log.close()
    log = opened(tmp_path)
    log.stream(1, LOG).write([b"x"])
    log.stream(1, LOG).release(positions[2] + 1)
    assert not path.exists()
    log.close()
    log = opened(tmp_path)
    assert log.losses_of(1)
    log.close()
    assert set_aside(tmp_path) == [path.name + ".damaged"]
    (tmp_path / (path.name + ".damaged")).unlink()
    log = opened(tmp_path)
    assert log.losses_of(1) == []
    log.close()


def test_the_damaged_bytes_are_kept(tmp_path: Path) -> None:
    log = opened(tmp_path)
    position = log.stream(0, LOG).write([b"something that was acknowledged"]) & (1 << 40) - 1
    log.close()
    [path] = files_with_records(tmp_path)
    flip(path, position + record.HEADER_BYTES)
    opened(tmp_path).close()
    assert b"omething that was acknowledged" in (tmp_path / (path.name + ".damaged")).read_bytes()


def test_a_file_that_is_cut_off_is_said(tmp_path: Path) -> None:
    written(tmp_path, 20).close()
    for path in files_with_records(tmp_path)[:2]:
        os.truncate(path, path.stat().st_size // 2)
    log = opened(tmp_path)
    assert len(log.losses_of(0)) >= 2
    assert any(name == path.name + ".damaged" for name in set_aside(tmp_path))
    log.close()


def test_a_file_with_the_header_of_another_is_said_and_read(tmp_path: Path) -> None:
    written(tmp_path, 3).close()
    [path] = files_with_records(tmp_path)
    with path.open("r+b") as file:
        file.write(record.file_header(reading.number_of(path) + 7))
    [content] = [own for own in reading.survey(tmp_path).used if own.path == path]
    assert [loss.what for loss in content.losses] == [
        "its header is damaged; the records behind it have been read all the same"
    ]
    log = opened(tmp_path)
    assert held(log.stream(0, LOG)) == [payload(0, number) for number in (0, 2)]
    log.close()


@pytest.mark.parametrize("size", [0, 10, 64])
def test_a_file_that_is_emptied_is_said(tmp_path: Path, size: int) -> None:
    written(tmp_path, 20).close()
    for path in files_with_records(tmp_path):
        image = tmp_path.parent / f"{tmp_path.name}-{path.name}"
        shutil.copytree(tmp_path, image)
        os.truncate(image / path.name, size)
        log = opened(image)
        assert log.losses_of(0)
        assert log.losses_of(2)
        log.close()


def test_a_missing_file_is_said_wherever_it_was(tmp_path: Path) -> None:
    written(tmp_path, 20).close()
    paths = files_with_records(tmp_path)
    assert len(paths) > 3
    for path in paths:
        image = tmp_path.parent / f"{tmp_path.name}-{path.name}"
        shutil.copytree(tmp_path, image)
        (image / path.name).unlink()
        for _ in range(2):
            log = opened(image)
            assert [area for area, _ in log.losses_of(2)] == [SERIES, LOG]
            assert "is missing" in log.losses_of(0)[0][1]
            log.close()
        (image / (path.name + ".damaged")).unlink()
        log = opened(image)
        assert log.losses_of(0) == []
        log.close()


def test_all_files_missing_is_said_and_gives_no_number_twice(tmp_path: Path) -> None:
    log = written(tmp_path, 20)
    last = log.stream(0, LOG).write([b"x"])
    log.close()
    for path in reading.paths_of(tmp_path):
        path.unlink()
    log = opened(tmp_path)
    assert log.losses_of(0)
    assert log.stream(0, LOG).write([b"x"]) > last
    log.close()


def test_a_file_that_is_not_the_logs_is_set_aside(tmp_path: Path) -> None:
    written(tmp_path, 20).close()
    strange = tmp_path / "00000099.wal"
    strange.write_bytes(b"x" * SMALL)
    log = opened(tmp_path)
    assert "set aside as a whole" in log.losses_of(0)[0][1]
    assert (tmp_path / "00000099.wal.damaged").read_bytes() == b"x" * SMALL
    assert int(log._used[-1].path.stem) > 99
    assert everything(log) == expected(20)
    log.close()


def test_damage_below_what_was_synced_is_told_after_a_kill(tmp_path: Path) -> None:
    log = opened(tmp_path)
    stream = log.stream(0, LOG)
    place = stream.write([b"synced" * 20]) & (1 << 40) - 1
    log.sync()
    stream.write([b"not synced"])
    image = killed(log, tmp_path / "image")
    [path] = files_with_records(image)
    flip(path, place + record.HEADER_BYTES)
    again = opened(image)
    assert held(again.stream(0, LOG)) == [b"not synced"]
    assert [area for area, _ in again.losses_of(0)] == [LOG]
    again.close()
    log.close()


@pytest.mark.parametrize("records_left", [0, 1, 2])
def test_a_file_that_is_cut_off_after_a_kill_is_said_though_no_record_is_torn(
    tmp_path: Path, records_left: int
) -> None:
    log = opened(tmp_path)
    stream = log.stream(0, LOG)
    places = [stream.write([b"record %d" % number]) & (1 << 40) - 1 for number in range(3)]
    log.sync()
    image = killed(log, tmp_path / "image")
    log.close()
    [path] = files_with_records(image)
    os.truncate(path, places[records_left])
    for _ in range(2):
        again = opened(image)
        assert held(again.stream(0, LOG)) == [b"record %d" % number for number in range(records_left)]
        assert "are damaged" in again.losses_of(0)[0][1]
        again.close()


def test_a_file_from_which_a_refused_write_was_taken_back_is_not_taken_for_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = opened(tmp_path)
    stream = log.stream(0, LOG)
    stream.write([b"kept"])

    def full(descriptor: int, *_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwritev", full)
        with pytest.raises(Unavailable, match="No space left"):
            stream.write([b"refused"])
    image = killed(log, tmp_path / "image")
    log.close()
    again = opened(image)
    assert held(again.stream(0, LOG)) == [b"kept"]
    assert again.losses_of(0) == []
    again.close()


def test_damage_stays_known_when_the_number_of_workers_changes(tmp_path: Path) -> None:
    base = tmp_path / "wal"
    layout.arrange(base, 2)
    for worker in range(2):
        log = opened(layout.directory_of(base, worker))
        for number in range(6):
            log.stream(worker, LOG).write([payload(worker, number)])
        log.close()
    [first, *_] = files_with_records(layout.directory_of(base, 0))
    flip(first, record.FILE_HEADER_BYTES + record.HEADER_BYTES + 2)
    opened(layout.directory_of(base, 0)).close()  # set aside before
    [other, *_] = files_with_records(layout.directory_of(base, 1))
    flip(other, record.FILE_HEADER_BYTES + record.HEADER_BYTES + 2)  # found while the logs are written anew
    for workers in (3, 1):
        layout.arrange(base, workers)
        reports = {}
        for worker in range(workers):
            log = WriteAheadLog(layout.directory_of(base, worker), former=base).open()
            for shard in range(worker, 3, workers):
                reports[shard] = log.losses_of(shard)
            log.close()
        assert [area for area, _ in reports[0]] == [LOG]
        assert [area for area, _ in reports[1]] == [LOG]
        assert reports[2] == []
    assert len(set_aside(base)) == 2


@pytest.fixture(scope="module")
def small_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files that are in use, some that were used before, and one that was killed with a tail that was not synced."""
    directory = tmp_path_factory.mktemp("small") / "wal"
    written(directory, 12).close()
    log = opened(directory)
    for number in range(12, 30):
        for shard in range(3):
            log.stream(shard, SERIES if number % 2 else LOG).write([payload(shard, number)])
        log.sync()
    return killed(log, directory.parent / "image")


@pytest.mark.parametrize("part", range(10))
def test_a_flipped_bit_anywhere_is_said_or_harmless(small_log: Path, tmp_path: Path, part: int) -> None:
    right = expected(30)
    whole = {}
    found = reading.survey(small_log)
    for content in found.used:
        whole[content.path.name] = content.synced
    seeded = random.Random(part)
    paths = [path for path in sorted(small_log.iterdir()) if path.stat().st_size]
    for round_ in range(FLIPS // 10):
        image = tmp_path / str(round_)
        shutil.copytree(small_log, image)
        path = image / seeded.choice(paths).name
        at = seeded.randrange(path.stat().st_size)
        flip(path, at, seeded.randrange(8))
        log = opened(image)
        read = everything(log)
        for key, records in right.items():
            lacking = [record for record in records if record not in read[key]]
            assert read[key] == [record for record in records if record not in lacking], "in order, and nothing else"
            is_tail = path.name in whole and at >= whole[path.name]
            assert not lacking or is_tail or any(area == key[1] for area, _ in log.losses_of(key[0])), (path, at)
        log.close()
        shutil.rmtree(image)
