"""`python -m tests.mutants`: puts small mistakes into the code, one at a time, and counts those that the tests notice.

The sample is fixed by the seed. Exit status 0 only when the share of noticed mutants is at least `--least`.
"""

from __future__ import annotations

import argparse
import sys
import time
import tomllib
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

from tests.mutants.recording import CACHE, recordings
from tests.mutants.running import NOTICED, Outcome, Runner, copy_tree
from tests.mutants.sampling import GROUPS, ROOT, Mutant, all_of, sample
from tests.mutants.selection import Selection

SURVIVORS = Path(__file__).with_name("survivors.toml")


def main() -> int:
    arguments = _parsed()
    mutants = sample(arguments.seed, arguments.count, arguments.groups)
    if arguments.only:
        wanted = set(arguments.only)
        mutants = [mutant for group in arguments.groups for mutant in all_of(group) if mutant.name in wanted]
    runners = [Runner(copy_tree(CACHE / str(number))) for number in range(arguments.jobs)]
    started = time.monotonic()
    selection = Selection(runners[0].tree, recordings(runners[0].tree, arguments.groups))
    print(f"which tests execute which lines: {time.monotonic() - started:.0f} s", flush=True)
    outcomes = _try_all(mutants, runners, selection, arguments.seconds)
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
    reasons = _reasons()
    noticed = [o for o in outcomes if o.verdict in NOTICED]
    print(f"\nseed {arguments.seed}: {len(outcomes)} of {sampled} sampled mutants tried")
    print(f"{'group':10} {'tried':>6} {'noticed':>8} {'survived':>9} {'untested':>9}")
    for group in arguments.groups:
        own = Counter(o.verdict for o in outcomes if o.mutant.group == group)
        print(f"{group:10} {own.total():6} {own['killed'] + own['timeout']:8} {own['survived']:9} {own['untested']:9}")
    for outcome in outcomes:
        if outcome not in noticed:
            line = (ROOT / outcome.mutant.path).read_text().splitlines()[outcome.mutant.line - 1].strip()
            reason = reasons.get(
                (outcome.mutant.path, outcome.mutant.operator, line), "no reason known: a test is missing"
            )
            print(f"{outcome.verdict} {outcome.mutant.name} line {outcome.mutant.line}: {line}\n    {reason}")
    share = len(noticed) / len(outcomes) if outcomes else 0.0
    print(f"{share:.0%} noticed, at least {arguments.least:.0%} wanted")
    return 0 if share >= arguments.least else 1


def _reasons() -> dict[tuple[str, str, str], str]:
    """(path, operator, text of the line) → why no test notices: see survivors.toml."""
    if not SURVIVORS.exists():
        return {}
    entries = tomllib.loads(SURVIVORS.read_text()).get("survivor", [])
    return {(entry["path"], entry["operator"], entry["line"]): entry["reason"] for entry in entries}


if __name__ == "__main__":
    sys.exit(main())
