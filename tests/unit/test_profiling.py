"""Profiles of this process."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from coordinator.api import debug
from coordinator.context import CONTEXT
from shared.errors import NotFound, Overloaded
from shared.process import profiling
from shared.process.profiling import profile
from shared.settings import Settings


class Threads:
    """One thread that works in `busy`, and one that waits in `idle`."""

    def __init__(self) -> None:
        self.over = threading.Event()
        self.threads = [threading.Thread(target=target, name=target.__name__) for target in (self.busy, self.idle)]

    def busy(self) -> None:
        while not self.over.is_set():
            sum(range(1000))

    def idle(self) -> None:
        self.over.wait(60)


@pytest.fixture
def at_work() -> Iterator[None]:
    threads = Threads()
    for thread in threads.threads:
        thread.start()
    yield
    threads.over.set()
    for thread in threads.threads:
        thread.join()


def weights(text: bytes, thread: str) -> int:
    lines = [line.rpartition(" ") for line in text.decode().splitlines()]
    return sum(int(weight) for stack, _, weight in lines if stack.startswith(f"{thread};") and f".{thread}" in stack)


def test_processor_time_is_that_of_the_threads_that_work(at_work: None) -> None:
    text = profile(0.3, lambda: False, by_processor=True)
    assert weights(text, "busy") > 10_000 > 1000 > weights(text, "idle")


def test_by_the_clock_waiting_threads_are_seen_as_often(at_work: None) -> None:
    text = profile(0.3, lambda: False, by_processor=False)
    assert weights(text, "idle") >= 3 and weights(text, "busy") >= 3


def test_a_profile_ends_when_nobody_waits_for_it_and_one_is_taken_at_a_time() -> None:
    started = time.monotonic()
    gone = threading.Event()
    running = threading.Thread(target=profile, args=(30, gone.is_set), kwargs={"by_processor": True})
    running.start()
    time.sleep(0.05)
    with pytest.raises(Overloaded):
        profile(0.01, lambda: False, by_processor=True)
    gone.set()
    running.join(5)
    assert time.monotonic() - started < 5
    assert profile(0.01, lambda: False, by_processor=False) is not None


def test_so_many_stacks_are_kept(at_work: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiling, "STACKS_MAX", 1)
    text = profile(0.1, lambda: False, by_processor=False)
    assert len(text.splitlines()) == 2 and b"(other stacks) " in text


async def test_profiles_are_off_unless_the_admin_interface_is_on() -> None:
    request: Any = SimpleNamespace(path="/api/v1/debug/profile", query={"seconds": "0.01"}, app={})
    request.app[CONTEXT] = SimpleNamespace(settings=Settings())
    with pytest.raises(NotFound, match="TRIPTYCH_ADMIN_API"):
        await debug.profiled(request)
    request.app[CONTEXT] = SimpleNamespace(settings=Settings(admin_api=True))
    assert (await debug.profiled(request)).status == 200
