"""Findings of `triptych doctor` about a data directory."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

import pytest

from coordinator.command_client import Client
from coordinator.doctor import data, report
from coordinator.doctor.finding import Finding
from coordinator.log import policy_document
from coordinator.log.policy_document import Policy
from shared.manifest import FORMAT
from tests.earlier_format import put_back
from tests.unit.doctor_findings import data_directory, level


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return data_directory(tmp_path)


def found_in(directory: Path, shards: int = 1) -> dict[str, Finding]:
    return {found.name: found for found in data.look(directory, shards) if level(found)}


def troubles(directory: Path, shards: int = 1) -> dict[str, str]:
    return {name: found.level for name, found in found_in(directory, shards).items() if found.level != "ok"}


def test_a_whole_directory_is_well(directory: Path, tmp_path: Path) -> None:
    assert troubles(directory) == {}
    assert {"format", "modes", "use", "damage"} == set(found_in(directory))
    assert troubles(tmp_path / "none") == {}
    (tmp_path / "empty").mkdir()
    assert troubles(tmp_path / "empty") == {}


def test_more_workers_than_usual_fix_the_shards_of_a_new_directory(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for new in (tmp_path / "none", tmp_path / "empty"):
        (warned,) = (found for found in data.look(new, 0, workers=99) if found.level != "ok")
        assert (warned.name, warned.level) == ("shards", "warning")
        assert "the first start creates 99" in warned.seen
        assert all(found.level == "ok" for found in data.look(new, 99, workers=99))
        assert all(found.level == "ok" for found in data.look(new, 0, workers=16))


def test_what_is_no_data_directory(directory: Path, tmp_path: Path) -> None:
    assert troubles(directory / "manifest.json") == {"directory": "problem"}
    assert troubles(tmp_path) == {"directory": "warning"}


def test_a_format_that_a_start_refuses(directory: Path) -> None:
    assert troubles(directory, shards=8) == {"shards": "problem"}
    assert "TRIPTYCH_SHARDS=1" in found_in(directory, shards=8)["shards"].right
    assert troubles(directory, shards=0) == {}
    (more_workers,) = (found for found in data.look(directory, 0, workers=2) if found.level != "ok")
    assert more_workers.seen == "the directory has 1, but TRIPTYCH_WORKERS is 2"
    content = (directory / "manifest.json").read_bytes()
    (directory / "manifest.json").write_bytes(content[:-20])
    assert troubles(directory)["format"] == "problem"
    (directory / "manifest.json").unlink()
    assert "cp " in found_in(directory)["format"].right


def test_a_format_that_a_start_upgrades(directory: Path) -> None:
    put_back(directory)
    assert troubles(directory) == {"format": "warning"}
    found = found_in(directory)["format"]
    assert found.seen == f"1, of an earlier release; the next start upgrades it to {FORMAT}"
    assert found.right == f"make a backup before it: earlier releases refuse format {FORMAT}"
    put_back(directory, 9)
    assert troubles(directory)["format"] == "problem"
    assert f"it has format 9, and this program reads format {FORMAT}" in found_in(directory)["format"].seen


def test_modes_owners_and_times(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (directory / "shards" / "0000").chmod(0o750)
    assert troubles(directory) == {"modes": "warning"}
    (directory / "shards" / "0000").chmod(0o700)
    os.utime(directory / "manifest.json", (time.time() + 3600,) * 2)
    assert troubles(directory) == {"times": "warning"}
    os.utime(directory / "manifest.json")
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert troubles(directory) == {"owner": "problem"}


def test_damage_and_leftovers(directory: Path) -> None:
    for name in ("old.new", "shards/0000/x.damaged"):
        (directory / name).touch(mode=0o600)
    assert troubles(directory) == {"damage": "problem", "leftovers": "warning"}
    assert "shards/0000/x.damaged" in found_in(directory)["damage"].seen
    assert "old.new" in found_in(directory)["leftovers"].seen


def test_policies_that_a_start_refuses(directory: Path) -> None:
    (directory / "sequencer").mkdir(mode=0o700)
    policies = directory / "sequencer" / "policies"
    policies.touch(mode=0o600)
    policies.write_bytes(policy_document.encode([Policy("p", b"a", keep_newest=1)]))
    assert troubles(directory) == {}
    policies.write_bytes(policies.read_bytes()[:-1])
    assert troubles(directory) == {"damage": "problem"}
    assert "sequencer/policies" in found_in(directory)["damage"].seen


def test_a_directory_in_use_is_left_to_its_cluster(directory: Path) -> None:
    (directory / "old.new").touch(mode=0o600)
    with open(directory / "workers.lock", "w") as lock:
        os.fchmod(lock.fileno(), 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert troubles(directory) == {}
        assert "in use" in found_in(directory)["use"].seen


def test_a_directory_that_cannot_be_read(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(data, "manifest", refuse)
    assert troubles(directory) == {"directory": "problem"}


def test_the_doctor_changes_nothing(directory: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in [directory, *directory.rglob("*")]}
    list(report.examine(directory, None, lambda: Client("")))
    assert {path: path.stat().st_mtime_ns for path in [directory, *directory.rglob("*")]} == before
