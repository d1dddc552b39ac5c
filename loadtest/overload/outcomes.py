"""What became of the requests of one run, and what that says of the service."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

DEADLINE_S = 1.0
"""A request that is not answered so long after it was due has failed, and its client goes away."""
BEGINNING_S = 1.0
"""The first part of a run, in which the service finds out that more comes than it can answer."""


class Failure(StrEnum):
    """Why there is no answer."""

    LATE = "late"
    LOST = "connection lost"
    NOT_CONNECTED = "not connected"
    NO_CONNECTION = "no connection"


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one request. `due_s`: from the beginning of the run; `waited_s`: from when it was due, at most the deadline;
    `status`: of the answer, or why there is none; `lacks_advice`: it is a refusal without `Retry-After`."""

    kind: str
    due_s: float
    waited_s: float
    status: str
    lacks_advice: bool = False

    @property
    def is_answered(self) -> bool:
        """With 2xx within the deadline."""
        return self.status.startswith("2") and self.waited_s <= DEADLINE_S


@dataclass(frozen=True, slots=True)
class Outcomes:
    """Of requests that were due in `seconds` of a run."""

    all: tuple[Outcome, ...]
    seconds: float

    @property
    def answered(self) -> int:
        """Requests answered with 2xx within the deadline."""
        return sum(outcome.is_answered for outcome in self.all)

    @property
    def goodput(self) -> float:
        """Of these, how many a second."""
        return self.answered / self.seconds

    @property
    def failed_share(self) -> float:
        """Of the requests, those that were not answered with 2xx within the deadline."""
        return 1 - self.answered / max(1, len(self.all))

    @property
    def refused_share(self) -> float:
        return self.statuses()["503"] / max(1, len(self.all))

    @property
    def refusal_ms(self) -> float:
        """Median time of a refusal."""
        return _percentile_ms((outcome.waited_s for outcome in self.all if outcome.status == "503"), 50)

    def wait_ms(self, percentile: float) -> float:
        """Of admitted requests. One that was not answered in time counts as one that took the whole deadline."""
        admitted = (one for one in self.all if one.status.startswith("2") or one.status == Failure.LATE)
        return _percentile_ms((min(one.waited_s, DEADLINE_S) for one in admitted), percentile)

    def statuses(self) -> Counter[str]:
        return Counter(outcome.status for outcome in self.all)

    def without_advice(self) -> int:
        """Refusals that lack `Retry-After`."""
        return sum(outcome.lacks_advice for outcome in self.all)

    def by_kind(self) -> Iterator[tuple[str, Outcomes]]:
        """(kind, its outcomes), by name."""
        for kind in sorted({outcome.kind for outcome in self.all}):
            yield kind, Outcomes(tuple(one for one in self.all if one.kind == kind), self.seconds)

    def split(self) -> tuple[Outcomes, Outcomes]:
        """(Of the beginning, of the rest of the run.)"""
        first_s = min(BEGINNING_S, self.seconds)
        first = tuple(one for one in self.all if one.due_s < first_s)
        rest = tuple(one for one in self.all if one.due_s >= first_s)
        return Outcomes(first, first_s), Outcomes(rest, max(self.seconds - first_s, 1e-9))


def _percentile_ms(times_s: Iterable[float], percentile: float) -> float:
    times = list(times_s)
    return float(np.percentile(times, percentile)) * 1000 if times else float("nan")
