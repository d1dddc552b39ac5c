"""Which tests would notice a change of a line: those that execute it, by what `recording` has seen."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from coverage import CoverageData

from shared.kernels.sources import PACKAGES
from tests.mutants.recording import Recording
from tests.mutants.sampling import Mutant

TESTS_MAX = 90
"""Tests run for one mutant: the most specific ones, those that execute the fewest lines."""
FILE_TESTS_MAX = 24
"""Of one file of tests, so that several kinds of tests take part."""
CASES_MAX = 3
"""Of one parametrised test."""
SECONDS_MAX = 25.0
"""Of all of them, as long as they took when they were recorded."""

ALWAYS: dict[str, tuple[str, ...]] = {
    "worker/logs": ("tests/simulation/test_simulation.py::test_every_promise_is_kept_whatever_hypothesis_chooses",),
}
"""Path prefix → tests that are run after the others, because a line of coverage says nothing of what they look at."""

POWER_LOSS: dict[str, tuple[str, ...]] = {
    "shared/control.py": ("catalogue", "sequencer"),
    "shared/durable.py": ("catalogue", "sequencer"),
    "shared/manifest.py": ("manifest",),
    "shared/catalogue_file.py": ("catalogue",),
    "worker/storage/wal": ("wal", "wal-threads"),
    "worker/storage/rows": ("store",),
    "worker/storage/group_sync.py": ("store",),
    "worker/storage/objects.py": ("series", "vectors"),
    "worker/logs": ("log",),
    "worker/series": ("series",),
    "worker/vectors": ("vectors",),
}
"""Path prefix → workloads of tests/powerloss, for syncs that are left out: only the loss of power shows one."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """Tests to run, in order, and the seconds that they took when they were recorded."""

    tests: list[str]
    seconds: float


class Selection:
    """The tests of each line of `tree`."""

    def __init__(self, tree: Path, recordings: Iterable[Recording]) -> None:
        self._tree = tree
        self._seconds: dict[str, float] = {}
        self._lines: dict[str, dict[int, set[str]]] = {}
        self._weights: Counter[str] = Counter()
        for recording in recordings:
            self._take(recording)
        self._importers = _importers(tree)

    def _take(self, recording: Recording) -> None:
        self._seconds |= recording.seconds
        data = CoverageData(str(recording.data))
        data.read()
        for path in data.measured_files():
            by_line = self._lines.setdefault(path, {})
            for line, contexts in data.contexts_by_lineno(path).items():
                # A context is a test and its phase; a fixture executes a line for its test as well.
                tests = {context.rpartition("|")[0] for context in contexts} & recording.seconds.keys()
                by_line.setdefault(line, set()).update(tests)
                self._weights.update(tests)

    def importers(self, path: str) -> set[str]:
        """The files that import from this one."""
        return self._importers.get(path, set())

    def tests_of(self, mutant: Mutant) -> Chosen:
        """The most specific tests first; none when no test executes the line."""
        tests = self._executing(mutant)
        if not tests and has_kernels((self._tree / mutant.path).read_text()):
            # A compiled kernel is not seen: the tests of the lines that call it are.
            tests = self._calling(mutant)
        chosen = self._most_specific(tests)
        always = [test for prefix, own in ALWAYS.items() if mutant.path.startswith(prefix) for test in own]
        if mutant.operator == "LeftOutCall" and "sync" in self._line(mutant):
            workloads = [name for prefix, own in POWER_LOSS.items() if mutant.path.startswith(prefix) for name in own]
            always += [
                f"tests/mutants/power_loss.py::test_nothing_is_lost_with_the_power[{name}]" for name in workloads
            ]
        always = [test for test in always if (self._tree / test.partition("::")[0]).exists()]
        return Chosen([*chosen, *always], sum(self._seconds[test] for test in chosen) + 20.0 * len(always))

    def _line(self, mutant: Mutant) -> str:
        return (self._tree / mutant.path).read_text().splitlines()[mutant.line - 1]

    def _executing(self, mutant: Mutant) -> set[str]:
        """Of the line, or of the statement that it is a part of: coverage knows a statement by its first line."""
        by_line = self._lines.get(mutant.path, {})
        if tests := by_line.get(mutant.line):
            return tests
        innermost: ast.stmt | None = None
        tree = ast.parse((self._tree / mutant.path).read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.stmt) and node.lineno <= mutant.line <= (node.end_lineno or 0):
                innermost = node if innermost is None or node.lineno >= innermost.lineno else innermost
        if innermost is not None and _is_field(tree, innermost):
            # Executed by the import: its default is noticed by those that use the file.
            return {test for own in by_line.values() for test in own}
        first, last = (innermost.lineno, mutant.line) if innermost is not None else (mutant.line, mutant.line)
        if isinstance(innermost, ast.FunctionDef | ast.AsyncFunctionDef):  # its signature, executed by the import
            last = innermost.end_lineno or last
        return {test for line in range(first, last + 1) for test in by_line.get(line, ())}

    def _calling(self, mutant: Mutant) -> set[str]:
        """Of the lines that name the function with the mutant, or one that calls it and is not seen itself."""
        tests: set[str] = set()
        known: set[str] = set()
        wanted = {(mutant.path, _function_at(self._tree / mutant.path, mutant.line))}
        while wanted:
            path, name = wanted.pop()
            known.add(name)
            for file in (path, *self.importers(path)):
                for line in _naming(self._tree / file, name):
                    own = self._lines.get(file, {}).get(line, set())
                    tests |= own
                    caller = _function_at(self._tree / file, line)
                    if not own and caller and caller not in known:
                        wanted.add((file, caller))
        return tests

    def _most_specific(self, tests: Iterable[str]) -> list[str]:
        chosen: list[str] = []
        taken: Counter[str] = Counter()
        seconds = 0.0
        for test in sorted(tests, key=lambda test: (self._weights[test], test)):
            file, function = test.partition("::")[0], test.partition("[")[0]
            too_many = taken[file] == FILE_TESTS_MAX or taken[function] == CASES_MAX or len(chosen) == TESTS_MAX
            if too_many or (chosen and seconds + self._seconds[test] > SECONDS_MAX):
                continue
            chosen.append(test)
            taken.update((file, function))
            seconds += self._seconds[test]
        return chosen


def _is_field(tree: ast.Module, statement: ast.stmt) -> bool:
    """Or the line that begins the class."""
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    is_method = isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef)
    return statement in classes or (not is_method and any(statement in node.body for node in classes))


@cache
def _function_at(path: Path, line: int) -> str:
    """The name of the innermost function around a line, "" where there is none."""
    functions = [
        node
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.lineno <= line <= (node.end_lineno or 0)
    ]
    return max(functions, key=lambda node: node.lineno).name if functions else ""


@cache
def _naming(path: Path, name: str) -> set[int]:
    """The first lines of the statements that use a name, also as an attribute."""
    found: dict[tuple[int, int], int] = {}
    for statement in ast.walk(ast.parse(path.read_text())):  # an outer one before those within
        if isinstance(statement, ast.stmt):
            for node in ast.walk(statement):
                if name in (getattr(node, "id", ""), getattr(node, "attr", "")):
                    found[node.lineno, node.col_offset] = statement.lineno  # type: ignore[attr-defined]
    return set(found.values())


def has_kernels(source: str) -> bool:
    return any(sign in source for sign in ("njit", "shared.kernels import", "@kernel"))


def _importers(tree: Path) -> dict[str, set[str]]:
    """Module file → the files that import from it."""
    direct: dict[str, set[str]] = {}
    for package in PACKAGES:
        for path in (tree / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ImportFrom) and node.module:
                    stem = node.module.replace(".", "/")
                    for name in (f"{stem}.py", *(f"{stem}/{alias.name}.py" for alias in node.names)):
                        direct.setdefault(name, set()).add(path.relative_to(tree).as_posix())
    return direct
