from __future__ import annotations

import os
import subprocess
import sys

import pytest

from shared import manifest
from shared.config import Settings
from shared.errors import ConfigError


def test_a_manifest_is_written_once_and_read_again(tmp_path):
    settings = Settings(data=tmp_path / "data", shards=3)
    assert manifest.open_manifest(settings) == manifest.open_manifest(settings)


def test_another_shard_count_is_refused_naming_both(tmp_path):
    manifest.open_manifest(Settings(data=tmp_path, shards=3))
    with pytest.raises(ConfigError, match=r"TRIPTYCH_SHARDS is 4, but .* was made with 3 shards"):
        manifest.open_manifest(Settings(data=tmp_path, shards=4))


def test_a_damaged_manifest_is_refused(tmp_path):
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(ConfigError, match="is damaged"):
        manifest.open_manifest(Settings(data=tmp_path))


def test_a_lock_has_one_holder_who_is_named(tmp_path):
    settings = Settings(data=tmp_path)
    script = (
        "import sys; from pathlib import Path; from shared import manifest; from shared.config import Settings;"
        "manifest.lock(Settings(data=Path(sys.argv[1])), 'workers'); print('held', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(ConfigError, match=f"process id {holder.pid}"):
            manifest.lock(settings, "workers")
    finally:
        holder.communicate(b"")
    os.close(manifest.lock(settings, "workers"))


def test_a_long_data_path_gets_a_short_socket_of_its_own(tmp_path):
    deep = tmp_path / ("d" * 60) / ("e" * 60)
    settings = Settings(data=deep)
    address = manifest.endpoint(settings, manifest.open_manifest(settings))
    directory = address.removeprefix("ipc://").rpartition("/")[0]
    assert len(address) < 107
    assert os.stat(directory).st_mode & 0o777 == 0o700
    os.rmdir(directory)


def test_atomic_write_replaces_the_content(tmp_path):
    path = tmp_path / "file"
    manifest.write_atomically(path, b"one")
    manifest.write_atomically(path, b"two")
    assert path.read_bytes() == b"two"
    assert os.listdir(tmp_path) == ["file"]
