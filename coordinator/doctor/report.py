"""Runs the doctor's examinations and writes what they found."""

from __future__ import annotations

import http.client
import json
import os
import sys
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import msgspec

from coordinator.doctor import cluster, data, disk, machine, settings
from coordinator.doctor.cluster import Answer, Get
from coordinator.doctor.finding import PROBLEM, Finding, problem, warning
from shared.config import Settings

WELL, PROBLEMS = 0, 1
"""Exit codes: no problem, though there may be warnings; at least one problem. 2: the arguments are wrong."""
TIMEOUT_S = 20.0
URL_EXAMPLE = "http://127.0.0.1:9090"
ANSWER_BYTES_MAX = 64 << 20


def examine(directory: Path | None, url: str | None) -> Iterator[Finding]:
    """`directory`: None for that of the settings. With a `url`, the cluster there is asked as well."""
    found, findings = settings.load()
    yield from findings
    directory = directory or (found.data if found else Path(os.environ.get("TRIPTYCH_DATA", "data")))
    yield from _guarded("machine", machine.look(found or Settings()))
    yield from _guarded("machine", disk.look(directory))
    if found is not None:
        yield from _guarded("settings", settings.look(found, disk.total_bytes(directory)))
    yield from _guarded("data", data.look(directory, found.shards if found else None))
    if url is not None:
        try:
            get = _getting(url)
        except OSError as error:
            yield problem("cluster", "coordinator", f"--url is {url!r}", str(error))
            return
        yield from _guarded("cluster", cluster.look(get, url))


def _guarded(about: str, findings: Iterator[Finding]) -> Iterator[Finding]:
    """An examination that fails is a finding, and the others are made all the same. Of the machine and the settings it
    is a warning, since the system may lack what was to be read."""
    try:
        yield from findings
    except (OSError, ValueError, AttributeError) as error:
        say = warning if about in ("machine", "settings") else problem
        yield say(about, "examination", f"it could not be finished: {error}", "something that can be read")


def _getting(url: str) -> Get:
    """Sends requests to the cluster. Raises OSError when it gets no address."""
    parts = urllib.parse.urlsplit(url if "//" in url else f"//{url}")
    try:
        host, port = parts.hostname, parts.port or 9090
    except ValueError as error:
        raise OSError(str(error)) from error
    if parts.scheme not in ("", "http", "https") or not host:
        raise OSError(f"it must be such as {URL_EXAMPLE}")
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection

    def get(path: str) -> Answer:
        connection = kind(host, port, timeout=TIMEOUT_S)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return Answer(answer.status, answer.read(ANSWER_BYTES_MAX), answer.headers.get("Date", ""))
        except http.client.HTTPException as error:
            raise OSError(f"what it answers is no HTTP: {error!r}") from error
        finally:
            connection.close()

    return get


def write_text(findings: list[Finding], output: TextIO) -> None:
    for found in findings:
        output.write(_line(f"{found.level:8} {found.about}: {found.name}: {found.seen}"))
        if found.right:
            output.write(_line(f"{'':8}   right: {found.right}"))
    counts = {level: sum(found.level == level for found in findings) for level in ("problem", "warning", "ok")}
    output.write(f"{counts['problem']} problems, {counts['warning']} warnings, {counts['ok']} are well\n")


def _line(text: str) -> str:
    """One line for a terminal, whatever the names of files or the answers of a server have in them."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text) + "\n"


def write_json(findings: list[Finding], output: TextIO) -> None:
    """Write `{"well": bool, "findings": [{level, about, name, seen, right}]}`."""
    content = {"well": all(found.level != PROBLEM for found in findings), "findings": msgspec.to_builtins(findings)}
    output.write(json.dumps(content, indent=1) + "\n")


def run(directory: Path | None, url: str | None, *, as_json: bool) -> int:
    """Run the command. Returns its exit code."""
    findings = list(examine(directory, url))
    (write_json if as_json else write_text)(findings, sys.stdout)
    return PROBLEMS if any(found.level == PROBLEM for found in findings) else WELL
