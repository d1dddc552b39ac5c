"""A future that tells one function at once, and others in the next turn of the event loop."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar

import pytest

from coordinator.fanout.prompt_futures import PromptFuture, PromptTask

NAME = ContextVar("NAME", default="")


async def test_a_result_or_an_error_is_told_at_once_and_in_the_context_of_who_asked() -> None:
    for give in ("set_result", "set_exception"):
        future, seen = PromptFuture[object](), []
        token = NAME.set("asked")
        future.at_once(lambda told, seen=seen: seen.append((told, NAME.get())))  # type: ignore[misc]
        NAME.reset(token)
        getattr(future, give)(ValueError())
        assert seen == [(future, "asked")]
        future.exception()


async def test_a_cancellation_is_told_in_the_next_turn() -> None:
    future, seen = PromptFuture[None](), []
    future.at_once(seen.append)
    assert future.cancel()
    assert not future.cancel()
    assert not seen
    await asyncio.sleep(0)
    assert seen == [future]


async def test_what_is_done_already_is_told_in_the_next_turn() -> None:
    future, seen = PromptFuture[int](), []
    future.set_result(1)
    future.at_once(seen.append)
    assert not seen
    await asyncio.sleep(0)
    assert seen == [future]
    assert await future == 1


async def test_what_fails_when_it_is_told_harms_nobody_who_has_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    reported: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(str(context["exception"])))
    future = PromptFuture[int]()
    future.at_once(lambda _: 1 // 0)
    future.set_result(1)
    assert reported == ["integer division or modulo by zero"]
    assert await future == 1


@pytest.mark.parametrize("fails", [False, True])
async def test_what_comes_of_a_task_is_told_in_its_last_turn(fails: bool) -> None:
    turns = 0

    async def work() -> int:
        nonlocal turns
        await asyncio.sleep(0)
        turns += 1
        if fails:
            raise ValueError
        return 7

    task, seen = PromptTask(work()), []
    task.at_once(lambda told: seen.append((told.exception() is not None, turns)))
    for expected in ([], [(fails, 1)]):
        await asyncio.sleep(0)
        assert seen == expected


@pytest.mark.parametrize("begins", [False, True])
async def test_a_cancelled_task_is_told_when_it_has_tidied_up_and_also_if_it_never_began(begins: bool) -> None:
    steps: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0)
            steps.append("tidied")

    task = PromptTask(work())
    task.at_once(lambda told: steps.append("told" if told.cancelled() else "wrong"))
    if begins:
        await asyncio.sleep(0)
    assert task.cancel()
    for _ in range(5):
        await asyncio.sleep(0)
    assert steps == (["tidied", "told"] if begins else ["told"])
    assert not task.cancel()
