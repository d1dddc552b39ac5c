"""The tables of a run, in Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from loadtest.overload.outcomes import Outcomes

HEADING = (
    "| load | sent/s | goodput/s | of peak | p50 ms | p99 ms | of idle p99 | refused | refusal ms | clients' share |"
    " other outcomes |\n|---|---|---|---|---|---|---|---|---|---|---|"
)
HEADING_BY_KIND = (
    "| load | kind | sent | answered | p50 ms | p99 ms | refused | first second: answered | p50 ms | p99 ms |\n"
    "|---|---|---|---|---|---|---|---|---|---|"
)
"""The columns before those of the first second are of the rest of the run."""
ANSWERED = ("200", "204", "503")


@dataclass(frozen=True, slots=True)
class Measured:
    """One run. `own_share`: of one processor, taken by the clients."""

    rate: float
    outcomes: Outcomes
    own_share: float

    @property
    def p99_ms(self) -> float:
        return self.outcomes.wait_ms(99)


def row(label: str, run: Measured, idle: Measured | None, peak_goodput: float | None) -> str:
    """Of the first table."""
    outcomes = run.outcomes
    others = {status: count for status, count in outcomes.statuses().items() if status not in ANSWERED}
    if outcomes.without_advice():
        others["without Retry-After"] = outcomes.without_advice()
    return _line(
        label,
        f"{run.rate:,.0f}",
        f"{outcomes.goodput:,.0f}",
        "" if peak_goodput is None else f"{outcomes.goodput / peak_goodput:.0%}",
        f"{outcomes.wait_ms(50):.1f}",
        f"{run.p99_ms:.1f}",
        "" if idle is None else f"{run.p99_ms / idle.p99_ms:.1f} ×",
        f"{outcomes.refused_share:.0%}",
        f"{outcomes.refusal_ms:.1f}",
        f"{run.own_share:.0%}",
        ", ".join(f"{name}: {count}" for name, count in sorted(others.items())),
    )


def rows_by_kind(label: str, run: Measured) -> Sequence[str]:
    """Of the second table: one for each kind, and one for all."""
    return [_row_of_kind(label, kind, own) for kind, own in (*run.outcomes.by_kind(), ("all", run.outcomes))]


def _row_of_kind(label: str, kind: str, outcomes: Outcomes) -> str:
    first, rest = outcomes.split()
    return _line(
        label,
        kind,
        f"{len(rest.all):,}",
        f"{rest.answered:,}",
        f"{rest.wait_ms(50):.1f}",
        f"{rest.wait_ms(99):.1f}",
        f"{rest.refused_share:.0%}",
        f"{first.answered:,}",
        f"{first.wait_ms(50):.1f}",
        f"{first.wait_ms(99):.1f}",
    )


def _line(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |"
