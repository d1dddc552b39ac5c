"""What is recorded and checked, by name."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.powerloss.history import History
from tests.powerloss.recording import Recorder
from tests.powerloss.workloads import backups, control, logs, new_series, sequencer, series, start, store, vectors, wal


@dataclass(frozen=True, slots=True)
class Workload:
    """`run` is recorded; `check` opens a state that a crash may have left and raises whatever is wrong with it."""

    run: Callable[[Path, Recorder, random.Random], None]
    check: Callable[[Path, History], None]


WORKLOADS: Mapping[str, Workload] = {
    "wal": Workload(wal.run, wal.check),
    "wal-threads": Workload(wal.run_threads, wal.check),
    "wal-layout": Workload(wal.run_layout, wal.check_layout),
    "sequencer": Workload(sequencer.run, sequencer.check),
    "manifest": Workload(control.run_manifest, control.check_manifest),
    "upgrade": Workload(control.run_upgrade, control.check_upgrade),
    "catalogue": Workload(control.run_catalogue, control.check_catalogue),
    "store": Workload(store.run, store.check),
    "series": Workload(partial(series.run, "synced"), partial(series.check, "synced")),
    "series-buffered": Workload(partial(series.run, "buffered"), partial(series.check, "buffered")),
    "new-series": Workload(partial(new_series.run, "synced"), partial(series.check, "synced")),
    "new-series-buffered": Workload(partial(new_series.run, "buffered"), partial(series.check, "buffered")),
    "log": Workload(logs.run, logs.check),
    "vectors": Workload(vectors.run, vectors.check),
    "start": Workload(start.run, start.check),
    "backup": Workload(backups.run, backups.check),
}
