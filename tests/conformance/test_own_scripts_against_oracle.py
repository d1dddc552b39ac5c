"""What the own scripts expect is also what the oracle computes: a second opinion on values worked out by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance import suite
from tests.conformance.oracle_backend import OracleBackend


@pytest.mark.parametrize("path", sorted(suite.OWN_SCRIPTS.glob("*.test")), ids=lambda path: path.stem)
def test_expected_values_of_own_script_are_the_oracles(path: Path) -> None:
    outcomes = suite.run([path], OracleBackend())[suite.script_name(path)]

    assert not [f"{path.name}:{one.line}: {one.query}\n    {one.detail}" for one in outcomes if one.verdict == "failed"]


@pytest.mark.skipif(not suite.PROMQLTEST.is_dir(), reason=f"Prometheus's scripts are not at {suite.PROMQLTEST}")
@pytest.mark.parametrize("path", sorted(suite.PROMQLTEST.glob("*.test")), ids=lambda path: path.stem)
def test_oracle_passes_script_of_prometheus_as_often_as_recorded(path: Path) -> None:
    counts = suite.count(suite.run([path], OracleBackend()))[suite.script_name(path)]

    assert counts["passed"] >= suite.recorded("oracle")[suite.script_name(path)]["passed"]
