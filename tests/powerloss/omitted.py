"""`python -m tests.powerloss.omitted [--seed S] [PLACE…]`: every sync left out one at a time, and who notices."""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from tests.powerloss.omissions import UNNOTICED, places, workloads_of
from tests.powerloss.points import acknowledgements, look, sample, scratch
from tests.powerloss.recording import record
from tests.powerloss.trace import read

PROCESSES = 2
POINTS = 150
TIMEOUT_S = 1200.0


def notice(directory: Path, run: str, seed: int, points: int = POINTS) -> str:
    """The first violation that the points of a recorded run show, or ""."""
    logging.disable(logging.CRITICAL)
    file = directory / run / "trace"
    events = read(file)
    chosen = sorted({*acknowledgements(events), *sample(events, points, seed)})
    failures = look(file, run.partition(" ")[0], chosen, failures_max=1).failures
    return f"{failures[0].point} {failures[0].text}" if failures else ""


def runs_of(chosen: Sequence[str]) -> list[str]:
    return [f"{workload} {place}" for place in chosen for workload in workloads_of(place)]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.powerloss.omitted", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("place", nargs="*", help="module:function:what; all of them unless told")
    arguments = parser.parse_args()
    chosen = arguments.place or places()
    runs = runs_of(chosen)
    sound = sorted({run.partition(" ")[0] for run in runs})
    with tempfile.TemporaryDirectory(dir=scratch(), prefix="powerloss-omitted-") as name:
        directory = Path(name)
        record(directory, [*sound, *runs], seed=arguments.seed, timeout_s=TIMEOUT_S)
        with ProcessPoolExecutor(PROCESSES, mp_context=get_context("spawn")) as pool:
            jobs = {run: pool.submit(notice, directory, run, arguments.seed) for run in [*sound, *runs]}
            survived = 0
            for workload in sound:
                if jobs[workload].result():
                    print(f"{workload} is violated as it is: {jobs[workload].result()}")
            for place in chosen:
                noticed = [
                    f"{workload} ({text[:100]})"
                    for workload in workloads_of(place)
                    if not jobs[workload].result() and (text := jobs[f"{workload} {place}"].result())
                ]
                survived += not noticed and place not in UNNOTICED
                print(f"| {place} | {noticed[0] if noticed else UNNOTICED.get(place, 'NOT NOTICED')} |", flush=True)
    print(f"{survived} of {len(chosen)} are noticed by nothing, and nobody knows why")
    return int(survived > 0)


if __name__ == "__main__":
    sys.exit(main())
