"""A pytest plugin: where numba is told to compile nothing (`NUMBA_DISABLE_JIT`), neither do the project's kernels.

A kernel is then the Python function that it was made of. What only compiled code does is not seen: a read past the end
of an array is an error here, and an answer there.
"""

from __future__ import annotations

import os

import shared.kernels


def pytest_configure() -> None:
    if os.environ.get("NUMBA_DISABLE_JIT", "0") != "0":
        shared.kernels._load = lambda kernels: 0  # type: ignore[assignment]
