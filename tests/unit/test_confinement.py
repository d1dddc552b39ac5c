"""Modes of directories at a start, and core files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from shared import confinement, telemetry
from shared.confinement import close_to_others, confine
from shared.settings import Settings

PRINTS_DUMPABLE = "import ctypes; from shared.settings import Settings; from shared.confinement import confine\n"
PRINTS_DUMPABLE += "import resource, os; confine(Settings(core_dumps={allowed}))\n"
PRINTS_DUMPABLE += "print(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0), resource.getrlimit(resource.RLIMIT_CORE)[0])"


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o7777


def data_directory(path: Path, wide: int = 0o755) -> Path:
    for name in ("shards/0000/store", "wal/0000", "sequencer", "run", "other"):
        (path / name).mkdir(parents=True)
        (path / name).chmod(wide)
    for name in ("shards", "wal", ""):
        (path / name).chmod(wide)
    (path / "manifest.json").write_text("{}")
    return path


def test_a_data_directory_with_wider_modes_is_closed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = data_directory(tmp_path / "data")
    telemetry.configure("info")
    close_to_others(data)
    assert {name: mode(data / name) for name in ("", "shards", "wal", "sequencer", "run")} == dict.fromkeys(
        ("", "shards", "wal", "sequencer", "run"), 0o700
    )
    assert mode(data / "other") == 0o755
    assert f"directory={data} mode=0755" in capsys.readouterr().err
    close_to_others(data)
    assert capsys.readouterr().err == ""


def test_an_empty_directory_is_closed_before_anything_is_in_it(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    close_to_others(tmp_path)
    assert mode(tmp_path) == 0o700


@pytest.mark.parametrize("kind", ["in use for something else", "sticky", "of another user"])
def test_a_directory_that_is_not_ours_alone_keeps_its_mode(
    tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    data.chmod(0o1777 if kind == "sticky" else 0o755)
    if kind == "in use for something else":
        (data / "notes.txt").touch()
    if kind == "of another user":
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
    before = mode(data)
    telemetry.configure("info")
    close_to_others(data)
    assert mode(data) == before
    assert f"other users can enter a directory directory={data} mode={before:04o}" in capsys.readouterr().err


def test_a_link_is_not_followed_to_a_directory_of_somebody_else(tmp_path: Path) -> None:
    """Such as one that another user has put into a directory that was open to all."""
    other, data = tmp_path / "other", tmp_path / "data"
    for directory in (other, data):
        directory.mkdir()
        directory.chmod(0o777)
    (data / "manifest.json").touch()
    (data / "shards").symlink_to(other)
    (data / "wal").touch(mode=0o644)
    close_to_others(data)
    assert (mode(data), mode(other)) == (0o700, 0o777)


def test_the_data_directory_may_be_a_link(tmp_path: Path) -> None:
    data = data_directory(tmp_path / "data")
    (tmp_path / "link").symlink_to(data)
    close_to_others(tmp_path / "link")
    assert (mode(data), mode(data / "wal")) == (0o700, 0o700)


def test_a_directory_that_does_not_exist_yet_is_left_to_the_start(tmp_path: Path) -> None:
    close_to_others(tmp_path / "none")
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(("allowed", "dumpable"), [(False, "0 0"), (True, "1 ")])
def test_core_files_are_forbidden_unless_the_setting_allows_them(allowed: bool, dumpable: str, tmp_path: Path) -> None:
    program = PRINTS_DUMPABLE.format(allowed=allowed)
    environment = os.environ | {"PYTHONPATH": str(Path(confinement.__file__).parents[1])}
    ran = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    assert ran.stdout.startswith(dumpable)
    assert ran.stderr == ""


def test_a_system_that_refuses_is_named_in_the_log(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def refuse(*_: object) -> None:
        raise OSError("not here")

    monkeypatch.setattr(confinement.resource, "setrlimit", refuse)
    monkeypatch.setattr(confinement.ctypes, "CDLL", lambda *_, **__: type("C", (), {"prctl": lambda *_: -1})())
    telemetry.configure("info")
    confine(Settings(data=tmp_path))
    said = capsys.readouterr().err
    assert "the limit of core files cannot be set" in said
    assert "core files cannot be forbidden" in said
