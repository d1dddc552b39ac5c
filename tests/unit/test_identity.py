"""Which directory of the data is which."""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import shutil
import threading
import time
from pathlib import Path

import pytest

from shared import identity, manifest
from shared.control import LocalControl
from shared.errors import ConfigError
from shared.settings import Settings
from worker.process import WorkerProcess
from worker.shard import Shard
from worker.storage.wal import layout


def exchange(first: Path, second: Path) -> None:
    aside = first.with_name("aside")
    first.rename(aside)
    second.rename(first)
    aside.rename(second)


def settings(directory: Path) -> Settings:
    return Settings(data=directory / "data", shards=3, workers=2)


def used(directory: Path) -> Path:
    """A data directory whose shards and logs have been used; its path."""
    own = settings(directory)
    cluster_id = manifest.open_manifest(own, LocalControl(own.data)).cluster_id
    layout.prepare(own.data, 2, cluster_id)
    for worker in range(2):
        process = WorkerProcess("worker", range(worker, 3, 2), own, "ipc://unused", cluster_id, os.getpid())
        for shard in process._states:
            process._load(shard)
            opened = process._states[shard]
            assert isinstance(opened, Shard)
            opened.close()
        process._wal.close()
    return own.data


def start(data: Path, workers: int = 2) -> None:
    """The first steps of a start, up to the workers."""
    own = Settings(data=data, shards=3, workers=workers)
    layout.prepare(data, workers, manifest.open_manifest(own, LocalControl(own.data)).cluster_id)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return used(tmp_path)


def cluster_of(data: Path) -> str:
    return manifest.Manifest.decode((data / manifest.NAME).read_bytes()).cluster_id


def test_what_is_said_is_read() -> None:
    said = "0af3", identity.LOG, 12
    assert identity.decode(identity.encode(*said)) == said


@pytest.mark.parametrize("at", range(len(identity.encode("0af3", "shard", 1))))
def test_a_flipped_bit_is_noticed(at: int) -> None:
    content = bytearray(identity.encode("0af3", "shard", 1))
    content[at] ^= 1
    with pytest.raises(ValueError, match="checksum"):
        identity.decode(bytes(content))


def test_exchanged_directories_of_shards_are_refused_naming_both(data: Path) -> None:
    first, second = (manifest.shard_directory(data, n) for n in (0, 2))
    cluster_id = cluster_of(data)
    exchange(first, second)
    told = f"{first} is shard 2 of cluster {cluster_id}, and lies where shard 0 of cluster {cluster_id} belongs"
    with pytest.raises(ConfigError, match=re.escape(told)):
        start(data)
    exchange(first, second)
    start(data)


def test_exchanged_directories_of_logs_are_refused_naming_both(data: Path) -> None:
    first, second = data / "wal/0000", data / "wal/0001"
    exchange(first, second)
    for workers in (2, 1):
        with pytest.raises(ConfigError, match=f"{first} is write-ahead log 1 of cluster .*, and lies where"):
            start(data, workers)
    exchange(first, second)
    start(data, 1)
    start(data, 3)


@pytest.mark.parametrize("name", ["shards/0001", "wal/0001"])
def test_directories_of_another_cluster_are_refused(data: Path, tmp_path: Path, name: str) -> None:
    other = used(tmp_path / "other")
    exchange(data / name, other / name)
    told = f"1 of cluster {cluster_of(other)}, and lies where .* 1 of cluster {cluster_of(data)} belongs"
    with pytest.raises(ConfigError, match=told):
        start(data)


@pytest.mark.parametrize("damage", ["gone", "flipped"])
def test_an_identity_that_is_lost_is_written_anew(data: Path, damage: str, caplog: pytest.LogCaptureFixture) -> None:
    files = {file: file.read_bytes() for file in data.glob("*/*/identity")}
    assert len(files) == 5
    for file, content in files.items():
        if damage == "gone":
            file.unlink()
        else:
            file.write_bytes(content.replace(b" 1\n", b" 2\n").replace(b" 0\n", b" 1\n").replace(b" 2\n", b" 0\n"))
    with caplog.at_level(logging.ERROR):
        assert used(data.parent) == data
    assert {file: file.read_bytes() for file in files} == files
    assert ("identity is damaged" in caplog.text) == (damage == "flipped")


