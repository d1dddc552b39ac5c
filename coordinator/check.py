"""`triptych check`: reads a data directory that no process uses, and reports what is damaged, what depends on it, and
what is still intact. It changes nothing.

This module checks the coordinator's files; `worker.check` checks the workers' files in a separate process.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import TextIO

import msgspec

from coordinator.log import policy_document, sequencer
from coordinator.plurals import counted
from shared import identity
from shared.control import LocalControl
from shared.data_files import (
    LEFT_OVER,
    SET_ASIDE,
    UNKNOWN,
    Finding,
    LogFacts,
    WorkersReport,
    files_in,
    kind_of,
    numbered,
)
from shared.manifest import HOLDS_DATA, NAME, Manifest, copy_of
from shared.process import modules

WELL, DAMAGED, CANNOT_CHECK = 0, 1, 2
"""Exit codes."""
LOCKS = ("coordinator.lock", "workers.lock")
STATE, POLICIES = "sequencer/state", "sequencer/policies"
_RESTORE = "restore it from a copy"
_WRITTEN_AGAIN = "nothing: the next start writes it again"
_NAMED = ("shards", identity.SHARD), ("wal", identity.LOG)


class CannotCheck(Exception):
    """The directory cannot be checked. The message, one line, says why."""


class InUse(CannotCheck):
    """A process uses the directory."""


@dataclass(slots=True)
class Report:
    """`files`: the number of files by kind. `findings`: damage, and remarks that are not damage."""

    files: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)

    @property
    def damage(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.is_damage]

    @property
    def damaged_paths(self) -> set[str]:
        return {finding.path for finding in self.damage}


def check(data: Path, *, with_workers: bool = True) -> Report:
    """Check the data directory. Without `with_workers`, the workers' files are not read.

    Raises CannotCheck if it is not a data directory, is in use, or cannot be read.
    """
    if not any((data / name).exists() for name in (NAME, *HOLDS_DATA)):
        raise CannotCheck(f"{data} is not a data directory: it has no {NAME}")
    try:
        with _locked(data):
            report = Report()
            shards = _check_manifest(data, report.findings)
            workers = _ask_workers(data) if with_workers else WorkersReport([], [])
            report.findings += workers.findings
            report.findings += _check_state(data / STATE, workers.log)
            report.findings += _check_policies(data / POLICIES)
            report.findings += _check_shards(data / "shards", shards)
            report.findings += _check_identities(data)
            _sort_files(data, report)
            return report
    except OSError as error:
        raise CannotCheck(f"{data} cannot be read: {error}") from error


@contextmanager
def _locked(data: Path) -> Iterator[None]:
    """Hold the locks of the directory, so that no cluster starts on it. Raises CannotCheck if one is held already."""
    with ExitStack() as stack:
        for name in LOCKS:
            try:
                descriptor = os.open(data / name, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                continue
            stack.callback(os.close, descriptor)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:
                raise InUse(f"{data} is in use: a process holds {name}; stop the cluster first") from None
        yield


def _ask_workers(data: Path) -> WorkersReport:
    process = subprocess.run(modules.command("worker.check", str(data)), capture_output=True, check=False)
    if process.returncode:
        reason = process.stderr.decode(errors="replace").strip().splitlines() or [f"exit code {process.returncode}"]
        raise CannotCheck(f"the workers' files of {data} cannot be checked: {reason[-1]}")
    return msgspec.json.decode(process.stdout, type=WorkersReport)


# Files of the coordinator


def _check_manifest(data: Path, findings: list[Finding]) -> int | None:
    """The number of shards; None if neither the manifest nor its copy can be read."""
    manifest, copy = (_read_manifest(data, path, findings) for path in (data / NAME, copy_of(data / NAME)))
    if manifest is not None and copy is not None and manifest != copy:
        what = (
            f"it names cluster {copy.cluster_id} with {counted(copy.shards, 'shards')}, but {NAME} names "
            f"{manifest.cluster_id} with {manifest.shards}"
        )
        remedy = "remove the one that does not belong to this directory"
        findings.append(Finding(_copy_name(data), what, "everything: a start refuses", remedy))
    readable = manifest or copy
    return None if readable is None else readable.shards


def _copy_name(data: Path) -> str:
    return copy_of(data / NAME).relative_to(data).as_posix()


def _read_manifest(data: Path, path: Path, findings: list[Finding]) -> Manifest | None:
    name = path.relative_to(data).as_posix()
    depends = "everything: a start refuses"
    remedy = f"restore it from its copy, if that is intact: cp {copy_of(data / NAME)} {path}"
    if path != data / NAME:
        depends, remedy = "nothing, as long as the manifest itself is intact", _WRITTEN_AGAIN
    try:
        content = path.read_bytes()
        manifest = Manifest.decode(content)
        if content != manifest.encode():
            raise ValueError("its content differs from what was written")
    except FileNotFoundError:
        findings.append(Finding(name, "it is missing", depends, remedy))
        return None
    except ValueError as error:
        findings.append(Finding(name, str(error), depends, remedy))
        return None
    return manifest


def _check_state(path: Path, shards: Sequence[LogFacts]) -> Iterator[Finding]:
    above = max((facts.above for facts in shards), default=0)
    depends = "the log's sequence numbers: the log refuses to start"
    remedy = f"{_RESTORE}, or remove it: sequence numbers then continue above the highest one in the shards"
    try:
        state = sequencer.decode(path.read_bytes())
    except FileNotFoundError:
        if any(facts.records for facts in shards):
            depends = "the start times of segments; records of revoked batches may become readable again"
            yield Finding(
                STATE, f"it is missing, but the shards have records up to number {above - 1}", depends, _RESTORE
            )
        return
    except ValueError as error:
        yield Finding(STATE, str(error), depends, remedy)
        return
    following = state.limit if state.next is None else state.next
    if following < above:
        what = f"its next sequence number is {following}, but the shards have records up to {above - 1}"
        yield Finding(STATE, what, "sequence numbers: some would be assigned twice", remedy)
    known_segments = {segment[0] for segment in state.segments}
    for facts in shards:
        unknown_segments = [
            number
            for number in facts.segments
            if number not in known_segments and number >= min(known_segments, default=0)
        ]
        if unknown_segments:
            what = f"it lacks the segments {unknown_segments}, of which shard {facts.shard} has records"
            yield Finding(STATE, what, "these records: they may not be found", remedy)


def _check_policies(path: Path) -> Iterator[Finding]:
    try:
        policy_document.decode(path.read_bytes())
    except FileNotFoundError:
        return  # a log without policies has no such file
    except ValueError as error:
        remedy = f"{_RESTORE}, or remove it: the log then has no policies until they are set again"
        yield Finding(POLICIES, str(error), "which records the log retains: a start refuses", remedy)


def _check_shards(directory: Path, count: int | None) -> Iterator[Finding]:
    """Compare the directories of the shards with the manifest's number of shards."""
    present = {int(path.name) for path in numbered(directory)}
    if count is None or (not present and not (directory.parent / "wal").exists()):
        return
    for number in sorted(set(range(count)) - present):
        depends = "all data of the shard: a start refuses"
        yield Finding(f"shards/{number:04d}", "it is missing", depends, _RESTORE)
    for number in sorted(present - set(range(count))):
        what = f"the manifest has only {counted(count, 'shards')}, from 0 to {count - 1}"
        yield Finding(
            f"shards/{number:04d}", what, "nothing: it is not read", "move it to the data directory to which it belongs"
        )


