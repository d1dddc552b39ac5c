"""The samples, some of which are histograms, and the exemplars of a shard: written, sealed into blocks, compacted,
deleted, dropped, in both modes of durability."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from coordinator.series import remote_write
from loadtest.harness.remote_write_bodies import UNLIMITED, Series
from shared.promql.ast import Matcher
from shared.settings import Settings
from tests.powerloss.history import Act, History, Violation, require, some
from tests.powerloss.recording import Recorder
from tests.powerloss.workloads import buffered, exemplars, histograms
from tests.powerloss.workloads.store import killed as killed_store
from tests.powerloss.workloads.wal import killed as killed_log
from tests.unit.series_shard import TIMEOUT_S, Shard
from worker.series.head import NEVER
from worker.series.index.texts import TextTable
from worker.series.part import SeriesPart
from worker.series.services import SeriesServices
from worker.series.writing import write_to
from worker.storage.objects import LocalObjects
from worker.storage.rows.store import Store
from worker.storage.wal.log import SERIES, WriteAheadLog

STEPS = 70
WINDOW_MS = 1000
FILE_BYTES = 2 << 10
FAR_MS = 1 << 60
RETENTION_MS = 2000

Samples = dict[tuple[str, int], float]
"""(job, Unix ms) → value."""


class Part(Shard):
    """A shard's series whose background work is done when the workload says so."""

    def __init__(self, path: Path, durability: str) -> None:
        self.durability = durability
        super().__init__(path)

    def open(self) -> None:
        self.store = Store(self.path / "store")
        self.log = WriteAheadLog(self.path / "wal", file_bytes=FILE_BYTES).open()
        self.symbols = TextTable()
        own = dataclasses.replace(
            Settings(), block_window_ms=WINDOW_MS, shards=1, workers=1, durability=self.durability
        )
        self.part = SeriesPart(
            self.store,
            SeriesServices(own, self.symbols),
            LocalObjects(self.path / "blocks"),
            self.log.stream(0, SERIES),
        )
        self.part._upkeep.sealing.tick = lambda now_ms: None  # type: ignore[method-assign]
        self.part.load()

    def kill(self) -> None:
        """As if the process had died: nothing is synced or flushed."""
        self.part.close()
        killed_store(self.store)
        killed_log(self.log)

    def compact(self) -> None:
        while self.part._upkeep.blocks._compact(FAR_MS):
            pass
        self.part._upkeep.blocks._bury()

    def write(self, series: list[Series]) -> int:
        split_request = remote_write.split(exemplars.body(series), 1, UNLIMITED)
        return write_to(self.part, [*split_request.parts[0], *histograms.frames(series)], TIMEOUT_S)

    def held(self) -> Samples:
        return histograms.held(self)


