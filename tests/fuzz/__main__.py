"""Run campaigns, and print what each target has taken: `python -m tests.fuzz --seconds 60`."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from contextlib import ExitStack
from pathlib import Path

from tests.fuzz.campaign import BYTES, POLL_S, STRUCTURE, Campaign
from tests.fuzz.findings import Findings
from tests.fuzz.loading import load
from tests.fuzz.target import Target, run

BUILD = Path("build/fuzz")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--target", action="append", default=[], help="only this one (repeatable)")
    parser.add_argument("--seconds", type=float, default=60, help="for all campaigns together")
    parser.add_argument("--inputs", type=int, default=0, help="most inputs of one campaign; 0: as many as time allows")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2, help="campaigns at a time")
    parser.add_argument("--replay", nargs="+", metavar=("TARGET", "FILE"), help="run these inputs once")
    arguments = parser.parse_args()
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    targets = load(is_instrumented=not arguments.replay)
    unknown = set(arguments.target) - set(targets)
    if unknown:
        parser.error(f"no target {', '.join(sorted(unknown))}; there are {', '.join(targets)}")
    if arguments.replay:
        return _replay(targets[arguments.replay[0]], [Path(name) for name in arguments.replay[1:]])
    chosen = [target for name, target in targets.items() if not arguments.target or name in arguments.target]
    return _run(chosen, arguments)


def _replay(target: Target, paths: list[Path]) -> int:
    failed = 0
    with target.service():
        for path in paths:
            failure = run(target, path.read_bytes())
            failed += failure is not None
            print(f"{path}: {failure.text if failure else 'no failure'}")
    return 1 if failed else 0


def _run(targets: list[Target], arguments: argparse.Namespace) -> int:
    shutil.rmtree(BUILD, ignore_errors=True)
    work = BUILD / "work"
    work.mkdir(parents=True)
    engines = {target.name: _engines(target) for target in targets}
    share_s = arguments.seconds * arguments.jobs / len(targets)
    waiting = [
        Campaign(
            target,
            engine,
            max(1.0, share_s / len(engines[target.name])),
            arguments.inputs,
            arguments.seed,
            Findings(BUILD / target.name),
            (work / f"{target.name}-{engine}.log").resolve(),
        )
        for target in targets
        for engine in engines[target.name]
    ]
    campaigns = list(waiting)
    with ExitStack() as services:
        for target in targets:
            services.enter_context(target.service())
        took_s = _finished(waiting, arguments.jobs)
    return _report(targets, campaigns, took_s)


def _engines(target: Target) -> tuple[str, ...]:
    guided = (BYTES,) if target.is_guided else ()
    return (*guided, STRUCTURE) if target.strategy else guided


def _finished(waiting: list[Campaign], jobs: int) -> float:
    """Run all campaigns, so many at a time, and print a line for each that is over; returns how long that took, in
    seconds."""
    started = time.monotonic()
    running: list[Campaign] = []
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                campaign = waiting.pop(0)
                campaign.start()
                running.append(campaign)
            time.sleep(POLL_S)
            over = [campaign for campaign in running if campaign.poll()]
            running = [campaign for campaign in running if campaign not in over]
            for campaign in over:
                print(f"{time.monotonic() - started:6.0f} s  {campaign.summary()}", flush=True)
    finally:
        for campaign in running:
            campaign.kill()
    return time.monotonic() - started


def _report(targets: list[Target], campaigns: list[Campaign], took_s: float) -> int:
    """Print a line for each target, and each failure; the process's exit code."""
    print(f"{'target':<24}{'inputs':>10}{'inputs/s':>10}{'failures':>10}{'slowest ms':>12}{'peak MB':>9}")
    failed, total = [], 0
    for target in targets:
        own = [campaign for campaign in campaigns if campaign.target is target]
        inputs = sum(int(campaign.progress.counters.inputs) for campaign in own)
        rate = inputs / max(1e-9, sum(campaign.took_s for campaign in own))
        slowest_ms = 1000 * max(campaign.progress.counters.slowest_s for campaign in own)
        peak_mb = max(campaign.peak_bytes for campaign in own) >> 20
        paths = own[0].findings.paths()
        print(f"{target.name:<24}{inputs:>10}{rate:>10.0f}{len(paths):>10}{slowest_ms:>12.1f}{peak_mb:>9}")
        total += inputs
        failed += paths
        if not inputs:
            print(f"  {target.name} took no input; see {own[0].log}")
            failed.append(own[0].log)
    print(f"{total} inputs in {took_s:.0f} s, {len(failed)} failures")
    for path in failed:
        text = path.with_suffix(".txt")
        print(f"\n{path}\n{text.read_text() if text.exists() else ''}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
