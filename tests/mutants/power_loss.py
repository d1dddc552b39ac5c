"""A workload under the loss of power, on its own: what the mutants of a sync are tried with. Named when it is wanted,
for `tests/powerloss` has the same as part of the suite, recorded all at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.powerloss.points import look, sample
from tests.powerloss.recording import record
from tests.powerloss.trace import read
from tests.powerloss.workloads import WORKLOADS

SEED = 7
POINTS = 100
RECORD_TIMEOUT_S = 60.0


@pytest.mark.parametrize("name", WORKLOADS)
def test_nothing_is_lost_with_the_power(tmp_path: Path, name: str) -> None:
    record(tmp_path, [name], seed=SEED, timeout_s=RECORD_TIMEOUT_S)
    file = tmp_path / name / "trace"
    assert not look(file, name, sample(read(file), POINTS, SEED), failures_max=1).failures
