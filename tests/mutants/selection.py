"""Which tests would notice a change of a line: those that execute it, by coverage with the test as context."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from coverage import CoverageData

from tests.mutants.sampling import ROOT, Mutant

TESTS_MAX = 60
"""Tests run for one mutant: the most specific ones, those that execute the fewest lines."""
FILE_TESTS_MAX = 12
"""Of one file of tests, so that several kinds of tests take part."""
ALWAYS: dict[str, tuple[str, ...]] = {}
"""Path prefix → tests that run the code in another process, where coverage does not see it."""


def record(tree: Path, tests: Iterable[str], timeout_s: float) -> Path:
    """Run these tests in `tree` under coverage; the data file."""
    data = tree / ".coverage.contexts"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--cov=shared", "--cov=coordinator"]
    command += ["--cov=worker", "--cov-context=test", "--cov-report=", "--timeout=300", *tests]
    subprocess.run(
        command, cwd=tree, env=environment(tree) | {"COVERAGE_FILE": str(data)}, timeout=timeout_s, check=False
    )
    return data


def environment(tree: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TRIPTYCH_")}
    return kept | {
        "PYTHONPATH": str(tree),
        "PYTHONDONTWRITEBYTECODE": "1",
        "NUMBA_CACHE_DIR": str(tree.with_name(tree.name + "-kernels")),
        "TRIPTYCH_PROMQLTEST": os.environ.get("TRIPTYCH_PROMQLTEST") or str(ROOT.parent / "shared" / "promqltest"),
    }


class Selection:
    """The tests of each line, from the data of `record`."""

    def __init__(self, tree: Path, data_file: Path) -> None:
        self._tree = tree
        self._data = CoverageData(str(data_file))
        self._data.read()
        self._lines: dict[str, dict[int, list[str]]] = {}
        self._weights: Counter[str] = Counter()
        for path in self._data.measured_files():
            by_line = self._data.contexts_by_lineno(path)
            self._lines[Path(path).relative_to(tree).as_posix()] = by_line
            for contexts in by_line.values():
                self._weights.update(contexts)
        self._importers = _importers(tree)

    def importers(self, path: str) -> set[str]:
        """The files that import from this one."""
        return self._importers.get(path, set())

    def tests_of(self, mutant: Mutant) -> list[str]:
        """Test ids, the most specific first; empty when no test executes the line."""
        contexts = set(self._lines.get(mutant.path, {}).get(mutant.line, ()))
        if not _tests(contexts):
            contexts = self._statement(mutant)
        if not _tests(contexts) and "njit" in (self._tree / mutant.path).read_text():
            # A compiled kernel is not seen: the tests of the modules that call it are.
            for importer in self._importers.get(mutant.path, ()):
                for own in self._lines.get(importer, {}).values():
                    contexts.update(own)
        always = [test for prefix, own in ALWAYS.items() if mutant.path.startswith(prefix) for test in own]
        return [*self._most_specific(_tests(contexts)), *always]

    def _statement(self, mutant: Mutant) -> set[str]:
        """Of the statement that the line is a part of: coverage knows its first line."""
        best: ast.stmt | None = None
        for node in ast.walk(ast.parse((self._tree / mutant.path).read_text())):
            if isinstance(node, ast.stmt) and node.lineno <= mutant.line <= (node.end_lineno or 0):
                best = node if best is None or node.lineno >= best.lineno else best
        if best is None:
            return set()
        own = self._lines.get(mutant.path, {})
        return {context for line in range(best.lineno, mutant.line + 1) for context in own.get(line, ())}

    def _most_specific(self, tests: set[str]) -> list[str]:
        chosen: list[str] = []
        per_file: Counter[str] = Counter()
        for test in sorted(tests, key=lambda test: (self._weights[f"{test}|run"], test)):
            file = test.partition("::")[0]
            if per_file[file] < FILE_TESTS_MAX and len(chosen) < TESTS_MAX:
                chosen.append(test)
                per_file[file] += 1
        return chosen


def _tests(contexts: set[str]) -> set[str]:
    return {context.removesuffix("|run") for context in contexts if context.endswith("|run")}


def _importers(tree: Path) -> dict[str, set[str]]:
    """Module file → the files that import from it, directly or through others that have kernels."""
    direct: dict[str, set[str]] = {}
    for package in ("shared", "coordinator", "worker"):
        for path in (tree / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ImportFrom) and node.module:
                    stem = node.module.replace(".", "/")
                    for name in (f"{stem}.py", *(f"{stem}/{alias.name}.py" for alias in node.names)):
                        direct.setdefault(name, set()).add(path.relative_to(tree).as_posix())
    return direct
