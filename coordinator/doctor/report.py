"""Runs the doctor's checks and writes their findings."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TextIO

import msgspec

from coordinator.command_client import Client, CommandError
from coordinator.doctor import access, cluster, configuration, data, disk, machine, settings
from coordinator.doctor.finding import PROBLEM, Finding, problem, warning
from coordinator.plurals import counted
from shared.settings import Settings

WELL, PROBLEMS = 0, 1
"""Exit codes: no problem, but perhaps warnings; at least one problem. 2: wrong arguments."""
TIMEOUT_S = 20.0
ANSWER_BYTES_MAX = 64 << 20


Connect = Callable[[], Client]
"""Creates the client for the command's URL and options. Raises CommandError."""


def examine(directory: Path | None, url: str | None, connect: Connect) -> Iterator[Finding]:
    """`directory`: None for that of the settings. With a `url`, the cluster there is checked as well."""
    found, findings = settings.load()
    yield from findings
    directory = directory or (found.data if found else Path(os.environ.get("TRIPTYCH_DATA", "data")))
    yield from _guarded("machine", machine.look(found or Settings()))
    yield from _guarded("machine", disk.look(directory))
    if found is not None:
        yield from _guarded("settings", access.look(found))
        yield from _guarded("settings", configuration.look(found))
        yield from _guarded("settings", settings.look(found, disk.total_bytes(directory)))
    yield from _guarded("data", data.look(directory, *((found.shards, found.workers) if found else (0, 0))))
    if url is not None:
        try:
            client = connect()
        except CommandError as error:
            yield problem(
                "cluster", "coordinator", f"not examined: {error}", "correct the option that the message names"
            )
            return
        yield from _guarded("cluster", cluster.look(lambda path: client.get(path, ANSWER_BYTES_MAX, TIMEOUT_S), url))


def _guarded(about: str, findings: Iterator[Finding]) -> Iterator[Finding]:
    """Turns the failure of a check into a finding, so that the other checks still run. For the machine and the settings
    it is a warning, since the system may lack what the check reads."""
    try:
        yield from findings
    except (OSError, ValueError, AttributeError) as error:
        say = warning if about in ("machine", "settings") else problem
        yield say(
            about, "examination", f"some checks were not made: {error}", "correct the cause, and run the doctor again"
        )


def write_text(findings: list[Finding], output: TextIO) -> None:
    for found in findings:
        output.write(_line(f"{found.level:8} {found.about}: {found.name}: {found.seen}"))
        if found.right:
            output.write(_line(f"{'':8}   to do: {found.right}"))
    counts = {level: sum(found.level == level for found in findings) for level in ("problem", "warning", "ok")}
    output.write(
        f"{counted(counts['problem'], 'problems')}, {counted(counts['warning'], 'warnings')}, {counts['ok']} ok\n"
    )


def _line(text: str) -> str:
    """The text as one line for a terminal, with control characters in file names and responses escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text) + "\n"


def write_json(findings: list[Finding], output: TextIO) -> None:
    """Write `{"well": bool, "findings": [{level, about, name, seen, right}]}`."""
    content = {"well": all(found.level != PROBLEM for found in findings), "findings": msgspec.to_builtins(findings)}
    output.write(json.dumps(content, indent=1) + "\n")


def run(directory: Path | None, url: str | None, connect: Connect, *, as_json: bool) -> int:
    """Run the command. Returns its exit code."""
    findings = list(examine(directory, url, connect))
    (write_json if as_json else write_text)(findings, sys.stdout)
    return PROBLEMS if any(found.level == PROBLEM for found in findings) else WELL