def test_a_manifest_that_is_to_be_written_anew_has_the_cluster_of_its_shards(data: Path) -> None:
    cluster_id = cluster_of(data)
    for path in (data / manifest.NAME, data / "shards" / manifest.NAME):
        path.unlink()
    with pytest.raises(ConfigError) as refused:
        start(data)
    advised = str(refused.value)[str(refused.value).index("{") :]
    assert json.loads(advised)["cluster_id"] == cluster_id
    (data / manifest.NAME).write_text(advised)
    start(data)


# What has been used and is not there any more


def test_a_lost_directory_of_all_shards_is_refused_and_begins_anew_only_where_somebody_makes_it(data: Path) -> None:
    shutil.rmtree(data / "shards")
    with pytest.raises(ConfigError, match=f"{data}/shards is missing, with the data of all .* mkdir {data}/shards$"):
        start(data)
    (data / "shards").mkdir()
    start(data)


def test_a_lost_directory_of_all_logs_is_refused_and_begins_anew_only_where_somebody_makes_it(data: Path) -> None:
    shutil.rmtree(data / "wal")
    for workers in (2, 3):
        with pytest.raises(ConfigError, match=f"{data}/wal is missing, with the records .* mkdir {data}/wal$"):
            start(data, workers)
    (data / "wal").mkdir()
    start(data)


def test_an_exchange_of_logs_that_a_crash_has_cut_is_no_loss(data: Path) -> None:
    (data / "wal").rename(data / "wal.old")
    start(data)


def test_logs_that_cannot_be_read_are_an_error_that_names_them(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise OSError(errno.EIO, "the disk fails")

    monkeypatch.setattr(identity, "read", fails)
    with pytest.raises(ConfigError, match=f"{data}/wal, the write-ahead log, cannot be used: .* the disk fails"):
        layout.prepare(data, 2, cluster_of(data))


def test_lost_files_of_a_log_are_refused_and_it_begins_anew_only_where_its_identity_is_removed(data: Path) -> None:
    own = data / "wal/0001"
    for path in own.iterdir():
        if path.name != identity.NAME:
            path.unlink()
    with pytest.raises(ConfigError, match=f"{own} has lost its files, with the records .* rm {own}/identity$"):
        start(data)
    (own / identity.NAME).unlink()
    start(data)


def test_a_lost_store_is_refused_and_begins_anew_only_where_its_identity_is_removed(data: Path) -> None:
    own = data / "shards/0002"
    shutil.rmtree(own / "store")
    (own / "store.mark").unlink()
    process = WorkerProcess("worker", [2, 0], settings(data.parent), "ipc://unused", cluster_of(data), os.getpid())
    for shard in (2, 0):
        process._load(shard)
    assert re.fullmatch(f"the store {own}/store is missing; restore .*: rm {own}/identity", str(process._states[2]))
    (own / identity.NAME).unlink()
    process._load(2)
    for opened in process._states.values():
        assert isinstance(opened, Shard)
        opened.close()
    process._wal.close()


def test_a_shard_is_opened_when_its_identity_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    replace = LocalControl.replace

    def full(control: LocalControl, name: str, content: bytes) -> None:
        if name == identity.NAME:
            raise OSError(errno.ENOSPC, "no space")
        replace(control, name, content)

    with monkeypatch.context() as patched:
        patched.setattr(LocalControl, "replace", full)
        data = used(tmp_path)
    assert "identity not written" in caplog.text
    assert not list(data.glob("*/*/identity"))
    start(data)


def test_one_thread_at_a_time_writes_identities(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process = WorkerProcess("worker", [0, 1], settings(tmp_path), "ipc://unused", "0af3", os.getpid())
    inside, most = 0, 0

    def slow(*_: object) -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        time.sleep(0.05)
        inside -= 1

    monkeypatch.setattr(identity, "claim", slow)
    threads = [threading.Thread(target=process._claim, args=(shard,)) for shard in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1


def test_an_identity_is_on_the_disk_with_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "0000").mkdir()
    fsync, synced = os.fsync, []

    def watched(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", watched)
    identity.claim({0: LocalControl(tmp_path / "0000")}, "0af3", identity.SHARD)
    assert synced == [str(tmp_path / "0000/identity.new"), str(tmp_path / "0000")]
    identity.claim({0: LocalControl(tmp_path / "0000")}, "0af3", identity.SHARD)
    assert len(synced) == 2, "it was there"
