"""`python -m tests.chaos`: rounds of all scenarios (or of one) until the time is over; exit code 1 on a violation."""

from __future__ import annotations

import argparse
import fnmatch
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from tests.chaos import control, report
from tests.chaos.rounds import Workshop, own_mounts
from tests.chaos.scenarios import MINUTE, Scenario, all_scenarios
from tests.conftest import compile_kernels


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _play(shop: Workshop, scenario: Scenario, name: str, number: int) -> report.Round:
    started = time.monotonic()
    outcome = scenario(shop, f"{name}-{number}", random.Random(f"{shop.seed}/{name}/{number}"))
    if outcome.kept is None:
        shutil.rmtree(shop.directory / f"{name}-{number}", ignore_errors=True)
    done = report.Round(name, number, time.monotonic() - started, outcome)
    _say(report.line(done))
    if outcome.findings:
        _say(report.evidence(done, shop.seed))
    return done


def _run(shop: Workshop, chosen: dict[str, Scenario], seconds: float, first: int, only_one: bool) -> list[report.Round]:
    """Every scenario once, in an order that the seed decides, then every one again."""
    give_up = time.monotonic() + seconds
    rounds: list[report.Round] = []
    number = first
    while True:
        order = sorted(chosen)
        random.Random(f"{shop.seed} {number}").shuffle(order)
        for name in order:
            if rounds and time.monotonic() > give_up:
                return rounds
            rounds.append(_play(shop, chosen[name], name, number))
        number += 1
        if only_one:
            return rounds


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--scenario", default="*", help="names or patterns, such as 'clock,flip-*'; default: all")
    parser.add_argument("--round", type=int, help="this round of each, and no other")
    parser.add_argument("--minute", action="store_true", help="one round of a few scenarios of different kinds")
    parser.add_argument("--list", action="store_true", help="print the names of the scenarios")
    asked = parser.parse_args()
    known, patterns = all_scenarios(), asked.scenario.split(",")
    if asked.minute:
        patterns, asked.round = list(MINUTE), asked.round or 0
    chosen = {name: scenario for name, scenario in known.items() if any(fnmatch.fnmatch(name, p) for p in patterns)}
    if asked.list or not chosen:
        _say("\n".join(known))
        return 0 if asked.list else 2
    compile_kernels()  # a request must not wait for the compiler
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # so that the clusters are ended as well
    own_mounts()
    directory = Path(tempfile.mkdtemp(prefix="chaos-"))
    shop = Workshop(directory, control.compiled(directory), asked.seed)
    try:
        rounds = _run(shop, chosen, asked.seconds, asked.round or 0, asked.round is not None)
    finally:
        shop.close()
    _say("\n" + report.table(rounds))
    violated = [done for done in rounds if done.outcome.findings]
    if violated:
        _say(f"\nseed {asked.seed}: {len(violated)} of {len(rounds)} rounds broke a promise")
        return 1
    shutil.rmtree(directory)
    _say(f"\nseed {asked.seed}: {len(rounds)} rounds, every promise kept")
    return 0


if __name__ == "__main__":
    sys.exit(main())
