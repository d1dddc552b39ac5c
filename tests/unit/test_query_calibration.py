"""What a light query may take, by the speed of the machine."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

import numpy as np
import pytest

from coordinator.queries import calibration
from coordinator.queries.calibration import FACTOR_MAX, RUNS, USUAL_S, slowness
from coordinator.queries.gate import LIGHT, LIGHT_PROCESSOR_S, Gate, Place
from shared.errors import TooHeavy


class Machine:
    """A clock that a walk moves: by each of these times in turn, after the first walk, which is not counted."""

    def __init__(self, taken_s: Iterable[float]) -> None:
        self.now_s = 100.0
        self._taken_s: Iterator[float] = iter([50.0, *taken_s])

    def clock(self) -> float:
        return self.now_s

    def walk(self) -> None:
        self.now_s += next(self._taken_s)


def found(*taken_s: float) -> float:
    machine = Machine(taken_s)
    return slowness(machine.clock, machine.walk)


@pytest.mark.parametrize(
    ("takes_s", "factor"),
    [(USUAL_S / 3, 1.0), (USUAL_S, 1.0), (2 * USUAL_S, 2.0), (3.5 * USUAL_S, 3.5), (100 * USUAL_S, FACTOR_MAX)],
)
def test_the_factor_is_that_of_the_machine_within_its_bounds(takes_s: float, factor: float) -> None:
    assert found(*[takes_s] * RUNS) == pytest.approx(factor)


def test_the_fastest_run_counts() -> None:
    assert found(*[4 * USUAL_S] * (RUNS - 1), 2 * USUAL_S) == pytest.approx(2)


def test_the_walk_is_one_of_many_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    table = np.arange(calibration.TABLE_WORDS)
    ends = [calibration._walk(table, steps) for steps in range(200)]
    assert len(set(ends)) == 200
    monkeypatch.setattr(calibration, "STEPS", 1000)
    assert slowness() == 1.0


async def test_a_light_query_may_take_longer_on_a_slow_machine() -> None:
    gate = Gate(1)
    places: list[Place] = []

    async def attempt(place: Place) -> None:
        places.append(place)
        if place.is_light:
            raise TooHeavy

    async def run(query: str) -> None:
        await gate.run("client", query, time.monotonic() + 5, attempt, is_light=True)

    await run("before")
    gate.calibrate(3.0)
    await run("after")
    assert [place.processor_s for place in places] == [LIGHT_PROCESSOR_S, 0.0, 3 * LIGHT_PROCESSOR_S, 0.0]
    assert LIGHT.processor_s == LIGHT_PROCESSOR_S
