"""The command line itself: help that teaches, exit codes, completion, and what makes it start fast."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import click
import pytest

from coordinator import cli
from coordinator.commands.root import SECTIONS, root
from coordinator.plurals import counted

ROOT = Path(__file__).resolve().parents[2]
NOBODY = "http://127.0.0.1:1"


def commands() -> Iterator[tuple[list[str], click.Command]]:
    """Every command with the words that call it."""

    def below(words: list[str], command: click.Command) -> Iterator[tuple[list[str], click.Command]]:
        yield words, command
        if isinstance(command, click.Group):
            context = click.Context(command)
            for name in command.list_commands(context):
                inner = command.get_command(context, name)
                assert inner is not None
                yield from below([*words, name], inner)

    return below([], root)


def test_every_command_says_what_it_does(capsys: pytest.CaptureFixture[str]) -> None:
    for words, command in commands():
        assert cli.main([*words, "--help"]) == 0
        text = capsys.readouterr().out
        assert f"Usage: triptych {' '.join(words)}".strip() in text
        assert command.help, words
        for parameter in command.params:
            assert not isinstance(parameter, click.Option) or parameter.help, (words, parameter.name)


def test_help_names_all_commands_in_groups_with_an_example_each(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["-h"]) == 0
    text = capsys.readouterr().out
    for section in SECTIONS:
        assert f"{section.title}:\n" in text
        assert f"$ {section.example}\n" in text
        for name, (_, what) in section.commands.items():
            assert f" {name} " in text and what in text


def calls(line: str) -> Iterator[list[str]]:
    """The words of each call of `triptych` in a line of a shell."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|<>;()")
    lexer.whitespace_split = True
    words = list(lexer)
    for at in (at for at, word in enumerate(words) if word == "triptych"):
        ends = (end for end, word in enumerate(words) if end > at and set(word) <= set("|<>;()") and word)
        yield words[at + 1 : next(ends, len(words))]


def examples() -> Iterator[str]:
    """Those of help, and those of the guide."""
    yield from (section.example.removeprefix('eval "').removesuffix('"') for section in SECTIONS)
    for _, command in commands():
        yield from (
            line.strip() for line in (command.help or "").splitlines() if "triptych " in line and "`" not in line
        )
    page = (ROOT / "docs/guide/command-line.md").read_text()
    for block in re.findall(r"```sh\n(.*?)```", page, re.DOTALL):
        yield from block.splitlines()