def run(durability: str, root: Path, recorder: Recorder, chance: random.Random) -> None:
    shard = Part(root, durability)
    recorder.settled()
    writer = _Writer(chance)
    for step in range(STEPS):
        how = chance.random()
        if how < 0.62:
            samples = writer.samples(step)
            recorder.act(["write", samples], partial(shard.write, grouped(samples)))
        elif how < 0.72:
            before_ms = chance.choice((NEVER, step // 10 * WINDOW_MS))
            seal = partial(shard.part._upkeep.sealing._seal, before_ms)
            recorder.act(["seal", None if before_ms == NEVER else before_ms], seal)
        elif how < 0.8:
            recorder.act(["compact"], shard.compact)
        elif how < 0.88:
            _delete(shard, recorder, chance, step)
        elif how < 0.92:
            _drop(shard, recorder, step)
        else:
            recorder.act(["stop"], chance.choice((shard.close, shard.kill)))
            shard.open()
    shard.close()


class _Writer:
    """No value is written twice, so that a sample tells which write it is of."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._series = 0
        self._value = 0

    def samples(self, step: int) -> list[tuple[str, int, float]]:
        """Of some known series and some new ones, mostly of now, and at times late."""
        chance = self._chance
        new = chance.choice((0, 0, 1, 3)) if self._series else 2
        self._series += new
        jobs = {*range(self._series - new, self._series), *(chance.randrange(self._series) for _ in range(4))}
        samples = []
        for job in sorted(jobs):
            self._value += 1
            at = step * 100 - (chance.randrange(1500) if chance.random() < 0.2 else 0)
            samples.append((f"job-{job}", max(at, 0), float(self._value)))
        return samples


def grouped(samples: Sequence[tuple[str, int, float]]) -> list:
    return [({"__name__": "m", "job": job}, [(at, value)]) for job, at, value in samples]


def _delete(shard: Part, recorder: Recorder, chance: random.Random, step: int) -> None:
    jobs = sorted({job for job, _ in shard.held()})
    if not jobs:
        return
    job, start = chance.choice(jobs), chance.randrange(step * 100 + 1)
    matcher = [[Matcher("job", "=", job)]]
    recorder.act(
        ["delete", job, start, start + 1000], lambda: shard.part.delete(matcher, start, start + 1000, TIMEOUT_S)
    )


def _drop(shard: Part, recorder: Recorder, step: int) -> None:
    """What retention drops, told by block, since others may have samples of the same time."""
    oldest_ms = step * 100 - RETENTION_MS
    blocks = [block for block in shard.part.contents.layers.blocks if block.row.latest_ms < oldest_ms]
    if not blocks:
        return
    before = shard.held()
    windows = [(block.row.earliest_ms, block.row.latest_ms) for block in blocks]
    # Exactly what is gone is known when it is; until then anything of these times may be.
    done = recorder.begin(["drop", windows])
    shard.part._upkeep.blocks._replace(blocks, [])
    after = shard.held()
    done([[job, at] for job, at in before if (job, at) not in after])


def check(durability: str, root: Path, history: History) -> None:
    """The samples are those of all acknowledged acts, or what may be left of them (`buffered`). They still are after
    something is written and the shard is opened again."""
    shard = Part(root, durability)
    damage = shard.part._damage.texts("series")
    require(not damage, f"it says that it is damaged: {damage}")
    held, held_exemplars = shard.held(), exemplars.held(shard.part)
    samples = [("job-0", 10**6, -1.0), ("job-new", 10**6, -2.0)]
    shard.write(grouped(samples))
    shard.reopen()
    again, exemplars_again = shard.held(), exemplars.held(shard.part)
    shard.close()
    expected = held | {(job, at): value for job, at, value in samples}
    require(again == expected, f"the second start differs: {_difference(again, expected)}")
    require(exemplars_again == held_exemplars | set(samples), "the exemplars of the second start differ")
    exemplars.match(held_exemplars, history, is_synced=durability == "synced")
    if durability == "synced":
        _match(held, history)
    else:
        buffered.match(held, history)


def _match(held: Samples, history: History) -> None:
    """Find the number of acts after which the samples were these: all that are done, and perhaps the one under way.
    Raises Violation."""
    states, first = _states(history.acts), history.done
    for number in range(len(states) - 1, first - 1, -1):
        if _is_state(held, states[number], [act for act in history.acts[number:] if act.told[0] == "drop"]):
            return
    written = {tuple(own) for act in history.acts if act.told[0] == "write" for own in act.told[1]}
    invented = [(own, value) for own, value in held.items() if (*own, value) not in written]
    require(not invented, f"samples were invented: {some(invented)}")
    raise Violation(f"not the samples of {first} of {len(states) - 1} acts: {_difference(held, states[first])}")


def _is_state(held: Samples, state: Samples, removals: Sequence[Act]) -> bool:
    """Whether the samples are those of the state, but for what removals after it may have removed."""
    if held == state:
        return True
    missing = [own for own, value in state.items() if held.get(own) != value]
    return len(held) == len(state) - len(missing) and all(
        own not in held and any(_removes(act, own) for act in removals) for own in missing
    )


def _removes(act: Act, own: tuple[str, int]) -> bool:
    return any(start <= own[1] <= end for start, end in act.told[1])


def _states(acts: Sequence[Act]) -> list[Samples]:
    """The samples after each number of acts; a dropping that was not acknowledged has done nothing yet."""
    states: list[Samples] = [{}]
    for act in acts:
        now = dict(states[-1])
        _APPLY.get(act.told[0], _nothing)(now, act)
        states.append(now)
    return states


def _nothing(now: Samples, act: Act) -> None:
    pass


def _apply_write(now: Samples, act: Act) -> None:
    now.update({(job, at): value for job, at, value in act.told[1]})


def _apply_delete(now: Samples, act: Act) -> None:
    _, job, start, end = act.told
    for own in [own for own in now if own[0] == job and start <= own[1] <= end]:
        del now[own]


def _apply_drop(now: Samples, act: Act) -> None:
    for job, at in act.result or ():
        now.pop((job, at), None)


_APPLY: dict[str, Callable[[Samples, Act], Any]] = {
    "write": _apply_write,
    "delete": _apply_delete,
    "drop": _apply_drop,
}


def _difference(held: Samples, expected: Samples) -> str:
    missing = {own: value for own, value in expected.items() if own not in held}
    wrong = [(own, value, held[own]) for own, value in expected.items() if held.get(own, value) != value]
    added = {own: value for own, value in held.items() if own not in expected}
    return f"missing {some(missing.items())}; different {some(wrong)}; too much {some(added.items())}"
