"""What all tests share: compiled kernels."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

WITHIN_S = 600.0
COMPILE = """
from worker import warm
from worker.methods import table
from coordinator.log import records
from coordinator.queries import evaluation
from coordinator.series import remote_write
from coordinator.vectors import merging, numbers, walk
warm.fill_cache()
numbers.compile_kernels()
walk.compile_kernels()
merging.compile_kernels()
evaluation.warm()
"""


def pytest_sessionstart(session: pytest.Session) -> None:
    """Before several processes run tests at a time, one compiles the kernels for all of them: on a cold cache each
    would compile the same ones while the first tests wait for them."""
    if not getattr(session.config.option, "numprocesses", None):
        return
    root = Path(__file__).resolve().parents[1]
    subprocess.run([sys.executable, "-c", COMPILE], cwd=root, check=True, timeout=WITHIN_S, capture_output=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The file that takes the longest begins first, so that the others run beside it."""
    items.sort(key=lambda item: "test_hypothesis_comparison" not in item.nodeid)
