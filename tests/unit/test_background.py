"""Background work of a worker that is put off for a while."""

from __future__ import annotations

from worker.background import PAUSE_S, PAUSES_MAX_S, Background


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_pause_ends_by_itself_and_begins_anew_when_it_is_asked_for_again() -> None:
    clock = Clock()
    background = Background(clock)
    assert not background.is_paused()
    background.pause()
    assert background.is_paused()
    clock.now += PAUSE_S - 1
    background.pause()
    clock.now += PAUSE_S - 0.1
    assert background.is_paused()
    clock.now += 0.1
    assert not background.is_paused()


def test_work_is_not_put_off_for_ever() -> None:
    clock = Clock()
    background = Background(clock)
    paused_s = 0
    while clock.now < 1000 + 2 * PAUSES_MAX_S:
        background.pause()
        paused_s += background.is_paused()
        clock.now += 1
    assert paused_s == PAUSES_MAX_S
    clock.now += PAUSE_S + 1
    background.pause()
    assert background.is_paused()
