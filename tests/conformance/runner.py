"""Runs scripts against a back end and judges every evaluation in them."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from loadtest.harness.memory_source import matches
from shared.errors import TriptychError
from shared.labels import Labels
from shared.promql import ast, parser
from tests.conformance.answer import Answer, differences, expected_series, series_differences
from tests.conformance.data import Data, Holdings
from tests.conformance.script import Clear, Eval, Load, Times, parse_script

Verdict = Literal["passed", "failed", "unsupported"]
RANGE_CHECK_STEP_MS = 60_000
_GRID_DEPENDENT = re.compile(r"\b(?:step|range|start|end)\s*\(", re.IGNORECASE)


class Backend(Protocol):
    name: str
    start_timestamps: bool
    """Whether samples can be given start timestamps."""
    known_remarks: re.Pattern[str] | None
    """The texts of the warnings and infos that answers may have, which then have no texts of errors and no order; None:
    they have everything."""
    histograms: bool
    """Whether samples can be native histograms."""

    def replace(self, data: Data) -> None: ...
    def instant(self, text: str, time_ms: int) -> Answer: ...
    def range(self, text: str, times: Times) -> Answer: ...
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one evaluation went; `detail` says why it failed or is not supported."""

    file: str
    line: int
    query: str
    verdict: Verdict
    detail: str = ""


def run_script(path: Path, backend: Backend) -> Iterator[Outcome]:
    """Every evaluation of a script, in order."""
    holdings = Holdings()
    changed = True
    for command in parse_script(path):
        if isinstance(command, Clear):
            holdings.clear()
            changed = True
        elif isinstance(command, Load):
            holdings.load(command)
            changed = True
        else:
            missing = _unsupported(command, holdings, backend)
            if missing:
                yield Outcome(path.name, command.line, command.query, "unsupported", missing)
                continue
            if changed:
                backend.replace(holdings.data)
                changed = False
            try:
                faults = list(_faults(command, backend))
            except Exception as error:  # a defect fails this evaluation, not the run
                faults = [f"crashed: {type(error).__name__}: {error}"]
            verdict: Literal["passed", "failed"] = "failed" if faults else "passed"
            yield Outcome(path.name, command.line, command.query, verdict, "; ".join(faults))


def _faults(case: Eval, backend: Backend) -> Iterator[str]:
    if case.times is not None:
        yield from differences(case, backend.range(case.query, case.times), backend.known_remarks)
        return
    answer = backend.instant(case.query, case.time_ms)
    faults = list(differences(case, answer, backend.known_remarks))
    yield from faults
    if not faults and _holds_in_ranges(case, answer):
        yield from _range_faults(case, backend)


def _holds_in_ranges(case: Eval, answer: Answer) -> bool:
    """Whether the instant's answer must also be found in the middle of a range query."""
    return (
        answer.kind in ("vector", "scalar")
        and case.range_vector is None
        and not case.ordered
        and _GRID_DEPENDENT.search(case.query) is None
    )


def _range_faults(case: Eval, backend: Backend) -> Iterator[str]:
    start_ms = max(case.time_ms - RANGE_CHECK_STEP_MS, case.time_ms % RANGE_CHECK_STEP_MS)
    times = Times(start_ms, case.time_ms + RANGE_CHECK_STEP_MS, RANGE_CHECK_STEP_MS)
    answer = backend.range(case.query, times)
    if answer.kind == "error":
        yield f"as a range query it failed: {answer.error}"
        return
    there = [(labels, [pair for pair in pairs if pair[0] == case.time_ms]) for labels, pairs in answer.series]
    for difference in series_differences(expected_series(case), there):
        yield f"as a range query: {difference}"


def _unsupported(case: Eval, holdings: Holdings, backend: Backend) -> str:
    """Why the evaluation cannot be judged: it needs native histograms or start timestamps where there are none."""
    if case.holds_histograms and not backend.histograms:
        return "expects native histograms"
    starts = set() if backend.start_timestamps else {n for n, samples in holdings.data.items() if samples.has_start}
    histograms = set() if backend.histograms else {n for n, samples in holdings.data.items() if samples.has_histogram}
    if not histograms and not starts:
        return ""
    try:
        selectors = list(_selectors(parser.parse(case.query)))
    except TriptychError:
        return ""
    if any(_matches(matchers, labels) for matchers in selectors for labels in histograms):
        return "selects native histograms"
    if any(_matches(matchers, labels) for matchers in selectors for labels in starts):
        return "selects samples with start timestamps"
    return ""


def _selectors(node: object) -> Iterator[tuple[ast.Matcher, ...]]:
    if isinstance(node, ast.VectorSelector):
        yield node.matchers
    elif isinstance(node, Iterable) and not isinstance(node, str):
        for item in node:
            yield from _selectors(item)
    elif dataclasses.is_dataclass(node):
        for field in dataclasses.fields(node):
            yield from _selectors(getattr(node, field.name))


def _matches(matchers: Iterable[ast.Matcher], labels: Labels) -> bool:
    values = dict(labels)
    return all(matches(matcher, values.get(matcher.name, "")) for matcher in matchers)
