"""Checks of a data directory: its owner, format, modes and leftovers, and the damage that shows without reading all of
it. They change nothing; the directory may be in use."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from coordinator import check
from coordinator.doctor.finding import Finding, ok, problem, warning
from coordinator.plurals import counted
from shared.config import SHARDS_USUAL_MAX
from shared.manifest import FORMAT, HOLDS_DATA, NAME, Manifest, NewerFormat

DATA = "data"
PATHS_MAX = 200_000
"""How many files and directories of a data directory are looked at."""
FUTURE_S = 300.0
"""A modification time further in the future than this, in seconds, means that the clock was set back."""


def look(data: Path, shards: int, workers: int = 0) -> Iterator[Finding]:
    """`shards`, `workers`: the settings; 0 if they are not set or cannot be read."""
    if not data.exists():
        yield ok(DATA, "directory", f"{data} does not exist yet; the first start creates it")
        yield from unusual_shards(shards, workers)
        return
    if not data.is_dir():
        yield problem(DATA, "directory", f"{data} is not a directory", "a directory: TRIPTYCH_DATA")
        return
    try:
        if not any((data / name).exists() for name in (NAME, *HOLDS_DATA)):
            yield _without_data(data)
            yield from unusual_shards(shards, workers)
            return
        yield manifest(data, shards, workers)
        yield from modes(data)
        yield from contents(data)
    except OSError as error:
        yield problem(DATA, "directory", f"it cannot be read: {error}", "a directory that this user may read")


def _without_data(data: Path) -> Finding:
    others = len(os.listdir(data))
    if not others:
        return ok(DATA, "directory", f"{data} is empty; the first start fills it")
    seen = f"{data} has no data, but {counted(others, 'files')} that this service does not know"
    return warning(DATA, "directory", seen, "a directory of its own")


def unusual_shards(shards: int, workers: int) -> Iterator[Finding]:
    """A warning if the workers would give a new directory more shards than usual."""
    if not shards and workers > SHARDS_USUAL_MAX:
        seen = f"the first start creates {workers}, because TRIPTYCH_WORKERS is {workers}; their number is then fixed"
        yield warning(DATA, "shards", seen, "TRIPTYCH_SHARDS, with the number that is meant")


def manifest(data: Path, shards: int, workers: int) -> Finding:
    try:
        decoded = Manifest.decode((data / NAME).read_bytes())
    except FileNotFoundError:
        return problem(DATA, "format", f"{NAME} is missing", f"its copy: cp {check.copy_of(data / NAME)} {data / NAME}")
    except NewerFormat as error:
        return problem(DATA, "format", str(error), "the release that wrote it, or a later one")
    except ValueError as error:
        right = f"its copy: cp {check.copy_of(data / NAME)} {data / NAME}"
        return problem(DATA, "format", f"{NAME} is damaged: {error}", right)
    if shards not in (0, decoded.shards):
        seen = f"{counted(decoded.shards, 'shards')}, and TRIPTYCH_SHARDS is {shards}"
        return problem(DATA, "format", seen, f"TRIPTYCH_SHARDS={decoded.shards} or none; the number is fixed")
    if workers > decoded.shards:
        seen = f"{counted(decoded.shards, 'shards')}, and TRIPTYCH_WORKERS is {workers}"
        return problem(
            DATA, "format", seen, f"at most {counted(decoded.shards, 'workers')}; the number of shards is fixed"
        )
    if decoded.format != FORMAT:
        seen = f"{decoded.format}, of an earlier release; the next start upgrades it to {FORMAT}"
        return warning(DATA, "format", seen, f"a backup before that: earlier releases refuse format {FORMAT}")
    return ok(
        DATA, "format", f"that of this release, {counted(decoded.shards, 'shards')}, cluster {decoded.cluster_id}"
    )


def modes(data: Path) -> Iterator[Finding]:
    """Owners, modes and times of everything in the directory."""
    paths = [data, *islice(data.rglob("*"), PATHS_MAX)]
    states = []
    for path in paths:
        try:
            states.append((path, path.lstat()))
        except FileNotFoundError:
            continue  # removed in the meantime
    user = os.geteuid()
    foreign = [path for path, state in states if state.st_uid != user and user != 0]
    open_ = [path for path, state in states if state.st_mode & 0o077 and not stat.S_ISLNK(state.st_mode)]
    future = [path for path, state in states if state.st_mtime > time.time() + FUTURE_S]
    if foreign:
        right = f"all of it owned by the user of the service: chown -R {user} {data}"
        yield problem(DATA, "owner", f"{_some(foreign)} of another user", right)
    if open_:
        right = f"0600 and 0700: chmod -R go= {data}"
        yield warning(DATA, "modes", f"{_some(open_)} open to other users", right)
    else:
        yield ok(DATA, "modes", f"{len(states)} files and directories are the owner's alone")
    if future:
        right = "a clock that is never set back: ages of blocks and segments are measured with it"
        yield warning(DATA, "times", f"{_some(future)} written in the future, by the clock of this machine", right)


def contents(data: Path) -> Iterator[Finding]:
    """What `triptych check` says without the workers' files, and what was set aside or left over."""
    try:
        report = check.check(data, with_workers=False)
    except check.CannotCheck as error:
        yield ok(DATA, "use", f"not checked for damage: {error}; --url checks a running cluster")
        return
    yield ok(DATA, "use", "no process uses it")
    for found in report.damage:
        right = found.remedy or "see `triptych check`"
        yield problem(DATA, "damage", f"{found.path}: {found.what}; concerned: {found.depends}", right)
    others = [Path(found.path) for found in report.findings if not found.is_damage]
    if others:
        right = "nothing, or remove them while the cluster is stopped"
        yield warning(DATA, "leftovers", f"{_some(others)} left over, or no file of this service", right)
    if not report.damage:
        yield ok(DATA, "damage", "none that shows without reading all of it; `triptych check` does")


def _some(paths: list[Path]) -> str:
    """How many there are, with the first of them."""
    return f"{paths[0]} is" if len(paths) == 1 else f"{paths[0]} and {counted(len(paths) - 1, 'others')} are"
