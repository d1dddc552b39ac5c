"""What the own scripts expect is also what the oracle computes: a second opinion on values worked out by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance import suite
from tests.conformance.oracle_backend import OracleBackend

UNKNOWN_TO_THE_ORACLE = {"info.test", "start_timestamps.test"}


@pytest.mark.parametrize(
    "path",
    [path for path in sorted(suite.OWN_SCRIPTS.glob("*.test")) if path.name not in UNKNOWN_TO_THE_ORACLE],
    ids=lambda path: path.stem,
)
def test_expected_values_of_own_script_are_the_oracles(path: Path) -> None:
    outcomes = suite.run([path], OracleBackend())[suite.script_name(path)]

    assert not [f"{path.name}:{one.line}: {one.query}\n    {one.detail}" for one in outcomes if one.verdict == "failed"]
