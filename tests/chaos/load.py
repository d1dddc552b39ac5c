"""Threads that ask a cluster for something all the time, until told to stop."""

from __future__ import annotations

import random
import threading
import traceback
from collections.abc import Callable

from tests.chaos.findings import Findings

WRITE_WITHIN_S = 25.0
PAUSE_S = 0.02
DOWN_PAUSE_S = 0.1
STOP_WITHIN_S = 60.0


class Load:
    """`impatience`: the share of requests whose client leaves before the answer; `seed` decides what each thread
    sends, the order in which threads meet is the machine's."""

    area = ""

    def __init__(self, findings: Findings, seed: str, impatience: float) -> None:
        self.findings = findings
        self.seed = seed
        self.impatience = impatience
        self.stopping = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        raise NotImplementedError

    def _run(self, work: Callable[[random.Random], None], name: str) -> None:
        """`work` is called again and again, with a generator of its own; it pauses by itself when it must."""
        chance = random.Random(f"{self.seed} {self.area} {name}")

        def forever() -> None:
            try:
                while not self.stopping.wait(PAUSE_S):
                    work(chance)
            except Exception:
                self.findings.add("wrong", self.area, f"{name} met what it cannot expect: {traceback.format_exc()}")

        self._threads.append(threading.Thread(target=forever, name=f"{self.area} {name}", daemon=True))
        self._threads[-1].start()

    def patience_s(self, chance: random.Random) -> float:
        return chance.uniform(0.02, 0.6) if chance.random() < self.impatience else WRITE_WITHIN_S

    def pause(self) -> None:
        """The cluster is away, or takes nothing."""
        self.stopping.wait(DOWN_PAUSE_S)

    def stop(self) -> None:
        self.stopping.set()
        for thread in self._threads:
            thread.join(STOP_WITHIN_S)
            if thread.is_alive():
                self.findings.add("stuck", self.area, f"{thread.name} has waited for {STOP_WITHIN_S:g} s")
        self._threads = []
