"""Which mutants there are, and a sample of them by seed."""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code

from tests.mutants.operators import OPERATORS

ROOT = Path(__file__).resolve().parents[2]

GROUPS: dict[str, tuple[str, ...]] = {
    "storage": (
        "worker/wal",
        "worker/storage.py",
        "worker/group_sync.py",
        "worker/logs",
        "worker/series",
        "worker/vectors",
        "shared/durable.py",
        "shared/manifest.py",
    ),
    "protocol": ("coordinator/log", "coordinator/vectors", "coordinator/links.py", "coordinator/questions.py",
                 "shared/wire.py", "shared/messages", "worker/serving.py"),
    "engine": ("shared/promql/engine", "coordinator/queries"),
}  # fmt: skip
"""Group → files and folders."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """The `occurrence`-th place where `operator` applies in the file; `line` is where that is, from 1."""

    group: str
    path: str
    operator: str
    occurrence: int
    line: int

    @property
    def name(self) -> str:
        """What `--only` takes."""
        return f"{self.path}:{self.operator}:{self.occurrence}"

    def apply(self, source: str) -> str:
        mutated = mutate_code(source, OPERATORS[self.operator], self.occurrence)
        assert mutated is not None, f"{self.name} is not there"
        return mutated


def sample(seed: int, count: int, groups: Sequence[str]) -> list[Mutant]:
    """`count` mutants, the same for each group, and within a group each operator as likely as the others, so that the
    few locks are met as well as the many numbers."""
    choose = random.Random(seed)
    chosen: list[Mutant] = []
    for group in groups:
        by_operator: dict[str, list[Mutant]] = {}
        for path in files(group):
            for mutant in mutants_of(group, path):
                by_operator.setdefault(mutant.operator, []).append(mutant)
        names = sorted(by_operator)
        for _ in range(count // len(groups)):
            own = by_operator[choose.choice(names)]
            chosen.append(own.pop(choose.randrange(len(own))))
            names = [name for name in names if by_operator[name]]
    return chosen


def files(group: str) -> list[Path]:
    found: list[Path] = []
    for entry in GROUPS[group]:
        path = ROOT / entry
        found += sorted(path.rglob("*.py")) if path.is_dir() else [path]
    return found


def mutants_of(group: str, path: Path) -> Iterator[Mutant]:
    """All mutants of a file, save in annotations, assertions and the module's constants (sizes, delays: tuning)."""
    source = path.read_text()
    passed_over = _passed_over(source)
    counts = dict.fromkeys(OPERATORS, 0)
    for node in ast_nodes(get_ast(source)):
        for name, operator in OPERATORS.items():
            for (line, column), _ in operator.mutation_positions(node):
                if not any(start <= (line, column) < end for start, end in passed_over):
                    yield Mutant(group, path.relative_to(ROOT).as_posix(), name, counts[name], line)
                counts[name] += 1


Span = tuple[tuple[int, int], tuple[int, int]]


def _passed_over(source: str) -> list[Span]:
    module = ast.parse(source)
    nodes: list[ast.AST | None] = []
    for statement in module.body:
        if isinstance(statement, ast.Assign | ast.AnnAssign):
            nodes.append(statement)
    for node in ast.walk(module):
        if isinstance(node, ast.arg | ast.AnnAssign):
            nodes.append(node.annotation)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            nodes.append(node.returns)
            nodes += node.decorator_list
        elif isinstance(node, ast.Assert):
            nodes.append(node)
    return [_span(node) for node in nodes if node is not None]


def _span(node: ast.AST) -> Span:
    start = getattr(node, "lineno", 0), getattr(node, "col_offset", 0)
    return start, (getattr(node, "end_lineno", 0), getattr(node, "end_col_offset", 0))
