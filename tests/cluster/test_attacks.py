"""What one client does to another one beside it: each attack small and short, with twice the target as the bound.

`python -m loadtest.attacks` has the attacks in full size. A noisy machine is why the bounds are wide, and why an attack
that misses them is repeated if the machine can be shown to have stood still meanwhile, and only then.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Iterator
from types import TracebackType

import pytest

from loadtest.attacks import data, report
from loadtest.attacks.catalogue import named
from loadtest.attacks.priority import raised
from loadtest.attacks.running import few_open_files, run
from loadtest.attacks.target import Target
from loadtest.harness.cluster import MEASURED, Cluster

pytestmark = pytest.mark.alone

SECONDS, AFTER_S = 1.0, 0.5
SLACK = 2.0
ATTEMPTS = 3
PULSE_S, STOOD_STILL_S = 0.01, 0.2
NICENESS = -5
AMOUNTS = data.Amounts(series=2_000, samples=40, grid_series=4_500, long_values=40, records=2_000, vectors=1_000)


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, Target]]:
    """A cluster with data, which has answered a bystander before."""
    cluster = Cluster(tmp_path_factory.mktemp("attacked"), settings=MEASURED)
    with raised(NICENESS):
        try:
            with few_open_files():
                cluster.start()
            target = data.load(cluster, AMOUNTS)
            run(cluster, target, None, SECONDS)
            yield cluster, target
        finally:
            cluster.kill()


class Pulse:
    """`late_s`: by how much a thread that has nothing to do but to sleep was woken too late, at most."""

    def __init__(self) -> None:
        self.late_s = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat)

    def __enter__(self) -> Pulse:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ended.set()
        self._thread.join()

    def _beat(self) -> None:
        due = time.monotonic() + PULSE_S
        while not self._ended.wait(PULSE_S):
            now = time.monotonic()
            self.late_s = max(self.late_s, now - due)
            due = now + PULSE_S


def check(attacked: tuple[Cluster, Target], name: str) -> None:
    """An attack whose targets must be met, after which the cluster is whole."""
    cluster, target = attacked
    (attack,) = named([name])
    for _ in range(ATTEMPTS):
        with Pulse() as pulse:
            result = run(cluster, target, attack, SECONDS, AFTER_S)
        if not result.missed(SLACK) or pulse.late_s < STOOD_STILL_S:
            break
    assert not result.missed(SLACK), report.lines(result)
    cluster.wait_ready()


@pytest.mark.parametrize("name", ["bodies-nested", "slow-bodies", "heads", "grid", "label-replace"])
def test_bystander_hardly_notices(attacked: tuple[Cluster, Target], name: str) -> None:
    check(attacked, name)


def test_a_pulse_tells_how_long_its_process_stood_still() -> None:
    with Pulse() as pulse:
        time.sleep(5 * PULSE_S)
    assert pulse.late_s < STOOD_STILL_S
    with Pulse() as pulse:
        time.sleep(5 * PULSE_S)
        ctypes.PyDLL(None).usleep(400_000)  # without letting other threads in
    assert pulse.late_s > STOOD_STILL_S
