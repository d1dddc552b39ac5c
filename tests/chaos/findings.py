"""What a checker has found wrong: violations of promises, with their evidence."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass

KINDS = {
    "lost": "acknowledged, everything is healed, and it is not there",
    "unlabelled": "an answer without a warning lacks what was acknowledged before it was asked for",
    "invented": "it was never sent, or was refused with the promise that nothing was appended",
    "stale": "a value that an acknowledged write has replaced",
    "twice": "once sent, twice there; or one sequence number for two things",
    "half": "a part of a batch, or of a collection that was dropped",
    "unordered": "sequence numbers out of order",
    "changed": "a reader was given something else before",
    "vanished": "a reader was given it before, and it is not there",
    "stuck": "no answer in time, or never ready again",
    "wrong": "an answer that contradicts another one, or an answer that no client can expect",
}
EXAMPLES_KEPT = 3


@dataclass(frozen=True, slots=True)
class Violation:
    kind: str
    area: str
    text: str

    def __post_init__(self) -> None:
        assert self.kind in KINDS, self.kind


class Findings:
    """Of one round; many threads report. Of each kind and area the first few are kept, all are counted."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.counts: Counter[tuple[str, str]] = Counter()
        self.examples: list[Violation] = []

    def add(self, kind: str, area: str, text: str) -> None:
        found = Violation(kind, area, text)
        with self._lock:
            self.counts[area, kind] += 1
            if self.counts[area, kind] <= EXAMPLES_KEPT:
                self.examples.append(found)

    def __bool__(self) -> bool:
        return bool(self.counts)

    def kinds(self) -> str:
        """`log lost ×3, vector stale ×1`"""
        return ", ".join(f"{area} {kind} ×{count}" for (area, kind), count in sorted(self.counts.items()))
