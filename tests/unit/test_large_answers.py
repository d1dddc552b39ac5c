"""What had a large answer is remembered, within a bound."""

from __future__ import annotations

from coordinator.direct.large_answers import KEPT_MAX, LargeAnswers


def test_those_noted_last_are_kept() -> None:
    large: LargeAnswers[int] = LargeAnswers()
    for key in range(KEPT_MAX + 2):
        large.note(key)
    assert [key for key in range(KEPT_MAX + 2) if key not in large] == [0, 1]
