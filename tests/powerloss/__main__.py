"""`python -m tests.powerloss --points N --seed S [--workload W]`: the power goes at N points; a table of the verdicts.

A violation names its point and keeps the trace, so that `--trace FILE --point POINT` shows it again.
"""

from __future__ import annotations

import argparse
import logging
import shutil
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from tests.powerloss.points import WEIGHTS, Point, Sampling, look_at_share, scratch
from tests.powerloss.recording import record
from tests.powerloss.story import tell
from tests.powerloss.workloads import WORKLOADS

PROCESSES = 2
RECORD_TIMEOUT_S = 600.0
SHOWN_MAX = 5


def main() -> int:
    arguments = _arguments()
    logging.disable(logging.CRITICAL)
    if arguments.trace:
        return _again(arguments.trace, Point.parsed(arguments.point), arguments.state, arguments.lenient)
    names = arguments.workload or list(WORKLOADS)
    directory = Path(tempfile.mkdtemp(dir=scratch(), prefix="powerloss-traces-"))
    record(directory, names, seed=arguments.seed, timeout_s=RECORD_TIMEOUT_S)
    share = -(-arguments.points // sum(WEIGHTS.get(name, 1) for name in names))
    how = {
        name: Sampling(share * WEIGHTS.get(name, 1), arguments.seed, arguments.processes, arguments.lenient)
        for name in names
    }
    failed = False
    print(f"| {'workload':12} | points | states | violations | seconds |")
    print(f"|{'-' * 14}|-------:|-------:|-----------:|--------:|")
    with ProcessPoolExecutor(arguments.processes, mp_context=get_context("spawn")) as pool:
        jobs = {
            name: [
                pool.submit(look_at_share, directory / name / "trace", name, how[name], part)
                for part in range(arguments.processes)
            ]
            for name in names
        }
        for name, waiting in jobs.items():
            shares = [job.result() for job in waiting]
            failures = [failure for share in shares for failure in share.failures]
            points, states = sum(s.points for s in shares), sum(s.states for s in shares)
            seconds = sum(s.seconds for s in shares)
            print(f"| {name:12} | {points:6} | {states:6} | {len(failures):10} | {seconds:7.1f} |", flush=True)
            for failure in failures[:SHOWN_MAX]:
                print(f"    {failure.point}  {failure.text}")
            failed |= bool(failures)
    if failed:
        print(f"traces: {directory}/WORKLOAD/trace; again: python -m tests.powerloss --trace FILE --point POINT")
    else:
        shutil.rmtree(directory)
    return int(failed)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.powerloss", description=__doc__)
    parser.add_argument("--points", type=int, default=10_000, help="in all, shared by the workloads")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=PROCESSES)
    parser.add_argument("--workload", action="append", choices=list(WORKLOADS))
    parser.add_argument(
        "--lenient", action="store_true", help="new directories are there without a sync of their parent"
    )
    parser.add_argument("--trace", type=Path, help="a trace that was kept")
    parser.add_argument("--point", help="of that trace, as a violation names it")
    parser.add_argument("--state", type=Path, help="a new directory for the state, before it is checked")
    return parser.parse_args()


def _again(file: Path, point: Point, state: Path | None, is_lenient: bool) -> int:
    return tell(file.resolve(), point, state, is_lenient)


if __name__ == "__main__":
    sys.exit(main())
