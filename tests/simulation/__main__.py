"""Run many histories, or one: `python -m tests.simulation --histories 100000 --seed 0 --jobs 2`.

Prints how many histories a second, and fault × rounds × verdict. The first violations are made small and shown with
their trace; `--history SEED` runs and shows one history.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import math
import multiprocessing
import multiprocessing.pool
import os
import re
import sys
import time
from collections import Counter
from dataclasses import dataclass, field

from tests.simulation.choices import octets_of

SHOWN_MAX, SHOWN_CHARACTERS = 3, 200
CHUNK = 100
CHUNKS_OF_A_PROCESS = 20
"""Each history leaves some 0.3 MB behind: tasks of event loops that were killed."""


@dataclass
class Tally:
    histories: int = 0
    events: int = 0
    batches: int = 0
    acknowledged: int = 0
    rounds: Counter[str] = field(default_factory=Counter)
    violated: Counter[str] = field(default_factory=Counter)
    violations: list[tuple[int, str]] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        self.histories += other.histories
        self.events += other.events
        self.batches += other.batches
        self.acknowledged += other.acknowledged
        self.rounds += other.rounds
        self.violated += other.violated
        self.violations += other.violations


def run_chunk(task: tuple[int, int, str]) -> Tally:
    """`count` histories from seed `first` on, with the defect of that name, if any, put back."""
    first, count, defect = task
    from tests.simulation.defects import put_back
    from tests.simulation.history import run
    from tests.simulation.patches import simulated

    gc.freeze()
    tally = Tally()
    with simulated(), put_back(defect):
        for seed in range(first, first + count):
            outcome = run(octets_of(seed))
            tally.histories += 1
            tally.events += outcome.events
            tally.batches += outcome.batches
            tally.acknowledged += outcome.acknowledged
            for fault in outcome.faults or ("no fault",):
                tally.rounds[fault] += 1
                tally.violated[fault] += bool(outcome.violation)
            if outcome.violation:
                tally.violations.append((seed, outcome.violation))
    return tally


def show(seed: int, defect: str, *, smaller: bool) -> None:
    """Print the trace of a history, made smaller if it fails."""
    from tests.simulation.defects import put_back
    from tests.simulation.history import run
    from tests.simulation.patches import simulated
    from tests.simulation.shrinking import shrunk

    with simulated(), put_back(defect):
        octets = octets_of(seed)
        kind = _kind(run(octets).violation)
        if kind and smaller:
            octets = shrunk(octets, lambda candidate: _kind(run(candidate).violation) == kind)
        outcome = run(octets, tracing=True)
    print(f"seed {seed}, {len(octets)} bytes of choices")
    print("\n".join(outcome.trace))
    print(outcome.violation or "no violation")


def _kind(violation: str) -> str:
    return re.sub(r"b?'[^']*'|[0-9(\[].*", "", violation)[:40]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__.splitlines()[0])
    parser.add_argument("--histories", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0, help="of the first history; each has the next number")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no more histories after that time")
    parser.add_argument("--defect", default="", help="put a defect of tests/simulation/defects.py back")
    parser.add_argument("--defects", action="store_true", help="see within how many histories each defect is found")
    parser.add_argument("--history", type=int, help="show the history of this seed only")
    parser.add_argument("--whole", action="store_true", help="show it as it is, not made smaller")
    parser.add_argument("--stop", action="store_true", help="stop at the first violation")
    options = parser.parse_args()
    if options.history is not None:
        show(options.history, options.defect, smaller=not options.whole)
        return 0
    if options.defects:
        return find_defects(options.histories, options.seed, options.jobs)
    started = time.monotonic()
    tally = Tally()
    end = options.seed + options.histories
    tasks = [(at, min(CHUNK, end - at), options.defect) for at in range(options.seed, end, CHUNK)]
    with _pool(options.jobs, CHUNKS_OF_A_PROCESS) as pool:
        for part in pool.imap(run_chunk, tasks):
            tally.add(part)
            for seed, text in part.violations:
                print(f"seed {seed}: {text[:SHOWN_CHARACTERS]}", file=sys.stderr, flush=True)
            if (options.stop and tally.violations) or time.monotonic() - started > options.seconds:
                break
    report(tally, time.monotonic() - started)
    for seed, _ in tally.violations[:SHOWN_MAX]:
        show(seed, options.defect, smaller=True)
    return 1 if tally.violations else 0


def _pool(jobs: int, tasks_of_a_process: int) -> multiprocessing.pool.Pool:
    importlib.import_module("tests.simulation.history")  # once, before the processes are forked
    return multiprocessing.get_context("fork").Pool(jobs, maxtasksperchild=tasks_of_a_process)


def find_defects(histories: int, seed: int, jobs: int) -> int:
    """Print within how many histories each defect is found; the exit status."""
    from tests.simulation.defects import DEFECTS

    tasks = [(name, seed, histories) for name in DEFECTS]
    missed = 0
    with _pool(jobs, 1) as pool:
        for name, count, violation, without in pool.imap(find_defect, tasks):
            missed += bool(without) or not violation
            verdict = f"found in history {count}: {violation[:SHOWN_CHARACTERS]}" if violation else f"MISSED in {count}"
            if without:
                verdict = f"NOT TOLD: history {count} is violated without it too: {without[:SHOWN_CHARACTERS]}"
            print(f"{name:24} ({DEFECTS[name].text}): {verdict}", flush=True)
    return 1 if missed else 0


def find_defect(task: tuple[str, int, int]) -> tuple[str, int, str, str]:
    """(name, histories that were run, the violation or "", that of the same history without the defect or "")."""
    name, seed, histories = task
    from tests.simulation.defects import put_back
    from tests.simulation.history import run
    from tests.simulation.patches import simulated

    with simulated():
        for count in range(histories):
            with put_back(name):
                violation = run(octets_of(seed + count)).violation
            if violation:
                return name, count + 1, violation, run(octets_of(seed + count)).violation
    return name, histories, "", ""


def report(tally: Tally, seconds: float) -> None:
    print(
        f"{tally.histories} histories in {seconds:.0f} s ({tally.histories / seconds:.0f}/s), {tally.events} events, "
        f"{tally.acknowledged} of {tally.batches} batches acknowledged, {len(tally.violations)} violations"
    )
    print(f"{'fault':28}{'histories':>12}{'violations':>12}  verdict")
    for fault, rounds in sorted(tally.rounds.items()):
        bad = tally.violated[fault]
        print(f"{fault:28}{rounds:>12}{bad:>12}  {'VIOLATED' if bad else 'kept'}")
    kinds: dict[str, list[int]] = {}
    for seed, text in tally.violations:
        kinds.setdefault(_kind(text), []).append(seed)
    for kind, seeds in sorted(kinds.items(), key=lambda item: -len(item[1])):
        print(f"{len(seeds)} × {kind}: seeds {seeds[:5]}")


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":
        # The order of sets of bytes and texts is a choice too.
        os.execve(
            sys.executable,
            [sys.executable, "-m", "tests.simulation", *sys.argv[1:]],
            {**os.environ, "PYTHONHASHSEED": "0"},
        )
    sys.exit(main())
