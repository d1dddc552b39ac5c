"""Tells the seed of the random comparison, so that it can be run again."""

from __future__ import annotations

import pytest

from tests.conformance.generation import COMPARISON_CASES, COMPARISON_SEED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [report for found in terminalreporter.stats.values() for report in found]
    if any("test_hypothesis" in getattr(report, "nodeid", "") for report in reports):
        terminalreporter.write_line(f"comparison with the oracle: seed {COMPARISON_SEED}, {COMPARISON_CASES} data sets")