def _check_identities(data: Path) -> Iterator[Finding]:
    """Check that the identity file of each directory of a shard or a log names this cluster and this directory."""
    cluster_id = _cluster_of(data)
    directories = [(path, kind) for folder, kind in _NAMED for path in numbered(data / folder)]
    has_identities = any(
        (path / identity.NAME).exists() for path, _ in directories
    )  # an identity is written when a directory is first used
    if has_identities and not any(folder.exists() for folder in data.glob("wal*")):
        depends = "acknowledged records that were not in stores and blocks yet: a start refuses"
        yield Finding("wal", "it is missing", depends, _RESTORE)
    for directory, kind in directories:
        file, harmless = directory / identity.NAME, ("nothing", _WRITTEN_AGAIN)
        try:
            stored = identity.read(LocalControl(directory))
        except ValueError as error:
            yield Finding(file.relative_to(data).as_posix(), str(error), *harmless)
            continue
        content = "store" if kind == identity.SHARD else "files"
        if stored is not None and not (directory / content).exists():
            depends = "everything that was in it"
            yield Finding((directory / content).relative_to(data).as_posix(), "it is missing", depends, _RESTORE)
        if stored is None and has_identities and any(directory.iterdir()):
            yield Finding(file.relative_to(data).as_posix(), "it is missing", *harmless)
        elif stored is not None and stored != (cluster_id or stored[0], kind, int(directory.name)):
            what = f"it is the directory of {stored[1]} {stored[2]} of cluster {stored[0]}"
            what += f", but this is cluster {cluster_id}" if cluster_id not in (None, stored[0]) else ""
            remedy = "put each directory back where it was"
            yield Finding(directory.relative_to(data).as_posix(), what, "everything: a start refuses", remedy)


