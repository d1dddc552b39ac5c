"""The command `triptych doctor`: what it writes, its exit codes, and examinations that fail."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator import cli
from coordinator.doctor import disk, machine
from coordinator.doctor import settings as settings_findings
from coordinator.doctor.finding import Finding
from tests.unit.doctor_findings import data_directory


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return data_directory(tmp_path)


def run(*arguments: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    return cli.main(["doctor", *arguments]), capsys.readouterr().out


@pytest.fixture
def well(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that is well, whatever this one is."""
    monkeypatch.setattr(machine, "look", lambda _: iter(()))
    monkeypatch.setattr(disk, "look", lambda _: iter(()))
    monkeypatch.setattr(settings_findings, "budgets", lambda *_: Finding("ok", "settings", "memory", "enough"))


@pytest.mark.usefixtures("well")
def test_exit_codes_and_output(
    directory: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRIPTYCH_SHARDS", "1")
    code, text = run(str(directory), capsys=capsys)
    assert code == 0, text
    assert text.splitlines()[-1].startswith("0 problems, ")
    (directory / "manifest.json").unlink()
    code, text = run(str(directory), "--json", capsys=capsys)
    content = json.loads(text)
    assert (code, content["well"]) == (1, False)
    assert {"level", "about", "name", "seen", "right"} == set(content["findings"][0])
    monkeypatch.setenv("TRIPTYCH_SHARDS", "no")
    assert run(str(directory), capsys=capsys)[0] == 1


@pytest.mark.usefixtures("well")
def test_an_examination_that_fails_ends_none_of_the_others(
    directory: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: object) -> Iterator[Finding]:
        raise OSError("no such file")
        yield

    monkeypatch.setattr(machine, "look", broken)
    _, text = run(str(directory), capsys=capsys)
    assert "warning  machine: examination" in text
    assert "ok       settings: settings" in text


@pytest.mark.usefixtures("well")
def test_names_of_files_cannot_write_lines_or_colours(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in (b"line\nproblem  data", b"\x1b[31mred", b"no \xff text"):
        (directory / os.fsdecode(name + b".new")).touch(mode=0o644)
        _, text = run(str(directory), capsys=capsys)
        assert "\x1b" not in text
        assert all(line.startswith(("ok ", "warning ", "problem ", "   ")) for line in text.splitlines()[:-1])
        assert json.loads(run(str(directory), "--json", capsys=capsys)[1])
        (directory / os.fsdecode(name + b".new")).unlink()


def test_a_directory_whose_name_is_too_long(capsys: pytest.CaptureFixture[str]) -> None:
    code, text = run("/tmp/" + "x" * 300, capsys=capsys)
    assert code == 1
    assert "problem  data: examination" in text


@pytest.mark.usefixtures("well")
def test_a_url_that_is_none(
    capsys: pytest.CaptureFixture[str], directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for url in ("ftp://x", "http://", "localhost:port", "http://127.0.0.1:1"):
        code, text = run(str(directory), "--url", url, capsys=capsys)
        assert code == 1, url
        assert "problem  cluster: coordinator" in text
    monkeypatch.setenv("TRIPTYCH_URL", "http://127.0.0.1:1")
    assert "problem  cluster: coordinator" in run(str(directory), capsys=capsys)[1]
