"""A small sample of the points at which power is lost (all of them: `make powerloss`), and of the syncs left out."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.powerloss.omissions import UNNOTICED, places, workloads_of
from tests.powerloss.omitted import notice
from tests.powerloss.points import WEIGHTS, look, sample, scratch
from tests.powerloss.recording import record
from tests.powerloss.trace import Op, read
from tests.powerloss.workloads import WORKLOADS

SEED = 7
RECORD_TIMEOUT_S = 100.0
POINTS = {name: 6 * WEIGHTS.get(name, 1) for name in WORKLOADS}

LEFT_OUT = {
    "shared.durable:sync_directory:fsync": "catalogue",
    "shared.durable:write_atomically:sync_directory": "sequencer",
    "worker.storage.wal.files:first:sync_directory": "wal",
    "worker.storage.wal.log:_fdatasync:fdatasync": "wal",
    "worker.storage.wal.register:_save:fdatasync": "wal",
    "worker.storage.rows.store:sync:sync": "store",
    "worker.logs.writing:append:sync": "log",
    "worker.series.ingest:_make_durable:sync": "series",
    "worker.series.sealing:_seal:durable": "series",
    "worker.storage.objects:finish:fsync": "series",
    "coordinator.backup.directory:settle:sync_directory": "backup",
    "shared.durable:sync_tree:fsync": "backup",
}
"""Syncs that are left out here, and the workload that notices; the others: `python -m tests.powerloss.omitted`."""
RUNS = [f"{workload} {place}" for place, workload in LEFT_OUT.items()]


@pytest.fixture(scope="module")
def recorded() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=scratch(), prefix="powerloss-traces-") as name:
        record(Path(name), [*WORKLOADS, *RUNS], seed=SEED, timeout_s=RECORD_TIMEOUT_S)
        yield Path(name)


@pytest.mark.parametrize("name", WORKLOADS)
def test_nothing_acknowledged_is_lost_with_the_power_and_nothing_invented(recorded: Path, name: str) -> None:
    file = recorded / name / "trace"
    verdict = look(file, name, sample(read(file), POINTS[name], SEED))
    assert not verdict.failures, "\n".join(f"{failure.point} {failure.text}" for failure in verdict.failures)
    assert verdict.states > 1


@pytest.mark.parametrize("run", RUNS)
def test_a_sync_that_is_left_out_is_noticed(recorded: Path, run: str) -> None:
    assert notice(recorded, run, SEED)


@pytest.mark.parametrize("name", WORKLOADS)
def test_syncs_are_recorded(recorded: Path, name: str) -> None:
    events = read(recorded / name / "trace")
    assert any(entry.op is Op.SYNC_END for entry in events)
    assert any(entry.op is Op.MARK for entry in events)


def test_every_sync_of_the_product_has_a_workload() -> None:
    known = places()
    assert not [place for place in known if not workloads_of(place)]
    assert not set(LEFT_OUT) - set(known), "a sync that is left out here is not in the product any more"
    assert not set(UNNOTICED) - set(known)
