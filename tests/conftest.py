"""What all tests share: compiled kernels, and a place for files."""

from __future__ import annotations

import gc
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

WITHIN_S = 600.0
ROOT = Path(__file__).resolve().parents[1]
IN_MEMORY = Path("/dev/shm")
FREE_BYTES_MIN = 4 << 30
LONGEST = (
    "test_metrics_rest",
    "test_worst_body_memory",
    "test_hypothesis_comparison",
    "test_simulation",
    "test_vector_faults",
    "test_unread_answers",
    "test_engine_range_functions",
    "test_lifecycle",
    "test_worst_bodies",
    "test_vector_crash",
    "test_powerloss",
    "test_check",
    "test_corpus",
    "test_log_area",
    "test_backup",
    "test_watching",
    "test_histograms_merging",
    "test_log_groups",
    "test_serve_command",
    "test_http_connections",
    "test_kernels",
)
"""Files of tests that take more than twenty seconds."""


def keep_files_in_memory() -> None:
    """Temporary directories lie in memory, where there is room and the caller has not chosen a place: a sync takes
    milliseconds on a disk, tests wait for tens of thousands of them, and none of them loses power. (What is lost with
    the power is found by `tests/powerloss`, whatever the place.)"""
    if "TMPDIR" not in os.environ and IN_MEMORY.is_dir() and shutil.disk_usage(IN_MEMORY).free > FREE_BYTES_MIN:
        os.environ["TMPDIR"] = str(IN_MEMORY)
        tempfile.tempdir = None


def keep_bytecode() -> None:
    """Bytecode is kept beside its source, even where the environment says that Python writes none: every process that
    runs tests would compile 800 modules before its first one, and every process that tests start those of the
    product."""
    sys.dont_write_bytecode = False
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


keep_files_in_memory()
keep_bytecode()


MANY_MODULES = 50


def pytest_collection_finish() -> None:
    """What all tests have imported stays: to look through it for cycles takes a second each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="module")
def imports_of_tests_stay_too() -> Iterator[None]:
    """A cycle of the collector would count as the time of whichever test comes next."""
    before = len(sys.modules)
    yield
    if len(sys.modules) > before + MANY_MODULES:
        gc.collect()
        gc.freeze()


def compile_kernels() -> None:
    """Put all kernels of coordinator and workers that are not in the cache on disk yet into it."""
    commands = [[sys.executable, "-m", module] for module in ("coordinator.warm", "worker.warm")]
    for process in [subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL) for command in commands]:
        assert process.wait(WITHIN_S) == 0


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


@pytest.fixture(autouse=True)
def log_as_before() -> Iterator[None]:
    """A test that sets up logging as a process does leaves the next one, and what that one reads of the log, alone."""
    logger = logging.getLogger("triptych")
    before = logger.handlers[:], logger.level, logger.propagate
    yield
    if before != (logger.handlers, logger.level, logger.propagate):
        logger.handlers[:], level, logger.propagate = before
        logger.setLevel(level)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The files that take the longest begin first, so that none of them is still running when all others have
    ended."""
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path.stem, len(places)))
