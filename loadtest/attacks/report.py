"""Results as text: a few lines when an attack ends, and a table in Markdown at the end of all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from loadtest.attacks.running import Result

Held = Mapping[tuple[str, str], int]
"""Bytes that each (process, owner) holds."""
GROWTH_SHOWN_BYTES_MIN = 1 << 20


def lines(result: Result) -> str:
    """What happened, in full."""
    name = result.attack.name if result.attack else "none"
    text = [f"{name}: {verdict(result)}"]
    for kind, waits in result.waits.items():
        errors = ", ".join(f"{count} × {error}" for error, count in waits.errors.items())
        text.append(
            f"  {kind:<8} {waits.sent:>5} sent, p50 {waits.p50_ms:8.1f} ms, p99 {waits.p99_ms:8.1f} ms,"
            f" longest {waits.max_ms:8.1f} ms{', errors: ' + errors if errors else ''}"
        )
    memory = result.memory
    text.append(
        f"  memory   {memory.before:,.0f} MB before, {memory.peak:,.0f} at most, {memory.after:,.0f} after"
        f" (shared pages once: {memory.proportional_before:,.0f} before, {memory.proportional_after:,.0f} after)"
    )
    if result.faults.restarts:
        text.append(f"  restarts {result.faults.restarts}")
    text += [f"  down     {line}" for line in result.faults.down]
    if result.answers is not None:
        for outcome, count in sorted(result.answers.count.items()):
            message = " ".join(result.answers.messages.get(outcome, "").split())
            text.append(f"  attacker {count} × {outcome}{': ' + message if message else ''}")
        text.append(f"  attacker waited at most {result.answers.longest_s:.1f} s")
    return "\n".join(text) + "\n"


def verdict(result: Result) -> str:
    missed = result.missed()
    return f"missed: {'; '.join(missed)}" if missed else "met"


def table(results: Iterable[Result]) -> str:
    rows = [
        "| attack | p50 ms | p99 ms | longest ms | target ms | errors | memory MB | target MB | restarts, down"
        " | attacker's answers | targets |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    rows += [_row(result) for result in results]
    return "\n".join(rows) + "\n"


def growth(before: Held, after: Held) -> str:
    """Who holds how much more or less, the most first, where it is GROWTH_SHOWN_BYTES_MIN or more."""
    by_owner = {owner: after.get(owner, 0) - before.get(owner, 0) for owner in {*before, *after}}
    rows = ["| process | owner | more MB |", "|---|---|---|"]
    for (process, owner), grown in sorted(by_owner.items(), key=lambda item: -item[1]):
        if abs(grown) >= GROWTH_SHOWN_BYTES_MIN:
            rows.append(f"| {process} | {owner} | {grown / (1 << 20):+,.1f} |")
    return "\n".join(rows) + "\n"


def _row(result: Result) -> str:
    attack, memory, faults = result.attack, result.memory, result.faults
    waits = [waits for waits in result.waits.values() if waits.sent]
    answers = result.answers.count.items() if result.answers else ()
    cells: Sequence[object] = (
        f"{attack.name}: {attack.what}" if attack else "none",
        f"{max(w.p50_ms for w in waits):.1f}",
        f"{max(w.p99_ms for w in waits):.0f}",
        f"{result.longest_s * 1000:.0f}",
        f"{attack.wait_s * 1000:.0f}" if attack else "–",
        result.errors,
        f"{memory.before:,.0f} +{memory.growth:,.0f}, after {memory.after - memory.before:+,.0f}",
        f"+{attack.growth_mb:,.0f}" if attack and attack.growth_mb is not None else "–",
        f"{faults.restarts}, {len(faults.down)}",
        ", ".join(f"{count} × {outcome}" for outcome, count in sorted(answers)) or "–",
        "**missed**" if result.missed() else "met",
    )
    return "| " + " | ".join(map(str, cells)) + " |"
