"""What the shards of one worker process share, and those of two do not."""

from __future__ import annotations

from pathlib import Path

from tests.powerloss.workloads.start import Data


def test_the_shards_of_a_process_share_its_services(tmp_path: Path) -> None:
    data = Data(tmp_path, workers=1)
    first, second = data.shards
    assert first.logs.keeper is second.logs.keeper
    assert first.vectors.engine is second.vectors.engine
    assert first.series.services is second.series.services
    data.close()


def test_two_processes_share_nothing(tmp_path: Path) -> None:
    data = Data(tmp_path, workers=2)
    first, second = data.shards
    assert first.logs.keeper is not second.logs.keeper
    assert first.vectors.engine is not second.vectors.engine
    mine, other = first.series.services, second.series.services
    assert mine.symbols is not other.symbols
    assert mine.rounds is not other.rounds
    assert mine.sealing is not other.sealing
    assert mine.merging is not other.merging
    assert mine.deletes is not other.deletes
    data.close()
