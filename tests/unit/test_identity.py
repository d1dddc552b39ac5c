"""Which directory of the data is which."""

from __future__ import annotations

import json
import logging
import os
import re
from pathlib import Path

import pytest

from shared import identity, manifest
from shared.config import Settings
from shared.errors import ConfigError
from worker.wal import layout


def exchange(first: Path, second: Path) -> None:
    aside = first.with_name("aside")
    first.rename(aside)
    second.rename(first)
    aside.rename(second)


def settings(directory: Path) -> Settings:
    return Settings(data=directory / "data", shards=3)


def test_what_is_said_is_read() -> None:
    said = "0af3", identity.LOG, 12
    assert identity.decode(identity.encode(*said)) == said


@pytest.mark.parametrize("at", range(len(identity.encode("0af3", "shard", 1))))
def test_a_flipped_bit_is_noticed(at: int) -> None:
    content = bytearray(identity.encode("0af3", "shard", 1))
    content[at] ^= 1
    with pytest.raises(ValueError, match="checksum"):
        identity.decode(bytes(content))


def test_exchanged_directories_of_shards_are_refused_naming_both(tmp_path: Path) -> None:
    cluster = manifest.open_manifest(settings(tmp_path)).cluster_id
    first, second = (manifest.shard_directory(tmp_path / "data", n) for n in (0, 2))
    exchange(first, second)
    told = f"{first} is shard 2 of cluster {cluster}, and lies where shard 0 of cluster {cluster} belongs"
    with pytest.raises(ConfigError, match=re.escape(told)):
        manifest.open_manifest(settings(tmp_path))
    exchange(first, second)
    manifest.open_manifest(settings(tmp_path))


def test_exchanged_directories_of_logs_are_refused_naming_both(tmp_path: Path) -> None:
    base = tmp_path / "wal"
    layout.prepare(base, 2, "0af3")
    layout.prepare(base, 3, "0af3")
    exchange(base / "0001", base / "0002")
    for workers in (3, 2):
        with pytest.raises(ConfigError, match="0001 is write-ahead log 2 of cluster 0af3, and lies where"):
            layout.prepare(base, workers, "0af3")
    exchange(base / "0001", base / "0002")
    layout.prepare(base, 2, "0af3")


def test_directories_of_another_cluster_are_refused(tmp_path: Path) -> None:
    manifest.open_manifest(settings(tmp_path / "mine"))
    other = manifest.open_manifest(settings(tmp_path / "other")).cluster_id
    own = manifest.shard_directory(tmp_path / "mine/data", 1)
    exchange(own, manifest.shard_directory(tmp_path / "other/data", 1))
    with pytest.raises(ConfigError, match=f"shard 1 of cluster {other}, and lies where shard 1 of cluster"):
        manifest.open_manifest(settings(tmp_path / "mine"))
    layout.prepare(tmp_path / "wal", 1, "0af3")
    with pytest.raises(ConfigError, match="write-ahead log 0 of cluster 0af3, and lies where"):
        layout.prepare(tmp_path / "wal", 1, "bc")


@pytest.mark.parametrize("damage", ["gone", "flipped"])
def test_an_identity_that_is_lost_is_written_anew(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    own = manifest.open_manifest(settings(tmp_path))
    file = manifest.shard_directory(tmp_path / "data", 1) / identity.NAME
    content = file.read_bytes()
    if damage == "gone":
        file.unlink()
    else:
        file.write_bytes(content.replace(b"shard 1", b"shard 2"))
    with caplog.at_level(logging.ERROR):
        assert manifest.open_manifest(settings(tmp_path)) == own
    assert file.read_bytes() == content
    assert ("identity is damaged" in caplog.text) == (damage == "flipped")


def test_a_manifest_that_is_to_be_written_anew_has_the_cluster_of_its_shards(tmp_path: Path) -> None:
    own = manifest.open_manifest(settings(tmp_path))
    for path in (tmp_path / "data" / manifest.NAME, tmp_path / "data/shards" / manifest.NAME):
        path.unlink()
    with pytest.raises(ConfigError) as refused:
        manifest.open_manifest(settings(tmp_path))
    advised = str(refused.value)[str(refused.value).index("{") :]
    assert json.loads(advised)["cluster_id"] == own.cluster_id
    (tmp_path / "data" / manifest.NAME).write_text(advised)
    assert manifest.open_manifest(settings(tmp_path)) == own


def test_an_identity_is_on_the_disk_with_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "0000").mkdir()
    fsync, synced = os.fsync, []

    def watched(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", watched)
    identity.claim([tmp_path / "0000"], "0af3", identity.SHARD)
    assert synced == [str(tmp_path / "0000/identity.new"), str(tmp_path / "0000")]
    identity.claim([tmp_path / "0000"], "0af3", identity.SHARD)
    assert len(synced) == 2, "it was there"
