from __future__ import annotations

import errno
import json
import logging
import os
import shutil
import subprocess
import sys
import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from shared import control, durable, manifest
from shared.control import LocalControl
from shared.errors import ConfigError
from shared.settings import Settings
from tests.earlier_format import formats_of, put_back


def open_manifest(settings):
    return manifest.open_manifest(settings, LocalControl(settings.data))


def with_checksum(fields):
    return json.dumps({**fields, "checksum": manifest._checksum(fields)} if isinstance(fields, dict) else fields)


def test_a_manifest_is_written_once_and_read_again(tmp_path):
    settings = Settings(data=tmp_path / "data", shards=3)
    assert open_manifest(settings) == open_manifest(settings)


def test_another_shard_count_is_refused_naming_both(tmp_path):
    open_manifest(Settings(data=tmp_path, shards=3))
    with pytest.raises(ConfigError, match=r"TRIPTYCH_SHARDS is 4, but .* was made with 3 shards"):
        open_manifest(Settings(data=tmp_path, shards=4))


def test_a_directory_keeps_its_shards_where_no_number_is_set(tmp_path):
    first = Settings(data=tmp_path, workers=3)
    assert open_manifest(first).shards == 6
    other = Settings(data=tmp_path, workers=1)
    assert open_manifest(other).settled(other).shards == 6
    more = Settings(data=tmp_path, workers=7)
    with pytest.raises(ConfigError, match=r"TRIPTYCH_WORKERS is 7; it must be at most 6, the number of shards of "):
        open_manifest(more)


@pytest.mark.parametrize(
    ("workers", "shards", "warnings"),
    [(99, 0, ["TRIPTYCH_WORKERS is 99, so the"]), (99, 99, []), (16, 0, []), (0, 0, [])],
)
def test_the_start_that_creates_a_directory_warns_of_an_unusual_number_of_shards(
    tmp_path, caplog, workers, shards, warnings
):
    settings = Settings(data=tmp_path, workers=workers, shards=shards)
    for _ in range(2):
        open_manifest(settings)
    assert [record.getMessage()[:30] for record in caplog.records] == warnings


def test_a_damaged_manifest_is_refused(tmp_path):
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(ConfigError, match="is damaged"):
        open_manifest(Settings(data=tmp_path))


@pytest.mark.parametrize(
    "fields",
    [
        [],
        {"cluster_id": "abc", "shards": 8},
        {"format": "1", "cluster_id": "abc", "shards": 8},
        {"format": 0, "cluster_id": "abc", "shards": 8},
        {"format": 1, "cluster_id": 7, "shards": 8},
        {"format": 1, "cluster_id": "abc", "shards": "8"},
        {"format": 1, "cluster_id": "abc", "shards": 8, "workers": 2},
        {"format": 1, "cluster_id": "abc"},
    ],
)
def test_a_manifest_of_other_fields_or_types_is_damaged(tmp_path, fields):
    (tmp_path / "manifest.json").write_text(with_checksum(fields))
    with pytest.raises(ConfigError, match=r"is damaged \(it"):
        open_manifest(Settings(data=tmp_path))


