"""The exemplars that come with the samples of the workload `series`: one with each sample, of its time and value."""

from __future__ import annotations

from collections.abc import Sequence

from tests.powerloss.history import Act, History, Violation, require, some
from tests.powerloss.workloads import histograms
from tests.unit import exemplar_requests
from worker.series.part import SeriesPart

Exemplars = set[tuple[str, int, float]]
"""(job, Unix ms, value)."""


def body(series: list) -> bytes:
    """The request with the floats of these series, and with an exemplar for each of their samples."""
    return exemplar_requests.body(
        (labels, histograms.floats(points), [({"n": str(value)}, value, at) for at, value in points])
        for labels, points in series
    )


def held(part: SeriesPart) -> Exemplars:
    found = exemplar_requests.held(part)
    return {(dict(labels)["job"], at, value) for labels, own in found.items() for _, value, at in own}


def match(held: Exemplars, history: History, *, is_synced: bool) -> None:
    """The exemplars are those after some number of acts, no fewer than are done; or, if nobody has synced them, some of
    those that were written. Raises Violation."""
    written = {tuple(own) for act in history.acts if act.told[0] == "write" for own in act.told[1]}
    require(held <= written, f"exemplars were invented: {some(sorted(held - written))}")
    states, first = _states(history.acts), history.done
    if is_synced and held not in states[first:]:
        missing, added = states[first] - held, held - states[first]
        raise Violation(f"not the exemplars of {first} acts: missing {some(missing)}; too much {some(added)}")


def _states(acts: Sequence[Act]) -> list[Exemplars]:
    """The exemplars after each number of acts: one that is older than the latest of its series is left out."""
    states: list[Exemplars] = [set()]
    for act in acts:
        now = set(states[-1])
        if act.told[0] == "write":
            for job, at, value in act.told[1]:
                if at >= max((t for own, t, _ in now if own == job), default=at):
                    now.add((job, at, value))
        elif act.told[0] == "delete":
            _, job, start, end = act.told
            now = {own for own in now if own[0] != job or not start <= own[1] <= end}
        states.append(now)
    return states
