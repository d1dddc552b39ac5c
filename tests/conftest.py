"""What all tests share: compiled kernels."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

WITHIN_S = 600.0
ROOT = Path(__file__).resolve().parents[1]


def compile_kernels() -> None:
    """Put all kernels of coordinator and workers that are not in the cache on disk yet into it."""
    for module in ("coordinator.warm", "worker.warm"):
        subprocess.run([sys.executable, "-m", module], cwd=ROOT, check=True, timeout=WITHIN_S, capture_output=True)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Before several processes run tests at a time, one compiles the kernels for all of them: on a cold cache each
    would compile the same ones while the first tests wait for them."""
    if not getattr(session.config.option, "numprocesses", None):
        return
    compile_kernels()


@pytest.fixture(scope="session", autouse=True)
def first_kernels() -> None:
    """As in a process that takes requests: neither a test nor a deadline of hypothesis waits for them."""
    if "shared.kernels" in sys.modules:
        sys.modules["shared.kernels"].compile_first()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The file that takes the longest begins first, so that the others run beside it."""
    items.sort(key=lambda item: "test_hypothesis_comparison" not in item.nodeid)
