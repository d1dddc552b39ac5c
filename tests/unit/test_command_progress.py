"""Progress of commands: bars on a terminal, lines or nothing elsewhere."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from coordinator.commands import backup
from coordinator.commands.progress import Counting, bytes_text, size_of


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_a_bar_and_the_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    with pytest.raises(RuntimeError), Counting("records appended", 100) as progress:
        progress.add(1500, 50)
        raise RuntimeError  # the bar is closed all the same
    assert "1,500 records appended" in terminal.getvalue()
    assert "━" in terminal.getvalue()
    assert terminal.getvalue().endswith("\x1b[?25h")  # the cursor is back


def test_a_pipe_gets_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with Counting("records appended", 100) as progress:
        progress.add(2)
    assert (progress.count, capsys.readouterr()) == (2, ("", ""))


def test_no_bar_among_records_on_the_same_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, Terminal())
    with Counting("records read", beside_output=True) as progress:
        progress.add(2)
    assert sys.stderr.getvalue() == ""  # type: ignore[attr-defined]


def test_a_bar_needs_the_size_of_what_is_left_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"12345")
    with path.open("rb") as file:
        file.read(2)
        assert size_of(file) == 3
    assert size_of(io.BytesIO(b"abc")) is None


def test_a_backup_shows_bars_or_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, log = Terminal(), io.StringIO()
    monkeypatch.setattr(backup, "LOGGED_EVERY_S", 0.0)
    for output in (terminal, log):
        with backup._progress(output) as report:
            report("copied", 1 << 20, 4 << 20)
            report("copied", 4 << 20, 4 << 20)
    assert "copied" in terminal.getvalue() and "4.2/4.2 MB" in terminal.getvalue()
    assert log.getvalue() == "1.0 MB of 4.0 MB copied\n4.0 MB of 4.0 MB copied\n"


def test_sizes_are_round() -> None:
    assert [bytes_text(count) for count in (5, 2048, 3 << 20, 5 << 30)] == ["5 bytes", "2.0 KB", "3.0 MB", "5.0 GB"]
