"""Points at which the power goes, and what is found when it comes back."""

from __future__ import annotations

import logging
import random
import shutil
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from shared.durable import DAMAGED
from shared.process import boot
from tests.powerloss.crash import MODES, crash
from tests.powerloss.files import FileSystem
from tests.powerloss.history import History, require, some
from tests.powerloss.trace import Event, Op, mark_of, read
from tests.powerloss.workloads import WORKLOADS

TEXT_MAX = 600
WEIGHTS = dict.fromkeys(("wal", "wal-threads", "wal-layout", "sequencer", "manifest", "catalogue", "store"), 3)
"""How many points a workload gets beside the others: those not named here open whole shards, which takes 0.1 s of a
core a point."""
MARKED_SHARE = 0.4
"""Of the points, how many come right after an acknowledgement: what was forgotten to be synced shows there."""


@dataclass(frozen=True, slots=True, order=True)
class Point:
    """The power goes after `events` of the trace; what is not on the disk then is left as mode and seed say."""

    events: int
    mode: str
    seed: int

    def __str__(self) -> str:
        return f"{self.events}:{self.mode}:{self.seed}"

    @classmethod
    def parsed(cls, text: str) -> Point:
        events, mode, seed = text.split(":")
        return cls(int(events), mode, int(seed))


@dataclass(frozen=True, slots=True)
class Failure:
    point: Point
    text: str


@dataclass(slots=True)
class Verdict:
    """`points` looked at, `states` of them different ones."""

    points: int
    states: int
    failures: list[Failure]
    seconds: float = 0.0


def acknowledgements(events: Sequence[Event]) -> list[Point]:
    """Those right after each act, when nothing is left of what was not synced: most syncs that are missing show."""
    return [Point(at, "drop", 0) for at in _acknowledged(events, _settled(events))]


def _settled(events: Sequence[Event]) -> int:
    """The last time that everything was settled by decree; 0 if it never was."""
    return max((at for at in _marks(events) if mark_of(events[at - 1]).what == "settled"), default=0)


def _acknowledged(events: Sequence[Event], first: int) -> list[int]:
    return [at for at in _marks(events) if at > first and mark_of(events[at - 1]).what == "done"]


def _marks(events: Sequence[Event]) -> list[int]:
    return [at + 1 for at, entry in enumerate(events) if entry.op is Op.MARK]


def sample(events: Sequence[Event], count: int, seed: int) -> list[Point]:
    """Points by seed, in order, all of them after the last time that everything was settled by decree."""
    chance = random.Random(seed)
    first = _settled(events)
    acknowledged = _acknowledged(events, first)
    points = []
    for number in range(count):
        is_marked = acknowledged and chance.random() < MARKED_SHARE
        at = chance.choice(acknowledged) if is_marked else chance.randint(first, len(events))
        mode = "drop" if is_marked and chance.random() < 0.3 else chance.choice(MODES)
        points.append(Point(at, mode, number))
    return sorted(points)


def look(
    file: Path, name: str, points: Sequence[Point], *, failures_max: int = 1 << 30, is_lenient: bool = False
) -> Verdict:
    """Build the states of these points (ascending) and check each different one."""
    events = read(file)
    root = str(file.parent / "root")
    seen: dict[tuple[bytes, int], None] = {}
    verdict = Verdict(0, 0, [])
    for files, history, point in moments(events, root, points, is_lenient):
        verdict.points += 1
        state = crash(files, point.mode, point.seed)
        key = state.digest, sum(1 + act.is_done for act in history.acts)
        if key in seen:
            continue
        seen[key] = None
        verdict.states += 1
        with tempfile.TemporaryDirectory(dir=scratch(), prefix="powerloss-") as directory:
            state.write(Path(directory))
            try:
                check(name, Path(directory), history)
            except Exception as error:
                verdict.failures.append(Failure(point, f"{type(error).__name__}: {error}"[:TEXT_MAX]))
                if len(verdict.failures) >= failures_max:
                    break
    return verdict


def check(name: str, directory: Path, history: History) -> None:
    """Open this state on another boot of the system than that of the recording, and raise what is wrong with it. What
    a loss of power leaves is never damage."""
    with tempfile.NamedTemporaryFile("w", dir=scratch(), prefix="powerloss-boot-") as file:
        file.write(str(uuid.uuid4()))
        file.flush()
        with mock.patch.object(boot, "BOOT_ID", Path(file.name)):
            WORKLOADS[name].check(directory, history)
    damaged = [str(path.relative_to(directory)) for path in directory.rglob(f"*{DAMAGED}*")]
    require(not damaged, f"set aside as damaged: {some(damaged)}")


@dataclass(frozen=True, slots=True)
class Sampling:
    """How many points, by which seed, in how many shares, and whether new directories are there unsynced."""

    count: int
    seed: int
    shares: int
    is_lenient: bool


@contextmanager
def silence() -> Iterator[None]:
    """Nothing is logged meanwhile: each state tells of what was cut."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


def look_at_share(file: Path, name: str, how: Sampling, share: int) -> Verdict:
    """One share of the sample."""
    started = time.monotonic()
    points = sample(read(file), how.count, how.seed)[share :: how.shares]
    with silence():
        verdict = look(file, name, points, is_lenient=how.is_lenient)
    verdict.seconds = time.monotonic() - started
    return verdict


def moments(
    events: Sequence[Event], root: str, points: Sequence[Point], is_lenient: bool
) -> Iterator[tuple[FileSystem, History, Point]]:
    files, history = FileSystem(root, is_lenient=is_lenient), History()
    for point in points:
        while files.index < point.events:
            entry = events[files.index]
            if entry.op is Op.MARK:
                mark = mark_of(entry)
                history.add(mark)
                if mark.what == "settled":
                    files.settle()
            files.play(entry)
        yield files, history, point


def scratch() -> str:
    """Where states are written: in memory, if there is such a place."""
    shared = Path("/dev/shm")
    return str(shared) if shared.is_dir() and shutil.disk_usage(shared).free > 1 << 30 else tempfile.gettempdir()
