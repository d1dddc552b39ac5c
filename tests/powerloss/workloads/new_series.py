"""Many new series whose rows nobody syncs until samples are sealed, in a store whose memory is often full, so that its
families go to files one by one. Some commits find the disk full, and their series come again with the next one."""

from __future__ import annotations

import errno
import random
from contextlib import suppress
from functools import partial
from pathlib import Path
from unittest import mock

from shared.errors import Unavailable
from tests.powerloss.recording import Recorder
from tests.powerloss.workloads.series import Part, grouped
from worker.series.head import NEVER
from worker.storage.rows import opening
from worker.storage.wal import files

STEPS = 60
SERIES_MAX = 40
LABEL_BYTES = 400
BUFFER_BYTES = 64 << 10
"""The least that RocksDB accepts."""

Sample = tuple[str, int, float]
"""(job, Unix ms, value)."""


def run(durability: str, root: Path, recorder: Recorder, chance: random.Random) -> None:
    with mock.patch.multiple(
        opening,
        WRITE_BUFFER_BYTES=BUFFER_BYTES,
        STREAM_BUFFER_BYTES=BUFFER_BYTES,
        COUNT_BUFFER_BYTES=BUFFER_BYTES,
    ):
        shard = Part(root, durability)
        recorder.settled()
        series = 0
        for step in range(STEPS):
            how = chance.random()
            if how < 0.8:
                new = range(series, series := series + chance.randint(1, SERIES_MAX))
                samples = [(_job(number), step, float(number)) for number in new]
                if how < 0.1:
                    _refused(shard, samples)
                else:
                    recorder.act(["write", samples], partial(shard.write, grouped(samples)))
            elif how < 0.86:
                recorder.act(["seal", None], partial(shard.part._upkeep.sealing._seal, NEVER))
            else:
                recorder.act(["stop"], chance.choice((shard.close, shard.kill)))
                shard.open()
        shard.close()


def _job(number: int) -> str:
    return f"job-{number}-".ljust(LABEL_BYTES, "x")


def _refused(shard: Part, samples: list[Sample]) -> None:
    full = mock.Mock(side_effect=OSError(errno.ENOSPC, "no space left on device"))
    with mock.patch.object(files, "write_all", full), suppress(Unavailable):
        shard.write(grouped(samples))
