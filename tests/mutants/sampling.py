"""Which mutants there are, and a sample of them by seed."""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code

from tests.mutants.operators import OPERATORS, PLAIN_CALLS

ROOT = Path(__file__).resolve().parents[2]

GROUPS: dict[str, tuple[str, ...]] = {
    "storage": (
        "worker/storage",
        "worker/methods",
        "worker/logs",
        "worker/series",
        "worker/queries",
        "worker/vectors",
        "shared/control.py",
        "shared/durable.py",
        "shared/manifest.py",
        "shared/catalogue_file.py",
    ),
    "protocol": ("coordinator/log", "coordinator/vectors", "coordinator/fanout/links.py",
                 "coordinator/fanout/membership.py", "coordinator/fanout/calls.py", "shared/wire.py", "shared/messages",
                 "worker/serving.py"),
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
    """`count` mutants, as many of each group, the groups in turn."""
    by_group = [_sample_of(group, seed, count // len(groups)) for group in groups]
    return [mutant for in_turn in zip(*by_group, strict=True) for mutant in in_turn]


def _sample_of(group: str, seed: int, count: int) -> list[Mutant]:
    """Each operator is as likely as the others, so that the few locks are met as well as the many numbers."""
    choose = random.Random(f"{seed} {group}")
    by_operator: dict[str, list[Mutant]] = {}
    for mutant in all_of(group):
        by_operator.setdefault(mutant.operator, []).append(mutant)
    chosen: list[Mutant] = []
    while len(chosen) < count and by_operator:
        operator = choose.choice(sorted(by_operator))
        left = by_operator[operator]
        chosen.append(left.pop(choose.randrange(len(left))))
        if not left:
            del by_operator[operator]
    return chosen


@cache
def all_of(group: str) -> tuple[Mutant, ...]:
    return tuple(mutant for path in files(group) for mutant in mutants_of(group, path))


def files(group: str) -> list[Path]:
    found: list[Path] = []
    for entry in GROUPS[group]:
        path = ROOT / entry
        found += sorted(path.rglob("*.py")) if path.is_dir() else [path]
    return found


def mutants_of(group: str, path: Path) -> Iterator[Mutant]:
    """All mutants of a file, save where nothing that is promised would change: see `_passed_over`. The star of a
    signature or an argument is no multiplication."""
    source = path.read_text()
    passed_over = _passed_over(source)
    counts = dict.fromkeys(OPERATORS, 0)
    for node in ast_nodes(get_ast(source)):
        is_star = node.parent is not None and node.parent.type in ("parameters", "param", "argument")
        for name, operator in OPERATORS.items():
            for (line, column), _ in operator.mutation_positions(node):
                if not (is_star and "Binary" in name) and not any(
                    start <= (line, column) < end for start, end in passed_over
                ):
                    yield Mutant(group, path.relative_to(ROOT).as_posix(), name, counts[name], line)
                counts[name] += 1


Span = tuple[tuple[int, int], tuple[int, int]]


def _passed_over(source: str) -> list[Span]:
    """Where no mutant is made.

    The module's constants are sizes, delays and magic numbers: another value is as right, as long as all use the same.
    Assertions, such as `zip(…, strict=True)`, and annotations are there for the reader, decorators are options of
    compilers and of dataclasses.
    The text of an error or of a line in the log, and what tells of work (timings, events), is not what is promised.
    """
    module = ast.parse(source)
    nodes: list[ast.AST | None] = [node for node in module.body if isinstance(node, ast.Assign | ast.AnnAssign)]
    for node in ast.walk(module):
        if isinstance(node, ast.arg | ast.AnnAssign):
            nodes.append(node.annotation)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            nodes += [node.returns, *node.decorator_list]
            nodes += [node] if node.name == "__repr__" else []
        elif isinstance(node, ast.ClassDef):
            nodes += node.decorator_list
        elif isinstance(node, ast.Raise):
            nodes += [inner for inner in ast.walk(node) if isinstance(inner, ast.JoinedStr)]
        elif _tells_only(node):
            nodes.append(node)
        elif isinstance(node, ast.Call) and _name(node.func) == "zip":
            nodes += [keyword.value for keyword in node.keywords if keyword.arg == "strict"]
    return [_span(node) for node in nodes if node is not None]


def _tells_only(node: ast.AST) -> bool:
    """An assertion, a call or branch that only says what happened, or a branch for the checker of types."""
    if isinstance(node, ast.Call):
        return _name(node.func) in PLAIN_CALLS
    if isinstance(node, ast.If):
        only_tells = not node.orelse and all(isinstance(own, ast.Expr) and _tells_only(own.value) for own in node.body)
        return only_tells or _name(node.test) == "TYPE_CHECKING"
    return isinstance(node, ast.Assert)


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _span(node: ast.AST) -> Span:
    start = getattr(node, "lineno", 0), getattr(node, "col_offset", 0)
    return start, (getattr(node, "end_lineno", 0), getattr(node, "end_col_offset", 0))
