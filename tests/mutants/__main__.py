"""`python -m tests.mutants`: puts small mistakes into the code, one at a time, and counts those that the tests notice.

The sample is fixed by the seed. Exit status 0 only when the share of noticed mutants is at least `--least`.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue

from tests.conftest import compile_kernels
from tests.mutants.reasons import EQUIVALENT, Reasons, line_of
from tests.mutants.recording import CACHE, recordings
from tests.mutants.running import NOTICED, Outcome, Runner, copy_tree
from tests.mutants.sampling import GROUPS, Mutant, all_of, sample
from tests.mutants.selection import Selection


def main() -> int:
    arguments = _parsed()
    mutants = sample(arguments.seed, arguments.count, arguments.groups)
    if arguments.only:
        wanted = set(arguments.only)
        mutants = [mutant for group in arguments.groups for mutant in all_of(group) if mutant.name in wanted]
    started = time.monotonic()
    compile_kernels()
    runners = [Runner(copy_tree(CACHE / str(number))) for number in range(arguments.jobs)]
    selection = Selection(runners[0].tree, recordings(runners[0].tree, arguments.groups, arguments.jobs))
    print(f"which tests execute which lines: {time.monotonic() - started:.0f} s", flush=True)
    started = time.monotonic()
    outcomes = _try_all(mutants, runners, selection, arguments.seconds)
    print(f"{len(outcomes)} mutants: {time.monotonic() - started:.0f} s", flush=True)
    for runner in runners:
        runner.close()
    return _report(outcomes, len(mutants), arguments)


def _parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=60, help="mutants in all")
    parser.add_argument("--groups", nargs="+", choices=list(GROUPS), default=list(GROUPS))
    parser.add_argument("--only", nargs="*", help="these mutants, path:operator:occurrence")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=3600, help="no further mutant is begun after so long")
    parser.add_argument("--least", type=float, default=0.8, help="share of mutants that must be noticed")
    return parser.parse_args()


def _try_all(mutants: list[Mutant], runners: list[Runner], selection: Selection, seconds: float) -> list[Outcome]:
    free: SimpleQueue[Runner] = SimpleQueue()
    for runner in runners:
        free.put(runner)
    until = time.monotonic() + seconds

    def one(mutant: Mutant) -> Outcome | None:
        if time.monotonic() > until:
            return None
        runner = free.get()
        try:
            outcome = runner.try_out(mutant, selection)
        finally:
            free.put(runner)
        print(f"{outcome.verdict:9} {mutant.name} line {mutant.line} {outcome.by}", flush=True)
        return outcome

    with ThreadPoolExecutor(len(runners)) as pool:
        return [outcome for outcome in pool.map(one, mutants) if outcome is not None]


def _report(outcomes: list[Outcome], sampled: int, arguments: argparse.Namespace) -> int:
    """A mutant that is listed as equivalent, because nobody could see a difference, counts neither way; the share with
    those that survived is told as well."""
    reasons = Reasons()
    verdicts = {outcome.mutant: _verdict(outcome, reasons) for outcome in outcomes}
    print(f"\nseed {arguments.seed}: {len(outcomes)} of {sampled} sampled mutants tried")
    print(f"{'group':10} {'tried':>6} {'noticed':>8} {'survived':>9} {'untested':>9} {'equivalent':>11}")
    for group in arguments.groups:
        own = Counter(verdict for mutant, verdict in verdicts.items() if mutant.group == group)
        row = f"{group:10} {own.total():6} {own['noticed']:8} {own['survived']:9} {own['untested']:9}"
        print(f"{row} {own['equivalent']:11}")
    for mutant, verdict in verdicts.items():
        if verdict != "noticed":
            print(f"{verdict} {mutant.name} line {mutant.line}: {line_of(mutant)}\n    {reasons.of(mutant)}")
    total = Counter(verdicts.values())
    noticed, counted = total["noticed"], len(outcomes) - total["equivalent"]
    if total["equivalent"]:
        print(f"{noticed / len(outcomes):.0%} noticed of all {len(outcomes)}, the equivalent ones among them")
    share = noticed / counted if counted else 0.0
    print(f"{share:.0%} noticed ({noticed} of {counted}), at least {arguments.least:.0%} wanted")
    return 0 if share >= arguments.least else 1


def _verdict(outcome: Outcome, reasons: Reasons) -> str:
    if outcome.verdict in NOTICED:
        return "noticed"
    return "equivalent" if reasons.of(outcome.mutant).startswith(EQUIVALENT) else outcome.verdict


if __name__ == "__main__":
    sys.exit(main())
