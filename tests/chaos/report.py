"""What a run has found: fault × rounds × verdict, and the evidence of each violation."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from tests.chaos.rounds import Outcome

EVIDENCE_BYTES_MAX = 1500


@dataclass(frozen=True, slots=True)
class Round:
    scenario: str
    number: int
    seconds: float
    outcome: Outcome


def line(done: Round) -> str:
    """While the run goes on."""
    outcome = done.outcome
    return (
        f"{done.scenario:<20} round {done.number}  {done.seconds:5.1f} s  {outcome.acknowledged:>7} acknowledged  "
        f"{outcome.verdict}  [{outcome.plan}]"
    )


def table(rounds: list[Round]) -> str:
    lines = [f"{'fault':<20} {'rounds':>6}  verdict", f"{'-' * 20} {'-' * 6}  {'-' * 40}"]
    for name in dict.fromkeys(done.scenario for done in rounds):
        own = [done.outcome.verdict for done in rounds if done.scenario == name]
        verdicts = ", ".join(f"{count} {verdict}" for verdict, count in Counter(own).most_common())
        lines.append(f"{name:<20} {len(own):>6}  {verdicts}")
    return "\n".join(lines)


def evidence(done: Round, seed: int) -> str:
    """What was acknowledged or sent, what the answer was, where the data directory is, and how to see it again."""
    outcome = done.outcome
    lines = [
        f"  data directory and logs: {outcome.kept}",
        f"  again: python -m tests.chaos --seed {seed} --scenario {done.scenario} --round {done.number}",
    ]
    lines += [f"  {found.area} {found.kind}: {found.text[:EVIDENCE_BYTES_MAX]}" for found in outcome.findings.examples]
    return "\n".join(lines)