def test_examples_are_calls_that_can_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("notes.jsonl", "embedding.json"):
        (tmp_path / name).touch()
    found = [words for line in examples() for words in calls(re.split(r"   +", line)[0])]
    assert len(found) > 30
    for words in found:
        command: click.Command = root
        with click.Context(root) as context:
            while isinstance(command, click.Group):
                inner = command.get_command(context, words[0])
                assert inner is not None, words
                command, words = inner, words[1:]
        command.make_context("example", list(words))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "Usage: triptych"),
        (["querry"], "querry"),
        (["query"], "Missing argument 'EXPR'"),
        (["query", "up", "--end", "now"], "--end and --step need --start"),
        (["query", "up", "--start", "-1h", "--time", "now"], "give one"),
        (["query", "up", "--start", "now", "--end", "-1h"], "before it begins"),
        (["query", "up", "--time", "yesterday"], "it must be RFC 3339, Unix seconds, now, or relative to now"),
        (["query", "up", "--time", "2026-01-01T00:00:00"], "is not a time"),
        (["query", "up", "--start", "-1h", "--step", "often"], "'often' is not a duration"),
        (["write", "--label", "job"], "'job' is not a label; it must be such as job=backup"),
        (["log", "append"], "--key or --separator is missing"),
        (["log", "append", "--key", "a", "--separator", "b"], "--key and --separator exclude each other"),
        (["log", "append", "--separator", ""], "--separator is ''"),
        (["log", "append", "--key", "a", "--json", "--tombstone"], "--json and --tombstone exclude each other"),
        (["log", "scan"], "--key or --prefix is missing"),
        (["log", "tail", "--key", "", "--prefix", ""], "--key and --prefix exclude each other"),
        (["log", "scan", "--key", "a", "--json", "--values"], "--json and --values exclude each other"),
        (["vector", "search"], "there is nothing to search for"),
        (["vector", "search", "--vector", "1 2 x"], "is not a vector"),
        (["vector", "search", "--vector", "1", "--id", "a"], "--vector and --id exclude each other"),
        (["vector", "search", "--id", "a", "--field", "b"], "--field needs --text"),
        (["vector", "search", "--filter", "[1]"], "is not a JSON object"),
        (["vector", "delete"], "give ids or --filter"),
        (["vector", "delete", "a", "--filter", "{}"], "and not both"),
        (["token", "a", "--log", "owner"], "'owner' is not one of"),
        (["completion", "tcsh"], "'tcsh' is not one of"),
    ],
)
def test_a_wrong_use_is_code_2_and_says_what_is_right(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(arguments) == 2
    captured = capsys.readouterr()
    assert says in captured.err
    assert captured.out == ""


@pytest.mark.parametrize(
    "arguments",
    [
        ["query", "up"],
        ["status"],
        ["log", "scan", "--key", "k"],
        ["vector", "collections"],
        ["vector", "get", "a"],
        ["log", "tail", "--key", "k"],
    ],
)
def test_a_cluster_that_is_not_there_is_code_1_and_one_line(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*arguments, "--url", NOBODY]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("triptych: ")


def test_a_missing_file_is_code_1_and_named_with_the_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "none.jsonl"
    assert cli.main(["import", "log", str(path), "--url", NOBODY]) == 1
    assert capsys.readouterr().err == f"triptych: {path}: No such file or directory\n"


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 records appended"), (1, "1 record appended"), (2, "2 records appended")]
)
def test_one_item_is_counted_in_the_singular(count: int, text: str) -> None:
    assert counted(count, "records appended") == text


def test_options_of_connections_come_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRIPTYCH_URL", "ftp://somewhere")
    assert cli.main(["query", "up"]) == 1
    assert "--url is 'ftp://somewhere'" in capsys.readouterr().err


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_printed_for_each_shell(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["completion", shell]) == 0
    text = capsys.readouterr().out
    assert "_TRIPTYCH_COMPLETE" in text and "triptych" in text


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("triptych qu", ["plain,query"]),
        ("triptych log delete", ["plain,delete-group"]),
        ("triptych log scan --enc", ["plain,--encoding"]),
        ("triptych log scan --encoding t", ["plain,text"]),
        ("triptych --ver", ["plain,--version"]),
    ],
)
def test_the_shell_completes_commands_options_and_values(
    words: str, expected: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("_TRIPTYCH_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - 1))
    assert cli.main([]) == 0
    assert capsys.readouterr().out.splitlines() == expected


def run(*arguments: str, **options: object) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "coordinator.cli", *arguments]
    return subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, **options)  # type: ignore[call-overload,no-any-return]


def test_help_and_version_import_nothing_that_takes_long() -> None:
    code = (
        "import json, sys\nfrom coordinator import cli\n"
        "assert cli.main(['--help']) == cli.main(['--version']) == 0\n"
        "print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    out = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=True, cwd=ROOT)
    imported = set(json.loads(out.stdout.splitlines()[-1]))
    slow = {"numba", "numpy", "google", "proto", "rich", "aiohttp", "worker", "pydantic", "http"}
    assert imported & slow == set()
    assert "click" in imported


def test_a_reader_that_closes_the_pipe_is_no_error() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    process = run("--help", stdout=writing)
    os.close(writing)
    _, messages = process.communicate(timeout=30)
    assert (process.returncode, messages) == (0, b"")


def test_an_interrupt_is_code_130_without_a_trace() -> None:
    # A shell has what it starts in the background ignore interrupts: these tests, and so what they start.
    heeding = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    process = run("write", "--url", NOBODY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, preexec_fn=heeding)
    assert process.stdin is not None and process.stderr is not None
    process.stdin.write(b"a 1\n")
    process.stdin.flush()
    assert b"trying again" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    output, messages = process.communicate(timeout=30)
    assert (process.returncode, output, messages) == (130, b"", b"")
