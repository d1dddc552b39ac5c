"""Modules of the language, the engine and the planner import each other in one direction."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def modules_of(package: str) -> dict[str, Path]:
    """Dotted name → file of every module of the package, packages themselves left out."""
    files = [path for path in (ROOT / package.replace(".", "/")).rglob("*.py") if path.name != "__init__.py"]
    return {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in files}


def imported(path: Path) -> Iterator[str]:
    """Every dotted name that an import anywhere in the file may stand for."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("package", ["shared.promql", "coordinator.queries"])
def test_no_modules_import_each_other_in_a_circle(package: str) -> None:
    modules = modules_of(package)
    assert modules
    graph = {name: set(imported(path)) & modules.keys() for name, path in modules.items()}
    assert any(graph.values())
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the modules
