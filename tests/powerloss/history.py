"""What a program had tried and what had been acknowledged when the power went."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from tests.powerloss.trace import Mark


class Violation(AssertionError):
    """A state after a crash breaks a promise."""


@dataclass(slots=True)
class Act:
    """`told` is what the workload said of it before it began; `result` counts only if it is `done`."""

    told: Any
    is_done: bool = False
    result: Any = None


@dataclass(slots=True)
class History:
    """The acts that had begun, in order."""

    acts: list[Act] = field(default_factory=list)
    _by_number: dict[int, Act] = field(default_factory=dict)

    def add(self, mark: Mark) -> None:
        if mark.what == "begin":
            self._by_number[mark.number] = Act(mark.told)
            self.acts.append(self._by_number[mark.number])
        elif mark.what == "done":
            act = self._by_number[mark.number]
            act.is_done, act.result = True, mark.told

    @property
    def done(self) -> int:
        """Of acts that one thread did one after another, how many are acknowledged."""
        return sum(act.is_done for act in self.acts)


def require(holds: bool, text: str) -> None:
    if not holds:
        raise Violation(text)


def some(items: Iterable[object]) -> str:
    """For a message."""
    shown = [str(item) for item in items]
    return ", ".join(shown[:5]) + (f" and {len(shown) - 5} more" if len(shown) > 5 else "")
