"""The page of promises names tests that exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
PAGE = (TESTS.parent / "docs" / "promises.md").read_text()
PROMISES = re.findall(r"^\| (?!promise \|)([^|-][^|]*) \| ([^|]*) \|$", PAGE, re.MULTILINE)
GROUPS = re.findall(r"^## (.*)$", PAGE, re.MULTILINE)


@cache
def names_in(path: str) -> frozenset[str]:
    tree = ast.parse((TESTS / path).read_text())
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return frozenset(function.name for function in functions)


@pytest.mark.parametrize("promise, proof", PROMISES, ids=[promise[:60] for promise, _ in PROMISES])
def test_promise_has_tests_that_exist(promise: str, proof: str) -> None:
    named = re.findall(r"`([^`]*)`", proof)
    assert named, f"no test proves: {promise}"
    for test in named:
        path, _, name = test.partition("::")
        assert (TESTS / path).is_file(), test
        assert name in names_in(path), test
        assert name.startswith("test_"), test


def test_every_group_of_promises_has_some_and_each_line_of_a_table_is_read() -> None:
    for group in (
        "Acknowledged writes",
        "Reads",
        "Damage",
        "Retries",
        "Power loss",
        "Full disks",
        "Clocks",
        "Upgrades",
    ):
        assert group in GROUPS
    rows = [
        line for line in PAGE.splitlines() if line.startswith("|") and "---" not in line and "| promise |" not in line
    ]
    assert len(rows) == len(PROMISES)
    assert all(promise.endswith(".") for promise, _ in PROMISES)


def test_what_is_not_promised_is_said() -> None:
    assert GROUPS[-1] == "What is not promised"
