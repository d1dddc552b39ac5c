"""Programs, each in a process of its own that is forked from one which has imported what they need: a start takes
milliseconds of CPU time instead of a second."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.zygote import Zygote, inherited, serve

ROOT = Path(__file__).resolve().parents[1]
PREPARATION = "TESTS_PREPARATION"


class Programs:
    """What `prepared` makes."""

    def __init__(self, zygote: Zygote) -> None:
        self._zygote = zygote

    def run(
        self, directory: Path, *arguments: str, environment: Mapping[str, str] = os.environ, within_s: float = 60.0
    ) -> str:
        """What `python` prints, run with these arguments in this directory: a path or `-m` and a module, and the
        program's own. Raises AssertionError if it fails, subprocess.TimeoutExpired."""
        log = directory / "output"
        log.unlink(missing_ok=True)
        process = self._zygote.spawn(json.dumps(arguments), environment, directory, log)
        try:
            status = process.wait(within_s)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        printed = log.read_text()
        assert status == 0, printed
        return printed


@contextmanager
def prepared(program: str) -> Iterator[Programs]:
    """Forks from a process that has run this program, which starts no thread."""
    zygote = Zygote(__name__, inherited() | {"PYTHONPATH": str(ROOT), PREPARATION: program}, ROOT)
    try:
        yield Programs(zygote)
    finally:
        zygote.close()


def run(arguments: str) -> None:
    """In the forked process: as `python` with these arguments."""
    sys.argv = json.loads(arguments)
    try:
        if sys.argv[0] == "-m":
            del sys.argv[0]
            runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(sys.argv[0], run_name="__main__")
    finally:
        sys.stdout.flush()


if __name__ == "__main__":
    exec(os.environ[PREPARATION], {})
    serve(run)
