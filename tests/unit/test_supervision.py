"""What the supervisor says of its workers, and what the metrics make of it."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from coordinator.watching.host import Host
from shared.measurements import Values
from shared.process import supervision
from shared.process.supervision import Exits, Supervision
from shared.settings import Settings
from worker import __main__ as supervisor_module
from worker.__main__ import Supervisor

TOLD = Supervision(1000.5, {"worker-0": Exits(), "worker-1": Exits(3, "SIGKILL", 2000.25)})


def test_what_was_written_is_read_until_it_is_removed(tmp_path: Path) -> None:
    assert supervision.read(tmp_path) is None
    supervision.write(tmp_path, Supervision(1.0, {}))
    supervision.write(tmp_path, TOLD)
    assert supervision.read(tmp_path) == TOLD
    assert [path.name for path in (tmp_path / "run").iterdir()] == [supervision.NAME]
    for path, mode in ((tmp_path / "run", 0o700), (tmp_path / "run" / supervision.NAME, 0o600)):
        assert path.stat().st_mode & 0o777 == mode
    supervision.remove(tmp_path)
    supervision.remove(tmp_path)
    assert supervision.read(tmp_path) is None


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff", b'{"started_at": 1.0, "workers": {"w": {"count": "x"}}}'])
def test_a_document_that_cannot_be_read_is_none(tmp_path: Path, content: bytes) -> None:
    supervision.write(tmp_path, TOLD)
    (tmp_path / "run" / supervision.NAME).write_bytes(content)
    assert supervision.read(tmp_path) is None


async def test_the_metrics_have_the_exits(tmp_path: Path) -> None:
    host = Host(tmp_path)
    await host.refresh(30)
    values = Values()
    host.put(values)
    assert "triptych_supervisor_start_time_seconds" not in values.by_name
    supervision.write(tmp_path, TOLD)
    await host.refresh(30)
    values = Values()
    host.put(values)
    assert values.get("triptych_supervisor_start_time_seconds") == 1000.5
    assert values.get("triptych_worker_exits_total", "worker-0") == 0
    assert values.get("triptych_worker_exits_total", "worker-1") == 3
    assert values.get("triptych_worker_last_exit_timestamp_seconds", "worker-1", "SIGKILL") == 2000.25
    assert len(list(values.by_name["triptych_worker_last_exit_timestamp_seconds"])) == 1


class Ended:
    """A process that has ended."""

    pid = 1

    def __init__(self, exitcode: int) -> None:
        self.exitcode = exitcode

    def join(self) -> None:
        pass


def test_the_supervisor_tells_of_each_exit_and_goes_on_when_it_cannot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(data=tmp_path, shards=2, workers=2)
    supervisor = Supervisor(settings, cast(Any, SimpleNamespace()), "ipc://x", cast(Any, None))
    child = supervisor._children[1]
    for exitcode, reason in ((1, "code 1"), (-9, "SIGKILL")):
        child.process = cast(Any, Ended(exitcode))
        supervisor._note_exit(child)
        told = supervision.read(tmp_path)
        assert told is not None
        assert told.workers["worker-1"].reason == reason
        assert abs(told.workers["worker-1"].at - time.time()) < 60
    assert (told.workers["worker-0"].count, told.workers["worker-1"].count) == (0, 2)

    warned: list[str] = []

    def full(data: Path, told: Supervision) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(supervision, "write", full)
    monkeypatch.setattr(supervisor_module, "event", lambda level, text, **fields: warned.append(text))
    child.process = cast(Any, Ended(1))
    supervisor._note_exit(child)
    assert child.exits.count == 3
    assert warned == ["worker died, restarting", "the exits of workers cannot be shown in the metrics"]