def _cluster_of(data: Path) -> str | None:
    with suppress(OSError, ValueError):
        return Manifest.decode((data / NAME).read_bytes()).cluster_id
    return None


def _sort_files(data: Path, report: Report) -> None:
    """Count the files by kind, and report unknown files and those set aside or left over that no finding names yet."""
    reported_paths = {finding.path for finding in report.findings}
    for path in files_in(data):
        kind = kind_of(path)
        report.files[kind] += 1
        if path in reported_paths:
            continue
        if kind == SET_ASIDE:
            what, remedy = "it was damaged and is set aside", "delete it to accept the loss"
            report.findings.append(Finding(path, what, "its content", remedy))
        elif kind in (LEFT_OVER, UNKNOWN):
            what = "left over from an interrupted operation" if kind == LEFT_OVER else "not a file of this service"
            report.findings.append(Finding(path, what, "nothing", is_damage=False))


# Output


def write_text(report: Report, output: TextIO) -> None:
    """Write the number of intact files and the findings by kind of file, and the totals in the last line."""
    ordered = sorted(report.findings, key=lambda finding: (finding.kind, finding.path))
    by_kind = {kind: list(findings) for kind, findings in groupby(ordered, key=lambda finding: finding.kind)}
    damaged = Counter(kind_of(path) for path in report.damaged_paths if path)
    for kind in sorted(report.files.keys() | by_kind.keys()):
        intact = max(0, report.files[kind] - damaged[kind])
        total = max(report.files[kind], intact + damaged[kind])
        output.write(f"{kind}: {intact} of {counted(total, 'files')} intact\n")
        for finding in by_kind.get(kind, ()):
            _write_finding(finding, output)
    files = counted(sum(report.files.values()), "files")
    if report.damage:
        output.write(f"{counted(len(report.damaged_paths), 'places')} damaged; {files} checked\n")
    else:
        output.write(f"no damage found; {files} checked\n")


def _write_finding(finding: Finding, output: TextIO) -> None:
    output.write(f"  {finding.path}: {finding.what}\n")
    if finding.is_damage:
        output.write(f"    affected: {finding.depends}\n")
        if finding.good:
            output.write(f"    still intact: {finding.good}\n")
        output.write(f"    to do: {finding.remedy}\n")


def write_json(report: Report, output: TextIO) -> None:
    """Write `{"well": bool, "files": {kind: count}, "findings": [{kind, path, what, …}]}`."""
    findings = [{"kind": finding.kind, **msgspec.to_builtins(finding)} for finding in report.findings]
    content = {"well": not report.damage, "files": dict(sorted(report.files.items())), "findings": findings}
    output.write(json.dumps(content, indent=1) + "\n")


def run(data: Path, *, as_json: bool) -> int:
    """Run the command. Returns its exit code."""
    try:
        report = check(data)
    except CannotCheck as error:
        sys.stderr.write(f"triptych: {error}\n")
        return CANNOT_CHECK
    (write_json if as_json else write_text)(report, sys.stdout)
    return DAMAGED if report.damage else WELL
