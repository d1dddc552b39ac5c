"""The log keeps its promises in every history; and the simulation would notice if it did not."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coordinator.log.records import Append
from shared.errors import BadData
from tests.simulation.choices import TICK_S, Choices, octets_of
from tests.simulation.defects import DEFECTS, put_back
from tests.simulation.history import History, run
from tests.simulation.model import Batch, Given, Model, Row
from tests.simulation.patches import simulated
from tests.simulation.plans import PLANS
from tests.simulation.shrinking import shrunk
from tests.simulation.world import Thread, Violation, World

EXAMPLES = 200
EXAMPLE_BYTES_MAX = 600
FAST_S = 10.0
FAST_SEED = 1 << 32
COMMON_WITHIN = 800
"""Histories: the common defects are found within far fewer than the 10⁴ of `make simulate`."""

DOWN_WITHIN_S = 2 * TICK_S
"""A message on its way to the coordinator; one that does not hear of it waits for SILENCE_S."""


@pytest.fixture(autouse=True)
def patched() -> Iterator[None]:
    with simulated():
        yield


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(st.binary(max_size=EXAMPLE_BYTES_MAX))
def test_every_promise_is_kept_whatever_hypothesis_chooses(octets: bytes) -> None:
    assert run(octets).violation == ""


def test_every_promise_is_kept_in_ten_seconds_of_histories() -> None:
    seed, end = FAST_SEED, time.monotonic() + FAST_S
    while time.monotonic() < end:
        outcome = run(octets_of(seed))
        assert outcome.violation == "", f"python -m tests.simulation --history {seed}"
        seed += 1
    assert seed > FAST_SEED


def test_the_same_choices_are_the_same_history() -> None:
    for seed in range(5):
        assert run(octets_of(seed), tracing=True).trace == run(octets_of(seed), tracing=True).trace


def test_no_module_of_the_log_sees_the_real_time() -> None:
    """The trace rounds times: a timer that is a microsecond off changes one history of thousands."""
    modules = [module for name, module in sys.modules.items() if name.startswith(("coordinator.log.", "worker.logs."))]
    assert len(modules) > 30
    for module in modules:
        assert not any(value is time for value in vars(module).values()), module.__name__


def test_a_history_without_choices_is_calm() -> None:
    outcome = run(b"")
    assert outcome.violation == ""
    assert not outcome.faults
    assert outcome.acknowledged == outcome.batches > 0


def test_a_worker_that_stops_says_so_and_is_down_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    history = History(b"", tracing=False)
    world, cluster = history.world, history.cluster
    worker, coordinator = cluster.workers[0], cluster.coordinator
    assert worker is not None and coordinator is not None
    monkeypatch.setattr(cluster, "start_worker", lambda number: None)  # its next life would replace it
    cluster.stop_worker(worker)
    world.run(lambda: coordinator.links._members.present(worker.identity) is None, world.now + DOWN_WITHIN_S)
    assert coordinator.links._members.present(worker.identity) is None
    assert world.violation is None


@pytest.mark.parametrize("name", [name for name, defect in DEFECTS.items() if defect.is_common])
def test_defect_that_is_put_back_is_found(name: str) -> None:
    with put_back(name):
        assert any(run(octets_of(seed)).violation for seed in range(10_000, 10_000 + COMMON_WITHIN))


def test_a_failing_history_is_made_smaller() -> None:
    with put_back("follower-not-told"):
        seed = next(seed for seed in range(10_000, 10_300) if run(octets_of(seed)).violation)
        octets = octets_of(seed)
        smaller = shrunk(octets, lambda candidate: bool(run(candidate).violation), 40)
        assert len(smaller) < len(octets) // 2
        assert run(smaller).violation


def test_choices_that_are_used_up_are_calm() -> None:
    choices = Choices(b"\xff")
    assert choices.byte() == 255
    assert [choices.below(7), choices.chance(255), choices.pick("abc")] == [0, False, "a"]


def test_every_plan_comes_up() -> None:
    plans = {f"plan: {name}" for name, _ in PLANS}
    for seed in range(FAST_SEED, FAST_SEED + COMMON_WITHIN):
        plans -= set(run(octets_of(seed)).faults)
        if not plans:
            break
    assert not plans


def test_a_plan_goes_on_at_its_point_or_without_it_when_the_time_is_over() -> None:
    world = World(Choices(b""))
    came: list[tuple[float, bool]] = []

    def plan() -> None:
        came.append((world.now, world.wait_for("point", 1.0)))
        came.append((world.now, world.wait_for("point", 1.0)))

    Thread(plan, process=world.outside).start()
    world.after(0.5, world.outside, world.reached, "point")
    world.run(lambda: False, 9.0)
    assert came == [(0.0, True), (0.5, False)]
    assert world.now == 1.5


@pytest.mark.parametrize(("log_start", "is_violation"), [(4, False), (3, True)])
def test_a_batch_may_be_refused_as_too_old_only_once_retention_has_dropped_it(
    monkeypatch: pytest.MonkeyPatch, log_start: int, is_violation: bool
) -> None:
    """The coordinator may have dropped it since the last answer that said where the log begins."""
    history = History(b"", tracing=False)
    clients = history.clients
    batch, later = (clients.numbered("producer", clients.keys[:1]) for _ in range(2))
    later.attempts = 1
    history.model.acknowledged(batch, 3, 1, False)

    async def append(append: Append) -> tuple[int, int]:
        raise BadData("too old")

    area = SimpleNamespace(append=append, sequencer=SimpleNamespace(log_start=log_start))
    monkeypatch.setattr(history.cluster, "call", lambda handler, patience_s: asyncio.run(handler(area)))
    with pytest.raises(Violation, match="was acknowledged before") if is_violation else nullcontext():
        assert clients.attempt("producer", batch, durable=True)


# The model: each promise, broken


def everything(key: bytes) -> bool:
    return True


def acknowledged(model: Model, start: int, *, durable: bool = True, size: int = 2) -> Batch:
    batch = model.new_batch([b"a", b"b"][:size])
    model.acknowledged(batch, start, size, durable)
    return batch


def rows_of(batch: Batch, start: int, time_ms: int = 1) -> list[Row]:
    return [(start + at, key, value, time_ms) for at, (key, value) in enumerate(batch.records)]


def test_model_takes_a_log_that_has_what_was_acknowledged() -> None:
    model = Model()
    batch = acknowledged(model, 5)
    model.saw(Given("reader", everything, 0, 7, rows_of(batch, 5), 0))
    model.check(rows_of(batch, 5), 0)


def test_model_misses_an_acknowledged_batch() -> None:
    model = Model()
    acknowledged(model, 5)
    with pytest.raises(Violation, match="was acknowledged with number 5 and is not there"):
        model.check([], 0)


def test_model_notices_half_a_batch() -> None:
    model = Model()
    batch = model.new_batch([b"a", b"b"])
    batch.unknown = True
    with pytest.raises(Violation, match="not whole"):
        model.check(rows_of(batch, 5)[:1], 0)


def test_model_notices_a_batch_that_is_there_twice() -> None:
    model = Model()
    batch = acknowledged(model, 5)
    with pytest.raises(Violation, match="is there 2 times"):
        model.check([*rows_of(batch, 5), *rows_of(batch, 9)], 0)


def test_model_notices_two_answers_to_one_batch() -> None:
    model = Model()
    batch = acknowledged(model, 5)
    with pytest.raises(Violation, match="number 5 and then with 9"):
        model.acknowledged(batch, 9, 2, True)


def test_model_notices_a_number_given_twice() -> None:
    model = Model()
    first, second = acknowledged(model, 5), acknowledged(model, 5)
    model.saw(Given("reader", everything, 0, 7, rows_of(first, 5), 0))
    with pytest.raises(Violation, match="number 5 was given to"):
        model.saw(Given("reader", everything, 0, 7, rows_of(second, 5), 0))


@pytest.mark.parametrize(
    ("first_ms", "second_ms", "match"),
    [(9, 8, "number 7 of 8 ms after"), (0, 8, "with the time 0"), (9, 9, "was said to be of 9 ms and of 5 ms")],
)
def test_model_notices_times_that_fall_are_lost_or_change(first_ms: int, second_ms: int, match: str) -> None:
    model = Model()
    first, second = acknowledged(model, 5), acknowledged(model, 7)
    rows = rows_of(first, 5, first_ms) + rows_of(second, 7, second_ms)
    with pytest.raises(Violation, match=match):
        model.saw(Given("reader", everything, 0, 9, rows, 0))
        model.check(rows_of(first, 5, 5) + rows_of(second, 7, 9), 0)


def test_model_notices_a_record_that_appears_below_what_was_read() -> None:
    model = Model()
    batch = acknowledged(model, 5)
    model.saw(Given("reader", everything, 0, 7, [], 0))
    with pytest.raises(Violation, match="appeared below"):
        model.check(rows_of(batch, 5), 0)


def test_model_notices_a_refused_batch_that_is_there() -> None:
    model = Model()
    batch = model.new_batch([b"a"])
    with pytest.raises(Violation, match="was refused every time"):
        model.check(rows_of(batch, 5), 0)


def test_model_lets_the_loss_of_power_take_only_what_was_not_on_the_disk() -> None:
    model = Model()
    acknowledged(model, 5, durable=False)
    model.lose_power()
    model.check([], 0)
    acknowledged(model, 7, durable=False)
    model.synced_upto = 9
    model.lose_power()
    with pytest.raises(Violation, match="is not there"):
        model.check([], 0)


def test_model_does_not_miss_what_retention_dropped() -> None:
    model = Model()
    acknowledged(model, 5)
    model.check([], 7)


def test_model_lets_the_power_take_what_was_read_of_a_batch_that_was_sent_again() -> None:
    model = Model()
    batch = model.new_batch([b"a", b"b"])
    model.saw(Given("reader", everything, 0, 7, rows_of(batch, 5), 0))
    model.lose_power()
    model.acknowledged(batch, 9, 2, True)
    model.check(rows_of(batch, 9), 0)
    model.saw(Given("reader", everything, 0, 11, rows_of(batch, 9), 0))
    with pytest.raises(Violation, match="is not there"):
        model.check([], 0)


@pytest.mark.parametrize("was_lost_before", [True, False])
def test_model_lets_a_batch_move_that_was_lost_and_then_sent_again(was_lost_before: bool) -> None:
    """Nobody knows what came of it, and its client has not asked again."""
    model = Model()
    batch = acknowledged(model, 5, durable=False)
    model.lose_power()
    model.came_to_unknown_end(batch, was_lost_before)
    with nullcontext() if was_lost_before else pytest.raises(Violation, match="with number 5 and is at 9"):
        model.check(rows_of(batch, 9), 0)


def test_model_knows_where_a_batch_that_moved_is_once_it_was_read() -> None:
    model = Model()
    batch = acknowledged(model, 5, durable=False)
    model.lose_power()
    model.came_to_unknown_end(batch, was_lost_before=True)
    model.settle(rows_of(batch, 9))
    model.check(rows_of(batch, 9), 0)
    with pytest.raises(Violation, match="with number 9 and is at 12"):
        model.check(rows_of(batch, 12), 0)
    with pytest.raises(Violation, match="with number 9 and is not there"):
        model.check([], 0)


def test_model_knows_where_a_batch_is_that_moved_and_was_answered() -> None:
    model = Model()
    batch = acknowledged(model, 5, durable=False)
    model.lose_power()
    model.came_to_unknown_end(batch, was_lost_before=True)
    model.acknowledged(batch, 9, 2, False)
    with pytest.raises(Violation, match="with number 9 and is at 12"):
        model.check(rows_of(batch, 12), 0)


def test_model_lets_a_lost_state_file_bring_back_what_was_refused_but_not_half_of_it() -> None:
    model = Model()
    batch = model.new_batch([b"a", b"b"])
    batch.attempts = 2
    model.saw(Given("reader", everything, 0, 20, [], 0))
    model.lose_state()
    model.check([*rows_of(batch, 5), *rows_of(batch, 9)], 0)
    with pytest.raises(Violation, match="not whole each time"):
        model.check([*rows_of(batch, 5), *rows_of(batch, 9)[:1]], 0)


def test_model_does_not_let_a_lost_state_file_take_what_was_acknowledged() -> None:
    model = Model()
    acknowledged(model, 5)
    model.lose_state()
    with pytest.raises(Violation, match="is not there"):
        model.check([], 0)
