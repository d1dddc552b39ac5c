"""The Makefile's choice of a Python."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_an_interpreter_can_be_asked_whether_it_is_optimised() -> None:
    shown = subprocess.run(
        ["make", "--no-print-directory", "--eval", "show:; @printf '%s' '$(IS_OPTIMISED)'", "show"],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))},
        capture_output=True,
        text=True,
        check=True,
    )
    # -S: make asks interpreters that have none of the dependencies.
    asked = subprocess.run(
        [sys.executable, "-S", "-c", shown.stdout], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (asked.stderr, asked.returncode in (0, 1)) == ("", True)
