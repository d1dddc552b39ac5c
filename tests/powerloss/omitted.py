"""`python -m tests.powerloss.omitted [--seed S] [PLACE…]`: every sync left out one at a time, and who notices."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from tests.powerloss.omissions import UNNOTICED, places, workloads_of
from tests.powerloss.points import acknowledgements, look, sample, scratch, silence
from tests.powerloss.recording import record
from tests.powerloss.trace import read

PROCESSES = 2
POINTS = 80
"""Beside the acknowledgements."""
SEEDS = 4
"""So many recordings are tried, one after the other, for what no other has noticed."""
TIMEOUT_S = 1200.0


def notice(directory: Path, run: str, seed: int, points: int = POINTS) -> str:
    """The first violation that the points of a recorded run show, or ""."""
    file = directory / run / "trace"
    events = read(file)
    chosen = sorted({*acknowledgements(events), *sample(events, points, seed)})
    with silence():
        failures = look(file, run.partition(" ")[0], chosen, failures_max=1).failures
    return f"{failures[0].point} {failures[0].text}" if failures else ""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.powerloss.omitted", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("place", nargs="*", help="module:function:what; all of them unless told")
    arguments = parser.parse_args()
    chosen = arguments.place or places()
    noticed: dict[str, str] = {}
    with ProcessPoolExecutor(PROCESSES, mp_context=get_context("spawn")) as pool:
        for seed in range(arguments.seed, arguments.seed + SEEDS):
            left = [place for place in chosen if place not in noticed]
            if seed > arguments.seed:
                left = [place for place in left if place not in UNNOTICED]
            if left:
                noticed |= _noticed(pool, left, seed)
    unnoticed = [place for place in chosen if place not in noticed]
    for place in unnoticed:
        print(f"| {place} | {UNNOTICED.get(place, 'NOT NOTICED')} |")
    unexplained = [place for place in unnoticed if place not in UNNOTICED]
    print(f"{len(unexplained)} of {len(chosen)} are noticed by nothing, and nobody knows why")
    return int(bool(unexplained))


def _noticed(pool: ProcessPoolExecutor, chosen: Sequence[str], seed: int) -> dict[str, str]:
    """Place → who notices, of those that are noticed; printed as they are."""
    noticed: dict[str, str] = {}
    for number in range(max(len(workloads_of(place)) for place in chosen)):
        # A place that one workload has noticed is not tried with the next one.
        left = {place: workloads_of(place)[number : number + 1] for place in chosen if place not in noticed}
        runs = [f"{workload} {place}" for place, workloads in left.items() for workload in workloads]
        for run, text in _tried(pool, runs, seed).items():
            workload, _, place = run.partition(" ")
            if text:
                noticed[place] = f"{workload} ({text[:100]})"
                print(f"| {place} | {noticed[place]} |", flush=True)
    return noticed


def _tried(pool: ProcessPoolExecutor, runs: Sequence[str], seed: int) -> dict[str, str]:
    """Run → the violation that it shows; those of workloads that are violated as they are show none."""
    sound = sorted({run.partition(" ")[0] for run in runs})
    with tempfile.TemporaryDirectory(dir=scratch(), prefix="powerloss-omitted-") as name:
        directory = Path(name)
        record(directory, [*sound, *runs], seed=seed, timeout_s=TIMEOUT_S)
        jobs = {run: pool.submit(notice, directory, run, seed) for run in [*sound, *runs]}
        for workload in sound:
            if text := jobs[workload].result():
                print(f"{workload} is violated as it is: {text}")
        return {run: "" if jobs[run.partition(" ")[0]].result() else jobs[run].result() for run in runs}


if __name__ == "__main__":
    sys.exit(main())
