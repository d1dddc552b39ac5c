"""A pytest plugin for the recording: how long each test takes, and whether it passes, as JSON at the end."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

VARIABLE = "MUTANTS_TIMES"

_seconds: dict[str, float] = {}
_unfit: set[str] = set()


def pytest_runtest_logreport(report: Any) -> None:
    _seconds[report.nodeid] = _seconds.get(report.nodeid, 0.0) + report.duration
    if report.outcome != "passed":
        _unfit.add(report.nodeid)


def pytest_sessionfinish(session: Any) -> None:
    """Test id → seconds with its fixtures, of those that passed."""
    passed = {test: seconds for test, seconds in _seconds.items() if test not in _unfit}
    Path(os.environ[VARIABLE]).write_text(json.dumps(passed))