def test_a_lock_has_one_holder_who_is_named(tmp_path):
    script = (
        "import sys; from pathlib import Path; from shared import manifest; from shared.control import LocalControl;"
        "manifest.lock(LocalControl(Path(sys.argv[1])), 'workers'); print('held', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(ConfigError, match=f"process {holder.pid} holds"):
            manifest.lock(LocalControl(tmp_path), "workers")
    finally:
        holder.communicate(b"")
    manifest.lock(LocalControl(tmp_path), "workers").close()


def test_a_long_data_path_gets_a_short_socket_of_its_own(tmp_path):
    deep = tmp_path / ("d" * 60) / ("e" * 60)
    settings = Settings(data=deep)
    address = manifest.endpoint(settings, open_manifest(settings))
    directory = address.removeprefix("ipc://").rpartition("/")[0]
    assert len(address) < 107
    assert os.stat(directory).st_mode & 0o777 == 0o700
    for name in ("cluster.sock", "cluster.ctl.sock"):
        Path(directory, name).touch()
    with closing(manifest.lock(LocalControl(deep), "workers")):
        manifest.leave(address, LocalControl(deep), "workers")
        assert len(os.listdir(directory)) == 2, "workers that are there wait for the next coordinator"
    manifest.leave(address, LocalControl(deep), "workers")
    assert not os.path.exists(directory)


def test_who_starts_waits_until_one_who_ends_has_left(tmp_path, monkeypatch):
    deep = tmp_path / ("d" * 60) / ("e" * 60)
    settings = Settings(data=deep)
    address = manifest.endpoint(settings, open_manifest(settings))
    starts = []
    remove = Path.rmdir

    def removed(directory):
        thread = threading.Thread(target=lambda: starts.append(manifest.lock(LocalControl(deep), "workers")))
        thread.start()
        thread.join(0.1)
        assert not starts
        remove(directory)
        threads.append(thread)

    threads = []
    monkeypatch.setattr(Path, "rmdir", removed)
    manifest.leave(address, LocalControl(deep), "workers")
    threads[0].join(10)
    starts[0].close()


def test_the_directory_of_the_sockets_stays_in_the_data_directory(tmp_path):
    settings = Settings(data=tmp_path)
    address = manifest.endpoint(settings, open_manifest(settings))
    manifest.leave(address, LocalControl(tmp_path), "workers")
    assert Path(address.removeprefix("ipc://")).parent.is_dir()


def test_a_directory_of_the_sockets_that_cannot_be_made_is_named(tmp_path):
    settings = Settings(data=tmp_path)
    identity = open_manifest(settings)
    (tmp_path / "run").touch()
    with pytest.raises(ConfigError, match=f"{tmp_path}/run, for the sockets of the cluster, cannot be used: File exi"):
        manifest.endpoint(settings, identity)


def test_a_lock_needs_no_room_on_the_disk(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(control.os, "write", full)
    lease = manifest.lock(LocalControl(tmp_path), "workers")
    with pytest.raises(ConfigError, match="process unknown holds the lock of its workers"):
        manifest.lock(LocalControl(tmp_path), "workers")
    lease.close()
    monkeypatch.setattr(control.os, "open", full)
    with pytest.raises(ConfigError, match=f"TRIPTYCH_DATA is {tmp_path}, which cannot be used: No space left"):
        manifest.lock(LocalControl(tmp_path), "workers")


def test_a_file_in_the_place_of_the_data_directory_is_named(tmp_path):
    (tmp_path / "data").touch()
    with pytest.raises(ConfigError, match=f"TRIPTYCH_DATA is {tmp_path}/data, which is not a directory"):
        open_manifest(Settings(data=tmp_path / "data"))


def test_a_data_directory_that_cannot_even_be_looked_for_is_named(tmp_path):
    data = tmp_path / ("d" * 300)
    with pytest.raises(ConfigError, match=f"TRIPTYCH_DATA is {data}, which cannot be used: File name too long"):
        open_manifest(Settings(data=data))


def test_a_copy_of_a_cluster_does_not_meet_the_workers_of_the_first(tmp_path):
    first, second = (Settings(data=tmp_path / (name * 120)) for name in "ab")
    identity = open_manifest(first)
    assert identity.cluster_id
    shutil.copytree(first.data, second.data)
    addresses = {manifest.endpoint(settings, open_manifest(settings)) for settings in (first, second)}
    assert len(addresses) == 2
    for address in addresses:
        assert len(address) < 107
        os.rmdir(address.removeprefix("ipc://").rpartition("/")[0])


def test_atomic_write_replaces_the_content(tmp_path):
    path = tmp_path / "file"
    durable.write_atomically(path, b"one")
    durable.write_atomically(path, b"two")
    assert path.read_bytes() == b"two"
    assert os.listdir(tmp_path) == ["file"]


def test_a_byte_of_the_manifest_that_was_flipped_is_refused(tmp_path):
    settings = Settings(data=tmp_path, shards=8)
    open_manifest(settings)
    path = tmp_path / "manifest.json"
    content = path.read_bytes()
    for at in range(len(content)):
        for bit in range(8):
            path.write_bytes(content[:at] + bytes([content[at] ^ 1 << bit]) + content[at + 1 :])
            with pytest.raises(ConfigError, match="is damaged"):
                open_manifest(settings)


def test_a_manifest_without_a_checksum_is_damaged(tmp_path):
    (tmp_path / "manifest.json").write_text('{"format": 1, "cluster_id": "abc", "shards": 8}')
    with pytest.raises(ConfigError, match="its checksum does not match"):
        open_manifest(Settings(data=tmp_path))


@pytest.mark.parametrize("name", ["manifest.json", "shards/manifest.json"])
def test_a_newer_format_is_refused_naming_both_and_left_as_it_is(tmp_path, name):
    settings = Settings(data=tmp_path)
    open_manifest(settings)
    path = tmp_path / name
    content = with_checksum({"format": 9, "cluster_id": "abc", "regions": 3})
    path.write_text(content)
    refused = f"{path}: it has format 9, and this program reads format {manifest.FORMAT}; start the rel"
    with pytest.raises(ConfigError, match=refused):
        open_manifest(settings)
    assert path.read_text() == content


@pytest.mark.parametrize("name", manifest.HOLDS_DATA)
def test_data_without_a_manifest_is_refused(tmp_path, name):
    (tmp_path / name).mkdir()
    with pytest.raises(ConfigError, match=f"manifest.json is missing, but .* holds data .*{name}"):
        open_manifest(Settings(data=tmp_path))
    assert not (tmp_path / "manifest.json").exists()


def test_a_lost_manifest_can_be_restored_as_the_error_says(tmp_path):
    settings = Settings(data=tmp_path, shards=5)
    identity = open_manifest(settings)
    (tmp_path / "manifest.json").unlink()
    with pytest.raises(ConfigError, match=r"restore it from its copy: cp ") as refused:
        open_manifest(settings)
    subprocess.run(str(refused.value).partition("copy: ")[2].split(), check=True)
    assert open_manifest(settings) == identity


def test_a_lost_manifest_without_a_copy_can_be_written_anew_as_the_error_says(tmp_path):
    for shard in range(3):
        (tmp_path / "shards" / f"{shard:04d}").mkdir(parents=True)
    with pytest.raises(ConfigError, match="that would be") as refused:
        open_manifest(Settings(data=tmp_path, shards=3))
    (tmp_path / "manifest.json").write_text(str(refused.value).partition("would be ")[2])
    assert open_manifest(Settings(data=tmp_path, shards=3)).shards == 3


def test_the_manifest_of_another_directory_is_refused(tmp_path):
    settings = Settings(data=tmp_path, shards=3)
    open_manifest(settings)
    other = open_manifest(Settings(data=tmp_path / "other", shards=3))
    (tmp_path / "manifest.json").write_bytes(other.encode())
    with pytest.raises(ConfigError, match=other.cluster_id):
        open_manifest(settings)


def test_a_damaged_copy_is_written_anew(tmp_path):
    settings = Settings(data=tmp_path, shards=3)
    identity = open_manifest(settings)
    copy = manifest.copy_of(tmp_path / "manifest.json")
    copy.write_bytes(b"{")
    assert open_manifest(settings) == identity
    assert copy.read_bytes() == identity.encode()


@pytest.mark.parametrize("name", ["open", "mkdir", "replace", "fsync"])
def test_a_first_start_that_was_killed_between_two_steps_goes_on(tmp_path, monkeypatch, name):
    original = getattr(os, name)
    for calls in range(30):
        settings = Settings(data=tmp_path / str(calls) / "data", shards=3)
        left = [None] * calls

        def step(*arguments, left=left, **options):
            if not left:
                raise OSError(5, "killed")
            left.pop()
            return original(*arguments, **options)

        monkeypatch.setattr(os, name, step)
        try:
            open_manifest(settings)
            was_killed = False
        except ConfigError:
            was_killed = True
        monkeypatch.undo()
        first = open_manifest(settings)
        assert open_manifest(settings) == first
        if not was_killed:
            break
    assert calls
    assert not was_killed


def test_a_lost_directory_of_a_shard_is_refused_and_begins_anew_only_where_somebody_makes_it(tmp_path):
    settings = Settings(data=tmp_path, shards=3)
    open_manifest(settings)
    lost = tmp_path / "shards" / "0001"
    shutil.rmtree(lost)
    with pytest.raises(ConfigError, match=f"{lost} is missing, with all that its shard held; .*: mkdir {lost}"):
        open_manifest(settings)
    assert not lost.exists()
    lost.mkdir()
    assert open_manifest(settings).shards == 3


def test_directories_of_shards_are_made_before_the_copy_that_says_so(tmp_path, monkeypatch):
    settings = Settings(data=tmp_path, shards=3)
    made = control.make_directory

    def killed(directory):
        if directory.name == "0002":
            raise KeyboardInterrupt
        made(directory)

    with monkeypatch.context() as patch:
        patch.setattr(control, "make_directory", killed)
        with pytest.raises(KeyboardInterrupt):
            open_manifest(settings)
    assert open_manifest(settings).shards == 3
    assert {path.name for path in (tmp_path / "shards").iterdir()} == {"0000", "0001", "0002", "manifest.json"}


# Earlier formats


@pytest.fixture
def earlier(tmp_path):
    """The settings of a directory in format 1."""
    settings = Settings(data=tmp_path / "data", shards=3)
    open_manifest(settings)
    put_back(settings.data)
    return settings


def upgrades(caplog):
    return [entry for entry in caplog.records if entry.message == "data directory upgraded"]


def test_an_earlier_format_is_upgraded_once_and_the_log_says_what_was_done(earlier, caplog):
    caplog.set_level(logging.INFO)
    before = manifest.Manifest.decode((earlier.data / "manifest.json").read_bytes())
    assert open_manifest(earlier) == before
    assert formats_of(earlier.data) == (manifest.FORMAT, manifest.FORMAT)
    assert [entry.fields["before"] for entry in upgrades(caplog)] == list(range(1, manifest.FORMAT))
    assert "histograms" in upgrades(caplog)[0].fields["added"]
    content = (earlier.data / "manifest.json").stat()
    open_manifest(earlier)
    assert (earlier.data / "manifest.json").stat().st_mtime_ns == content.st_mtime_ns
    assert len(upgrades(caplog)) == manifest.FORMAT - 1


def test_an_upgrade_goes_one_format_at_a_time(earlier, monkeypatch, caplog):
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(manifest, "FORMAT", 4)
    monkeypatch.setattr(manifest, "ADDITIONS", {2: "a", 3: "b", 4: "c"})
    open_manifest(earlier)
    said = [(entry.fields["before"], entry.fields["format"], entry.fields["added"]) for entry in upgrades(caplog)]
    assert said == [(1, 2, "a"), (2, 3, "b"), (3, 4, "c")]
    assert formats_of(earlier.data) == (4, 4)


def test_what_each_format_adds_is_said():
    assert list(manifest.ADDITIONS) == list(range(2, manifest.FORMAT + 1))


@pytest.mark.parametrize("name", ["open", "replace", "fsync"])
def test_an_upgrade_that_was_killed_between_two_steps_leaves_one_of_the_two_formats_and_goes_on(
    tmp_path, monkeypatch, name
):
    original = getattr(os, name)
    seen = set()
    for calls in range(40):
        settings = Settings(data=tmp_path / str(calls) / "data", shards=3)
        first = open_manifest(settings)
        put_back(settings.data)
        left = [None] * calls

        def step(*arguments, left=left, **options):
            if not left:
                raise KeyboardInterrupt
            left.pop()
            return original(*arguments, **options)

        with monkeypatch.context() as patch:
            patch.setattr(os, name, step)
            try:
                open_manifest(settings)
                was_killed = False
            except KeyboardInterrupt:
                was_killed = True
        seen.add(formats_of(settings.data))
        assert open_manifest(settings) == first
        assert formats_of(settings.data) == (manifest.FORMAT, manifest.FORMAT)
        if not was_killed:
            break
    assert calls
    assert not was_killed
    assert {(1, 1), (manifest.FORMAT, manifest.FORMAT)} <= seen
    assert (1, manifest.FORMAT) not in seen, "the manifest tells an earlier release, so it is written first"


@pytest.mark.parametrize("role", ["coordinator", "workers"])
def test_a_directory_that_an_earlier_release_uses_is_not_upgraded(earlier, role):
    lease = manifest.lock(LocalControl(earlier.data), role)
    with pytest.raises(
        ConfigError, match=f"is in format 1, .* to format {manifest.FORMAT}, but the process {os.getpid()} of an ear"
    ):
        open_manifest(earlier)
    assert formats_of(earlier.data) == (1, 1)
    lease.close()
    open_manifest(earlier)
    assert formats_of(earlier.data) == (manifest.FORMAT, manifest.FORMAT)


def test_an_upgraded_directory_is_refused_by_the_release_before_which_leaves_it_as_it_is(earlier, monkeypatch):
    open_manifest(earlier)
    content = (earlier.data / "manifest.json").read_bytes()
    written = manifest.FORMAT
    monkeypatch.setattr(manifest, "FORMAT", written - 1)
    refused = f"it has format {written}, and this program reads format {written - 1}; start the release that"
    with pytest.raises(ConfigError, match=refused):
        open_manifest(earlier)
    assert (earlier.data / "manifest.json").read_bytes() == content


def test_a_copy_that_a_killed_upgrade_has_left_behind_is_written_anew(earlier):
    open_manifest(earlier)
    put_back(earlier.data)
    (earlier.data / "manifest.json").write_bytes(
        (replace(manifest.Manifest.decode((earlier.data / "manifest.json").read_bytes()), format=2)).encode()
    )
    assert formats_of(earlier.data) == (2, 1)
    open_manifest(earlier)
    assert formats_of(earlier.data) == (manifest.FORMAT, manifest.FORMAT)


def test_a_lost_manifest_of_an_earlier_format_is_restored_from_its_copy_and_upgraded(earlier):
    (earlier.data / "manifest.json").unlink()
    with pytest.raises(ConfigError, match=r"restore it from its copy: cp ") as refused:
        open_manifest(earlier)
    subprocess.run(str(refused.value).partition("copy: ")[2].split(), check=True)
    open_manifest(earlier)
    assert formats_of(earlier.data) == (manifest.FORMAT, manifest.FORMAT)


def test_a_start_that_is_refused_upgrades_nothing(earlier):
    with pytest.raises(ConfigError, match="TRIPTYCH_SHARDS"):
        open_manifest(replace(earlier, shards=4))
    with pytest.raises(ConfigError, match="TRIPTYCH_WORKERS"):
        open_manifest(replace(earlier, shards=0, workers=9))
    shutil.rmtree(earlier.data / "shards" / "0001")
    with pytest.raises(ConfigError, match="is missing"):
        open_manifest(earlier)
    assert formats_of(earlier.data) == (1, 1)


@pytest.mark.parametrize("number", [0, -1])
def test_a_format_below_the_first_is_damage(earlier, number):
    put_back(earlier.data, number, has_copy=False)
    with pytest.raises(ConfigError, match=f"is damaged .it has format {number}, and the first one is 1"):
        open_manifest(earlier)
