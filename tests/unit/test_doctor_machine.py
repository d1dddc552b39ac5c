"""Findings of `triptych doctor` about the machine and the disk."""

from __future__ import annotations

import os
import resource
import sys
import sysconfig
import time
from pathlib import Path

import pytest

from coordinator.doctor import disk, machine
from shared.process import interpreter
from shared.process.processors import usable
from shared.settings import Settings
from tests.unit.doctor_findings import level

GB = 1 << 30


def test_few_open_files() -> None:
    settings = Settings(shards=4, workers=2, connections_max=5000)
    assert level(machine.open_file_limit(20_000, settings)) == "ok"
    assert level(machine.open_file_limit(2000, settings)) == "warning"
    assert level(machine.open_file_limit(1024, settings)) == "problem"


def test_a_limit_of_memory_or_of_files(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [level(found) for found in machine.limits()] == ["ok", "ok"]
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1000, 1000))
    assert [level(found) for found in machine.limits()] == ["problem", "problem", "warning"]


def test_more_workers_than_processors() -> None:
    assert level(machine.processors(4, 4)) == "ok"
    assert level(machine.processors(0.5, 1)) == "ok"
    found = machine.processors(1.5, 4)
    assert level(found) == "warning"
    assert "TRIPTYCH_WORKERS=1" in found.right


def test_the_quota_of_a_container_bounds_its_processors(tmp_path: Path) -> None:
    assert usable(tmp_path) == len(os.sched_getaffinity(0))
    (tmp_path / "cpu.max").write_text("50000 100000\n")
    assert usable(tmp_path) == 0.5
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert usable(tmp_path) == len(os.sched_getaffinity(0))


def test_little_memory() -> None:
    assert level(machine.machine_memory(8 * GB, 8 * GB, 4 * GB)) == "ok"
    assert level(machine.machine_memory(8 * GB, 8 * GB, GB // 2)) == "warning"
    found = machine.machine_memory(GB // 2, 8 * GB, GB // 4)
    assert level(found) == "problem"
    assert "control group" in found.seen


def test_swap_huge_pages_overcommit_and_an_old_kernel() -> None:
    assert level(machine.swap(0, 8 * GB)) == "ok"
    assert level(machine.swap(GB, 8 * GB)) == "warning"
    assert level(machine.huge_pages("always [madvise] never\n")) == "ok"
    assert level(machine.huge_pages("")) == "ok"
    assert level(machine.huge_pages("[always] madvise never\n")) == "warning"
    assert level(machine.overcommit("0\n")) == "ok"
    assert level(machine.overcommit("2\n")) == "warning"
    assert level(machine.kernel("6.1.0-18-amd64")) == "ok"
    assert level(machine.kernel("4.19.0")) == "warning"


def test_a_python_that_was_compiled_without_optimisations(monkeypatch: pytest.MonkeyPatch) -> None:
    assert level(machine.python(is_optimised=True)) == "ok"
    found = machine.python(is_optimised=False)
    assert level(found) == "warning"
    assert sys.base_prefix in found.seen
    assert "--enable-optimizations" in found.right

    arguments = {"CONFIG_ARGS": "'--prefix=/opt/python' '--enable-shared'"}
    monkeypatch.setattr(sysconfig, "get_config_var", arguments.get)
    monkeypatch.setattr(sys, "base_prefix", "/opt/python")
    assert not interpreter.is_optimised()
    arguments["CONFIG_ARGS"] += " '--enable-optimizations'"
    assert interpreter.is_optimised()
    arguments.clear()
    assert not interpreter.is_optimised()
    monkeypatch.setattr(sys, "base_prefix", "/usr")
    assert interpreter.is_optimised()


def test_a_wrong_clock() -> None:
    now = 1_800_000_000.0
    assert level(machine.clock(now, True, 0.01)) == "ok"
    assert level(machine.clock(now, None, 0.0)) == "ok"
    assert level(machine.clock(now, False, 0.0)) == "warning"
    assert level(machine.clock(now, True, 16.0)) == "warning"
    assert level(machine.clock(1000.0, True, 0.0)) == "problem"
    is_synchronised, error_s = machine.clock_state()
    assert is_synchronised in (True, False, None)
    assert error_s >= 0


def test_a_full_disk() -> None:
    assert level(disk.room(50 * GB, 100 * GB)) == "ok"
    assert level(disk.room(10 * GB, 100 * GB)) == "warning"
    assert level(disk.room(4 * GB, 100 * GB)) == "problem"
    assert level(disk.room(GB // 2, 2 * GB)) == "problem"
    assert level(disk.files(0, 0)) == "ok"
    assert level(disk.files(50, 100)) == "ok"
    assert level(disk.files(4, 100)) == "problem"


def test_the_kind_of_the_file_system() -> None:
    mounts = (
        "overlay / overlay rw 0 0\n/dev/a /data ext4 rw 0 0\ntmpfs /data/in\\040memory tmpfs rw 0 0\n"
        "/dev/b /data xfs rw 0 0\nserver:/x /database nfs4 rw 0 0\nsshfs /data/ssh fuse.sshfs rw 0 0\n"
    )
    kinds = {
        path: disk.file_system(Path(path), mounts)
        for path in ("/data/x", "/data/in memory/x", "/elsewhere", "/database", "/data/ssh/x")
    }
    assert list(kinds.values()) == ["xfs", "tmpfs", "overlay", "nfs4", "fuse.sshfs"]
    levels = [level(disk.kind_of_file_system(kind)) for kind in kinds.values()]
    assert levels == ["ok", "problem", "warning", "warning", "warning"]


def test_slow_syncs_and_syncs_that_do_nothing(tmp_path: Path) -> None:
    assert level(disk.sync_time([0.002] * 9 + [0.5], "ext4")) == "ok"
    assert level(disk.sync_time([0.020] * 9, "ext4")) == "warning"
    assert level(disk.sync_time([0.200] * 9, "ext4")) == "problem"
    assert level(disk.sync_time([0.000_001] * 9, "ext4")) == "warning"
    assert level(disk.sync_time([0.000_001] * 9, "tmpfs")) == "ok"
    assert 1 <= len(disk.syncs(tmp_path)) <= disk.SYNCS
    assert list(tmp_path.iterdir()) == []


def test_a_slow_disk_does_not_hold_the_doctor_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "SYNCS_S", 0.05)
    monkeypatch.setattr(os, "fsync", lambda _: time.sleep(0.03))
    assert len(disk.syncs(tmp_path)) == 2


def test_a_directory_that_cannot_be_written_to(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(**_: object) -> None:
        raise OSError(30, "Read-only file system")

    assert disk.writable(tmp_path) is None
    monkeypatch.setattr(disk.tempfile, "TemporaryFile", refuse)
    assert level(disk.writable(tmp_path)) == "problem"
    assert [level(found) for found in disk.look(tmp_path / "none" / "below")][-1] == "problem"
