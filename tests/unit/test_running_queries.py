"""Which queries are listed, how they are canceled, and what is kept of slow ones."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from coordinator.api.queries import listed
from coordinator.context import CONTEXT
from coordinator.fanout.calls import MethodCall, Worker, WorkerCall
from coordinator.queries import slow as slow_queries
from coordinator.queries.gate import HEAVY, LIGHT, Place
from coordinator.queries.running import FOLLOW, LISTED_MAX, TEXT_MAX, RunningQueries, RunningQuery
from coordinator.queries.slow import KEPT, SlowQueries
from shared.errors import Canceled, NotExecutable, TooHeavy
from shared.telemetry import REQUEST_ID


def queries(shows_texts: bool = True) -> tuple[RunningQueries, list[RunningQuery]]:
    ended: list[RunningQuery] = []
    return RunningQueries(shows_texts=shows_texts, ended=ended.append), ended


def serve(
    own: RunningQueries,
    name: str,
    work: Callable[[RunningQuery], Awaitable[Any]],
    text: str = "up",
    kind: str = "instant",
) -> asyncio.Task[Any]:
    async def served() -> Any:
        REQUEST_ID.set(name)
        return await own.serve(kind, text, "127.0.0.1", work)

    return asyncio.ensure_future(served())


async def forever(running: RunningQuery) -> None:
    await asyncio.sleep(60)


async def test_a_query_is_listed_while_it_is_served() -> None:
    own, ended = queries()
    task = serve(own, "a-1", forever, "u" * (TEXT_MAX + 1))
    await asyncio.sleep(0)
    (told,) = own.listed([])
    assert (told["id"], told["kind"], told["client"], told["state"]) == ("a-1", "instant", "127.0.0.1", "planning")
    assert told["query"] == "u" * TEXT_MAX
    assert 0 <= told["age"] < 5 and abs(told["start"] - time.time()) < 5
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert own.listed([]) == [] and [one.status for one in ended] == [499]


async def test_a_query_shows_the_workers_that_have_not_answered_and_what_they_have_read() -> None:
    own, _ = queries()
    task = serve(own, "a-1", forever)
    await asyncio.sleep(0)
    loop = asyncio.get_running_loop()
    calls = []
    for request, worker, samples in (("a-1", "worker-0", 5), ("a-1", "worker-1", 7), ("other", "worker-1", 100)):
        call = MethodCall(b"", time.monotonic(), loop.create_future(), request)
        calls.append(WorkerCall(call, Worker(worker, b"", 1, 0.0), (1, 2), 0, None, samples))
    (told,) = own.listed(calls)
    assert [(part["worker"], part["shards"], part["samples"]) for part in told["workers"]] == [
        ("worker-0", [1, 2], 5),
        ("worker-1", [1, 2], 7),
    ]
    assert told["samples"] == 12
    task.cancel()


async def test_only_the_queries_of_the_request_are_canceled() -> None:
    own, ended = queries()
    first, second = serve(own, "a-1", forever), serve(own, "a-2", forever)
    await asyncio.sleep(0)
    assert own.cancel("a-3") == 0
    assert own.cancel("a-1") == 1
    assert own.cancel("a-1") == 0  # it has been
    assert [told["state"] for told in own.listed([])] == ["canceled", "planning"]
    with pytest.raises(Canceled, match="a-1"):
        await first
    assert not second.done() and own.cancel("a-1") == 0
    assert [(one.status, one.error, one.task) for one in ended] == [(503, "canceled", None)]
    second.cancel()


async def test_a_client_that_goes_away_in_the_same_moment_is_answered_nothing() -> None:
    own, _ = queries()
    task = serve(own, "a-1", forever)
    await asyncio.sleep(0)
    own.cancel("a-1")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_query_that_has_its_answer_in_the_same_moment_is_still_canceled() -> None:
    own, _ = queries()
    done = asyncio.get_running_loop().create_future()

    async def waiting(running: RunningQuery) -> Any:
        return await done

    task = serve(own, "a-1", waiting)
    await asyncio.sleep(0)
    done.set_result(1)
    own.cancel("a-1")
    with pytest.raises(Canceled):
        await task


async def test_the_time_in_each_state_is_kept_also_of_a_query_that_waits_twice() -> None:
    own, ended = queries()

    async def attempt(place: Place) -> int:
        await asyncio.sleep(0.02)
        if place.is_light:
            raise TooHeavy("more")
        return 1

    async def work(running: RunningQuery) -> int:
        run = running.waits(attempt)
        assert running.state == "waiting"
        with pytest.raises(TooHeavy):
            await run(LIGHT)
        assert (running.state, running.is_light) == ("waiting", True)
        await asyncio.sleep(0.03)
        result = await run(HEAVY)
        assert (running.state, running.is_light) == ("running", False)
        running.enter("sending")
        return result

    assert await serve(own, "a-1", work) == 1
    seconds = ended[0].seconds()
    assert 0.03 <= seconds["waiting"] < 0.5 and 0.04 <= seconds["running"] < 0.5


async def fail(running: RunningQuery) -> None:
    raise NotExecutable("wrong")


async def test_slow_queries_are_logged_and_the_last_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    logged: list[tuple[str, dict[str, Any]]] = []
    monkeypatch.setattr(slow_queries, "event", lambda level, text, **fields: logged.append((text, fields)))
    slow = SlowQueries(0.02, shows_texts=True)
    own = RunningQueries(shows_texts=True, ended=slow.ended)

    async def nap(running: RunningQuery) -> None:
        running.samples_read = int(running.text)
        await asyncio.sleep(0.03)

    with pytest.raises(NotExecutable):
        await serve(own, "quick", fail)
    assert not logged and slow.kept("seconds") == []
    await asyncio.gather(*(serve(own, f"a-{n}", nap, str(n)) for n in range(KEPT + 5)))
    assert [text for text, _ in logged] == ["slow query"] * (KEPT + 5)
    assert logged[0][1]["query"] == "0" and logged[0][1]["planning_s"] >= 0.03
    by_samples = slow.kept("samples")
    assert [told["samples"] for told in by_samples] == list(range(KEPT + 4, 4, -1))
    assert slow.kept("seconds")[0]["seconds"] >= slow.kept("seconds")[-1]["seconds"] >= 0.03


async def follow(running: RunningQuery) -> None:
    running.enter("following")
    await asyncio.sleep(0.05)


async def follow_and_scan(running: RunningQuery) -> None:
    await follow(running)
    running.enter("running")
    await asyncio.sleep(0.05)


async def test_a_reader_that_waited_for_records_is_not_slow_but_the_scan_after_it_may_be() -> None:
    slow = SlowQueries(0.04, shows_texts=True)
    own = RunningQueries(shows_texts=True, ended=slow.ended)
    await serve(own, "a-1", follow, kind=FOLLOW)
    assert slow.kept("start") == []
    await serve(own, "a-2", follow_and_scan, kind=FOLLOW)
    (told,) = slow.kept("start")
    assert told["id"] == "a-2" and told["states"]["following"] >= 0.05


async def test_the_list_is_bounded_and_followers_do_not_hide_queries() -> None:
    own, _ = queries()
    followers = [serve(own, f"f-{n}", forever, kind=FOLLOW) for n in range(LISTED_MAX + 1)]
    await asyncio.sleep(0)
    one, other = serve(own, "a-1", forever), serve(own, "a-2", forever)
    await asyncio.sleep(0)
    assert [told["id"] for told in own.listed([])] == ["a-1", "a-2", *(f"f-{n}" for n in range(LISTED_MAX - 2))]
    assert len(own) == LISTED_MAX + 3
    context = SimpleNamespace(running=own, links=SimpleNamespace(awaited=list))
    answer = await listed(cast(Any, SimpleNamespace(app={CONTEXT: context})))
    content = json.loads(cast(bytes, answer.body))
    assert len(content["data"]) == LISTED_MAX
    assert content["warnings"] == [f"3 more are being served; the list has at most {LISTED_MAX}"]
    assert own.cancel(f"f-{LISTED_MAX}") == 1
    with pytest.raises(Canceled):
        await followers[-1]
    for task in (one, other, *followers):
        task.cancel()


async def test_the_log_of_slow_queries_can_be_off_and_texts_hidden() -> None:
    for after_s, count in ((0.0, 0), (1e-9, 1)):
        slow = SlowQueries(after_s, shows_texts=False)
        with pytest.raises(NotExecutable):
            await serve(RunningQueries(shows_texts=False, ended=slow.ended), "a-1", fail, "secret")
        assert len(slow.kept("start")) == count
    assert "secret" not in str(slow.kept("start"))
    own, _ = queries(shows_texts=False)
    tasks = [serve(own, "a", forever, text) for text in ("secret", "secret", "another")]
    await asyncio.sleep(0)
    first, second, third = (told["query"] for told in own.listed([]))
    assert first == second != third and "secret" not in first
    for task in tasks:
        task.cancel()
