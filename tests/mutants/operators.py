"""The kinds of mistakes that are put into the code: cosmic-ray's operators, and three of our own for what a database
gets wrong (a call that is left out, an error that is not raised, a lock that is not taken)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import parso
from cosmic_ray.operators.operator import Example, Operator
from cosmic_ray.plugins import get_operator

Position = tuple[tuple[int, int], tuple[int, int]]

PLAIN_CALLS = {"event", "print"}
"""Calls that only tell what happened: leaving one out changes no behaviour that is promised."""


_LOCK = re.compile(r"(?<![a-z])lock(ed)?(?![a-z])")
"""`_gather_lock` and `_locked(path)`; not `blocks`."""


class LeftOutCall(Operator):
    """A call for its effect, `do(it)`, becomes `pass`: a dropped fsync, a forgotten notification."""

    def mutation_positions(self, node: Any) -> Iterator[Position]:
        if _is_call_statement(node) and _called(node) not in PLAIN_CALLS:
            yield node.start_pos, node.end_pos

    def mutate(self, node: Any, index: int) -> Any:
        return _pass(node)

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        return (Example("file.sync()\n", "pass\n"),)


class LeftOutRaise(Operator):
    """`raise X(…)` becomes `pass`: a check that checks nothing, an error path that is skipped."""

    def mutation_positions(self, node: Any) -> Iterator[Position]:
        if node.type == "raise_stmt" or (node.type == "keyword" and node.value == "raise" and _is_statement(node)):
            yield node.start_pos, node.end_pos

    def mutate(self, node: Any, index: int) -> Any:
        return _pass(node)

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        return (Example("raise ValueError(1)\n", "pass\n"),)


class LeftOutLock(Operator):
    """`with self._lock:` becomes `if True:`."""

    def mutation_positions(self, node: Any) -> Iterator[Position]:
        is_single = node.type == "with_stmt" and len(node.children) == 4
        if is_single and _LOCK.search(node.children[1].get_code()):
            yield node.start_pos, node.children[2].end_pos

    def mutate(self, node: Any, index: int) -> Any:
        changed = parso.parse("if True: pass\n").children[0]
        changed.get_first_leaf().prefix = node.get_first_leaf().prefix
        changed.children[-1] = node.children[-1]
        return changed

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        return (Example("with lock:\n    x\n", "if True:\n    x\n"),)


def _is_statement(node: Any) -> bool:
    return node.parent is not None and node.parent.type in ("simple_stmt", "suite", "file_input")


def _is_call_statement(node: Any) -> bool:
    if node.type == "await_expr" or node.type == "atom_expr":
        last = node.children[-1]
        last = last.children[-1] if last.type == "atom_expr" else last
        is_call = last.type == "trailer" and last.children[0].value == "("
        return is_call and node.parent is not None and node.parent.type == "simple_stmt"
    return False


def _called(node: Any) -> str:
    """The last name of what is called."""
    text = node.get_code(include_prefix=False)
    return text.split("(", 1)[0].removeprefix("await ").rpartition(".")[2].strip()


def _pass(node: Any) -> Any:
    return parso.python.tree.Keyword("pass", node.start_pos, prefix=node.get_first_leaf().prefix)


_LIBRARY = (
    "AddNot",
    "NumberReplacer",
    "ReplaceAndWithOr",
    "ReplaceOrWithAnd",
    "ReplaceTrueWithFalse",
    "ReplaceFalseWithTrue",
    "ReplaceBreakWithContinue",
    "ReplaceContinueWithBreak",
    "ZeroIterationForLoop",
    "ReplaceBinaryOperator_Add_Sub",
    "ReplaceBinaryOperator_Sub_Add",
    "ReplaceBinaryOperator_Mul_Div",
    "ReplaceBinaryOperator_FloorDiv_Mul",
    "ReplaceComparisonOperator_Lt_LtE",
    "ReplaceComparisonOperator_LtE_Lt",
    "ReplaceComparisonOperator_Gt_GtE",
    "ReplaceComparisonOperator_GtE_Gt",
    "ReplaceComparisonOperator_Eq_NotEq",
    "ReplaceComparisonOperator_NotEq_Eq",
    "ReplaceComparisonOperator_Is_IsNot",
    "ReplaceComparisonOperator_IsNot_Is",
    "ReplaceUnaryOperator_Delete_Not",
    "ReplaceUnaryOperator_USub_UAdd",
)

OPERATORS: Mapping[str, Operator] = {
    "LeftOutCall": LeftOutCall(),
    "LeftOutRaise": LeftOutRaise(),
    "LeftOutLock": LeftOutLock(),
    **{name: get_operator(f"core/{name}")() for name in _LIBRARY},
}
