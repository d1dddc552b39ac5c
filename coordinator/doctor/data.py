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
from shared.manifest import FORMAT, HOLDS_DATA, NAME, Manifest, NewerFormat, copy_of
from shared.settings import SHARDS_USUAL_MAX

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
        yield problem(DATA, "directory", f"{data} is not a directory", "set TRIPTYCH_DATA to a directory")
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
        yield problem(DATA, "directory", f"{data} cannot be read: {error}", "make it readable for this user")


def _without_data(data: Path) -> Finding:
    others = len(os.listdir(data))
    if not others:
        return ok(DATA, "directory", f"{data} is empty; the first start creates the data")
    seen = f"{data} has no data of this service, but {counted(others, 'files')} of others"
    return warning(DATA, "directory", seen, "use a directory that nothing else uses")


def unusual_shards(shards: int, workers: int) -> Iterator[Finding]:
    """A warning if the workers would give a new directory more shards than usual."""
    if not shards and workers > SHARDS_USUAL_MAX:
        seen = f"the first start creates {workers}, because TRIPTYCH_WORKERS is {workers}"
        right = "set TRIPTYCH_SHARDS before it: the number of shards cannot be changed later"
        yield warning(DATA, "shards", seen, right)


def manifest(data: Path, shards: int, workers: int) -> Finding:
    restoring = f"restore it from its copy: cp {copy_of(data / NAME)} {data / NAME}"
    try:
        decoded = Manifest.decode((data / NAME).read_bytes())
    except FileNotFoundError:
        return problem(DATA, "format", f"{NAME} is missing", restoring)
    except NewerFormat as error:
        return problem(DATA, "format", str(error), "start the release that wrote it, or a later one")
    except ValueError as error:
        return problem(DATA, "format", f"{NAME} is damaged: {error}", restoring)
    if shards not in (0, decoded.shards):
        seen = f"the directory has {decoded.shards}, but TRIPTYCH_SHARDS is {shards}"
        right = f"set TRIPTYCH_SHARDS={decoded.shards}, or unset it: the number of shards cannot be changed"
        return problem(DATA, "shards", seen, right)
    if workers > decoded.shards:
        seen = f"the directory has {decoded.shards}, but TRIPTYCH_WORKERS is {workers}"
        right = f"set TRIPTYCH_WORKERS to at most {decoded.shards}: the number of shards cannot be changed"
        return problem(DATA, "shards", seen, right)
    if decoded.format != FORMAT:
        seen = f"{decoded.format}, of an earlier release; the next start upgrades it to {FORMAT}"
        return warning(DATA, "format", seen, f"make a backup before it: earlier releases refuse format {FORMAT}")
    seen = f"{FORMAT}, that of this release; {counted(decoded.shards, 'shards')}, cluster {decoded.cluster_id}"
    return ok(DATA, "format", seen)


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
        right = f"make the service's user the owner of everything in it, such as: chown -R {user} {data}"
        yield problem(DATA, "owner", f"{_some(foreign)} owned by another user", right)
    if open_:
        right = f"set mode 0600 for files and 0700 for directories: chmod -R go= {data}"
        yield warning(DATA, "modes", f"{_some(open_)} accessible to other users", right)
    else:
        yield ok(DATA, "modes", f"only the owner has access to all {len(states)} files and directories")
    if future:
        right = "correct the clock, and never set it back: the ages of blocks and segments are measured with it"
        yield warning(DATA, "times", f"{_some(future)} dated later than this machine's clock", right)


def contents(data: Path) -> Iterator[Finding]:
    """What `triptych check` says without the workers' files, and what was set aside or left over."""
    try:
        report = check.check(data, with_workers=False)
    except check.InUse:
        yield ok(DATA, "use", "in use, so it is not checked for damage; --url checks a running cluster")
        return
    except check.CannotCheck as error:
        yield problem(DATA, "damage", f"not checked: {error}", "correct what the message names")
        return
    yield ok(DATA, "use", "no process uses it")
    for found in report.damage:
        right = found.remedy or "run `triptych check` for details"
        yield problem(DATA, "damage", f"{found.path}: {found.what}; affected: {found.depends}", right)
    others = [Path(found.path) for found in report.findings if not found.is_damage]
    if others:
        right = "remove them while the cluster is stopped, or leave them: they only take space"
        seen = f"{_some(others)} left over from an interrupted operation, or not of this service"
        yield warning(DATA, "leftovers", seen, right)
    if not report.damage:
        yield ok(DATA, "damage", "none found in a quick check; `triptych check` reads all data")


def _some(paths: list[Path]) -> str:
    """How many there are, with the first of them."""
    return f"{paths[0]} is" if len(paths) == 1 else f"{paths[0]} and {counted(len(paths) - 1, 'others')} are"
