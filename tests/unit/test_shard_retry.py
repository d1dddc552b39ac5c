"""A shard whose disk failed while it was loaded is loaded again by the same process, and has everything."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shared.errors import ConfigError, Unavailable
from shared.settings import Settings
from tests.powerloss.workloads.start import Data
from tests.unit import test_worker_damage
from worker import process
from worker.logs.keeper import Keeper
from worker.logs.part import LogPart
from worker.process import RETRY_FIRST_S, RETRY_MAX_S, WorkerProcess
from worker.series import part as series_part
from worker.series.part import SeriesPart
from worker.shard import Shard
from worker.storage.rows import opening
from worker.storage.rows.marker import Marker
from worker.storage.rows.store import Store, StoreDamaged
from worker.storage.wal.log import WriteAheadLog
from worker.vectors import snapshot
from worker.vectors.collection import WorkerCollection
from worker.vectors.loading import Loading

KINDS = ("write_sample", "append", "upsert")
NUMBERS = {0, 1, 2}


def disk_failed(*_: Any) -> None:
    raise OSError(errno.EIO, "Input/output error")


def failing_once_after(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, *, first: bool = False) -> None:
    """The next call of `owner.name` fails when it has done its work, or (`first`) before."""
    whole: Callable[..., Any] = getattr(owner, name)
    left = [1]

    def failing(*arguments: Any) -> Any:
        if first and left:
            left.clear()
            disk_failed()
        result = whole(*arguments)
        if left:
            left.clear()
            disk_failed()
        return result

    monkeypatch.setattr(owner, name, failing)


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """A data directory whose only worker was killed: of each kind there are three things in shard 0."""
    data = Data(tmp_path, 1)
    for number in sorted(NUMBERS):
        for kind in KINDS:
            getattr(data, kind)([0], number)
    data.kill()
    return tmp_path


@pytest.mark.parametrize(
    ("owner", "name", "first"),
    [
        (WriteAheadLog, "_take_over", False),
        (Marker, "open", False),
        (series_part, "replay", False),
        (SeriesPart, "load", False),
        (LogPart, "_replay", False),
        (Keeper, "join", True),
        (LogPart, "load", False),
        (snapshot, "discard_newer", False),
        (Loading, "_restore", False),
        (Loading, "load_batch", False),
        (WorkerCollection, "attach", False),
    ],
)
def test_a_shard_that_could_not_be_loaded_has_everything_when_it_is_tried_again(
    killed: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, first: bool
) -> None:
    failing_once_after(monkeypatch, owner, name, first=first)
    whole = process.Shard
    tries = []

    def tried_twice(*arguments: Any) -> Shard:
        try:
            tries.append(arguments[0])
            return whole(*arguments)
        except OSError:
            tries.append(arguments[0])
            return whole(*arguments)

    monkeypatch.setattr("tests.powerloss.workloads.start.Shard", tried_twice)
    data = Data(killed, 1)
    try:
        assert tries == [0, 0, 1]
        for kind in KINDS:
            held = data.held(0, kind)
            assert held == NUMBERS, kind
        collection = data.shards[0].vectors.find(data.collection())
        assert collection is not None
        assert collection.stats().vectors == data.shards[0].counts()["vectors"] == len(NUMBERS)
        assert data.shards[0].damage.texts("series") == data.shards[0].damage.texts("log") == []
        for kind in KINDS:  # and takes what comes
            getattr(data, kind)([0], 7)
            assert 7 in data.held(0, kind), kind
    finally:
        data.close()


@pytest.mark.parametrize(
    "text",
    [
        "IO error: While fsync: 0000/store/MANIFEST-000012: Input/output error",
        "Input/output error (os error 5)",  # of the library's own file
    ],
)
def test_a_store_that_the_disk_does_not_let_open_is_not_damaged_and_opens_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    Store(tmp_path / "store").close()

    class Failing:
        list_cf = staticmethod(opening.Rdict.list_cf)

        def __init__(self, *_: Any, **__: Any) -> None:
            raise Exception(text)

    with monkeypatch.context() as failing:
        failing.setattr(opening, "Rdict", Failing)
        with pytest.raises(OSError, match=r"could not be opened: .*Input/output error") as raised:
            Store(tmp_path / "store")
    assert not isinstance(raised.value, StoreDamaged)
    Store(tmp_path / "store").close()


def test_a_store_whose_library_cannot_write_its_own_file_is_not_damaged_and_opens_later(tmp_path: Path) -> None:
    Store(tmp_path / "store").close()
    own = tmp_path / "store" / "rocksdict-config.json"
    own.unlink()
    own.mkdir()
    with pytest.raises(OSError, match=r"could not be opened: .*\(os error \d+\)") as raised:
        Store(tmp_path / "store")
    assert not isinstance(raised.value, StoreDamaged)
    own.rmdir()
    Store(tmp_path / "store").close()


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WorkerProcess:
    monkeypatch.setattr(process, "Service", test_worker_damage.Service)
    return WorkerProcess("w", [0], Settings(data=tmp_path), f"ipc://{tmp_path}/none", "c", 1)


@pytest.mark.parametrize("error", [OSError(errno.EIO, "Input/output error"), Unavailable("the log has failed")])
def test_a_shard_whose_disk_failed_is_tried_again_after_growing_pauses_that_have_a_bound(
    worker: WorkerProcess, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def failing(*_: Any) -> None:
        raise error

    monkeypatch.setattr(process, "Shard", failing)
    pauses = []
    for _ in range(9):
        before = time.monotonic()
        worker._load(0)
        assert worker._due() == []  # not at once
        pauses.append(round(worker._retry_at[0] - before, 1))
        state = worker._states[0]
        assert isinstance(state, str)
        assert "it is tried again" in state
        worker._retry_at[0] = before
        assert worker._due() == [0]
        assert worker._due() == []  # once
    assert pauses == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]
    assert (pauses[0], pauses[-1]) == (RETRY_FIRST_S, RETRY_MAX_S)
    loaded = object()
    monkeypatch.setattr(process, "Shard", lambda *_: loaded)
    worker._load(0)
    assert worker._states[0] is loaded
    assert worker._due() == []


@pytest.mark.parametrize("error", [StoreDamaged("000007.sst"), ConfigError("of a newer release"), ValueError("?")])
def test_a_shard_that_is_damaged_or_cannot_be_used_is_not_tried_again(
    worker: WorkerProcess, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def failing(*_: Any) -> None:
        raise error

    monkeypatch.setattr(process, "Shard", failing)
    worker._load(0)
    assert not worker._retry_at
    assert worker._states[0] == str(error)
