"""One attack beside a bystander, each in a process of its own, on a cluster that runs already."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import IO

from loadtest.attacks.bystander import Waits
from loadtest.attacks.catalogue import Attack
from loadtest.attacks.sending import ANSWER_WITHIN_S, Answers
from loadtest.attacks.target import Target
from loadtest.attacks.watching import Faults, Memory, Watch
from loadtest.harness.cluster import ROOT, Cluster

OPEN_FILES = 1024
"""What most shells and services have."""
AFTER_S = 1.0
LATE_S = 60.0
"""An attacker that takes this much longer than its attack and the wait for its answers is stuck."""


@dataclass(frozen=True, slots=True)
class Result:
    """What an attack did; `attack` and `answers` are None for the bystander alone."""

    attack: Attack | None
    waits: dict[str, Waits]
    memory: Memory
    faults: Faults
    answers: Answers | None

    @property
    def longest_s(self) -> float:
        return max(waits.max_ms for waits in self.waits.values()) / 1000

    @property
    def errors(self) -> int:
        return sum(sum(waits.errors.values()) for waits in self.waits.values())

    def missed(self, slack: float = 1.0) -> list[str]:
        """The targets that are missed, in words; waits and memory may be `slack` times what they should be."""
        missed = []
        if self.errors:
            missed.append(f"{self.errors} errors")
        if self.faults.restarts or self.faults.down:
            missed.append("workers restarted or down")
        if self.attack is None:
            return missed
        if self.longest_s > self.attack.wait_s * slack:
            missed.append(f"{self.longest_s:.2f} s, target {self.attack.wait_s:g} s")
        growth_mb = self.attack.growth_mb
        if growth_mb is not None and self.memory.growth > growth_mb * slack:
            missed.append(f"+{self.memory.growth:,.0f} MB, target +{growth_mb:,.0f} MB")
        if self.attack.refused and self.answers is not None:
            others = [outcome for outcome in self.answers.count if not outcome.startswith("4")]
            missed += [f"answered with {', '.join(sorted(others))} instead of 4xx"] if others else []
        return missed


class _Partner:
    """A program of this package that prints a line when it is ready, takes lines, and prints a report at its end."""

    def __init__(self, module: str, *arguments: object) -> None:
        command = [sys.executable, "-m", f"loadtest.attacks.{module}", *map(str, arguments)]
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            start_new_session=True,  # which has a priority of its own
        )
        if not self._output.readline():
            raise RuntimeError(f"{' '.join(command)} did not start")

    @property
    def _output(self) -> IO[str]:
        assert self._process.stdout is not None
        return self._process.stdout

    def begin(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("begin\n")

    def report(self, within_s: float) -> dict:
        """Ends its input; what it has printed since. Raises TimeoutExpired."""
        text, _ = self._process.communicate(timeout=within_s)
        return json.loads(text)

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            self._process.kill()
        self._process.wait()


@contextmanager
def few_open_files() -> Iterator[None]:
    """Clusters that start meanwhile have an ordinary soft limit; attackers may open as many files as the system lets
    them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(OPEN_FILES, hard), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def run(cluster: Cluster, target: Target, attack: Attack | None, seconds: float, after_s: float = AFTER_S) -> Result:
    """Without an attack: the bystander alone, who goes on for `after_s`, so that what an attack leaves behind shows."""
    bystander = _Partner("bystander", target.port, target.end_s)
    attacker = None
    try:
        if attack is not None:
            attacker = _Partner("attacker", attack.name, target.port, target.end_s, seconds)
        watch = Watch(cluster)
        bystander.begin()
        answers = None
        if attacker is not None:
            attacker.begin()
            answers = Answers(**attacker.report(seconds + ANSWER_WITHIN_S + LATE_S))
        else:
            time.sleep(seconds)
        time.sleep(after_s)
        waits = {kind: Waits(**fields) for kind, fields in bystander.report(LATE_S).items()}
        return Result(attack, waits, *watch.end(), answers)
    finally:
        for partner in (bystander, attacker):
            if partner is not None:
                partner.kill()
