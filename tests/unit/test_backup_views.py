# ruff: noqa: F811 (a fixture of another module)
"""How the coordinator makes a view, with workers that are slow, silent or in the middle of writes."""

from __future__ import annotations

import asyncio
import os
import re
import threading
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from coordinator.backup import views as views_module
from coordinator.backup.views import Views, view_name
from coordinator.log.recovery import Recovery
from shared import wire
from shared.errors import BadData, NotFound, Unavailable
from shared.manifest import Manifest
from shared.wire import Reply
from tests.unit.test_links import FAILED, READY, FakeWorker, cluster  # noqa: F401 (a fixture)


class Still:
    """The log and the vectors, whose documents have a lock each."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.recovery = Recovery(*[SimpleNamespace()] * 5)  # type: ignore[arg-type]
        self.recovery.complete.set()

    @asynccontextmanager
    async def held(self) -> Any:
        async with self.lock:
            yield

    state_held = held

    def warnings(self) -> list[str]:
        return ["the log has a notice"]


@pytest.fixture
async def views(cluster, tmp_path):
    views = Views(tmp_path, cluster.links, Still(), Still(), Manifest("c", 4))
    await views.start()
    yield views
    await views.stop()


class Recorded:
    """What a worker does, in order. `slow`: method → seconds until it answers."""

    def __init__(self, cluster, slow: dict[str, float]) -> None:
        self.links = cluster.links
        self.slow = slow
        self.events: list[tuple[str, str]] = []

    async def worker(self, cluster, name: str, shards: dict[int, Any]) -> FakeWorker:
        loop = asyncio.get_running_loop()

        def answer(request: Any) -> Reply | None:
            self.events.append((name, f"{request.method} begins"))
            delay = self.slow.get(f"{name} {request.method}", 0.0)
            if delay:
                loop.call_later(delay, lambda: self.events.append((name, f"{request.method} ends")))
                return None if delay > 10 else _Later(delay)
            self.events.append((name, f"{request.method} ends"))
            return Reply(warnings=["damage"] if request.method == "backup.finish" else ())

        return await cluster.worker(name, shards, answer)


class _Later(Reply):
    """Marks a reply that is sent after a delay."""

    def __init__(self, delay: float) -> None:
        super().__init__()
        self.delay = delay


@pytest.fixture(autouse=True)
def late_replies(monkeypatch: pytest.MonkeyPatch) -> None:
    async def serve(self: FakeWorker) -> None:
        while True:
            frames = await self.socket.recv_multipart()
            if wire.kind_of(frames) == wire.CANCEL:
                continue
            request_id, request = wire.decode_request(frames)
            self.seen.append(request)
            reply = self.answer(request)
            if reply is not None:
                message = [bytes(frame) for frame in wire.encode_reply(request_id, reply)]
                delay = getattr(reply, "delay", 0.0)
                self.tasks.append(asyncio.ensure_future(self.send_late(delay, message)))

    async def send_late(self: FakeWorker, delay: float, message: list[bytes]) -> None:
        await asyncio.sleep(delay)
        await self.socket.send_multipart(message)

    monkeypatch.setattr(FakeWorker, "serve", serve)
    monkeypatch.setattr(FakeWorker, "send_late", send_late, raising=False)


async def test_no_write_is_sent_between_the_first_and_the_last_freezing(cluster, views) -> None:
    recorded = Recorded(cluster, {"w1 backup.freeze": 0.3})
    await recorded.worker(cluster, "w0", {0: READY, 1: READY})
    await recorded.worker(cluster, "w1", {2: READY, 3: READY})

    async def write() -> None:
        for _ in range(60):
            await cluster.links.call("series.write", shards=[0], timeout_s=5)
            await cluster.links.call("vector.write", shards=[2], timeout_s=5)
            await asyncio.sleep(0.01)

    writing = asyncio.create_task(write())
    await asyncio.sleep(0.05)
    view = await views.lease()
    await writing
    events = recorded.events
    first = min(at for at, event in enumerate(events) if event[1] == "backup.freeze begins")
    last = max(at for at, event in enumerate(events) if event[1] == "backup.freeze ends")
    assert not [event for event in events[first:last] if event[1].startswith(("series.write", "vector.write"))]
    assert [event for event in events[:first] if "write" in event[1]]
    assert [event for event in events[last:] if "write" in event[1]]
    assert 250 < view.pause_ms < 2000
    assert view.warnings == ["damage", "damage", "the log has a notice"]


async def test_reads_go_on_while_writes_are_held_back(cluster, views) -> None:
    recorded = Recorded(cluster, {"w0 backup.freeze": 0.3})
    await recorded.worker(cluster, "w0", dict.fromkeys(range(4), READY))
    leasing = asyncio.create_task(views.lease())
    while not cluster.links.barrier.is_closed:
        await asyncio.sleep(0.005)
    await cluster.links.call("log.scan", shards=[0], timeout_s=0.1)
    assert cluster.links.barrier.is_closed
    await leasing


async def test_writes_under_way_are_waited_for_but_not_for_long(cluster, views, monkeypatch) -> None:
    recorded = Recorded(cluster, {"w0 series.write": 0.2})
    await recorded.worker(cluster, "w0", dict.fromkeys(range(4), READY))
    writing = asyncio.create_task(cluster.links.call("series.write", shards=[0], timeout_s=5))
    await asyncio.sleep(0.05)
    await views.lease()
    names = [event for _, event in recorded.events]
    assert names.index("series.write ends") < names.index("backup.freeze begins")
    await writing
    await views.release(views._leased.id)
    recorded.slow["w0 series.write"] = 3.0
    writing = asyncio.create_task(cluster.links.call("series.write", shards=[0], timeout_s=5))
    await asyncio.sleep(0.05)
    assert (await views.lease()).pause_ms < 1000
    await writing


@pytest.mark.parametrize("method", ["backup.prepare", "backup.freeze", "backup.finish"])
async def test_a_worker_that_never_answers_ends_the_view_and_writes_go_on(
    method,
    cluster,
    views,
    monkeypatch,
    tmp_path,
) -> None:
    monkeypatch.setattr(views_module, "PREPARE_S", 0.3)
    monkeypatch.setattr(views_module, "FINISH_S", 0.3)
    monkeypatch.setattr(views_module, "PAUSE_MAX_S", 0.3)
    recorded = Recorded(cluster, {f"w0 {method}": 60.0})
    await recorded.worker(cluster, "w0", dict.fromkeys(range(4), READY))
    with pytest.raises(Unavailable):
        await views.lease()
    assert not cluster.links.barrier.is_closed
    assert os.listdir(tmp_path / "backup.staging") == []
    await cluster.links.call("series.write", shards=[0], timeout_s=1)
    recorded.slow.clear()
    await views.lease()


async def test_a_state_that_is_being_written_for_ever_ends_the_view(cluster, views, monkeypatch) -> None:
    monkeypatch.setattr(views_module, "PAUSE_MAX_S", 0.2)
    recorded = Recorded(cluster, {})
    await recorded.worker(cluster, "w0", dict.fromkeys(range(4), READY))
    async with views._log.held():
        with pytest.raises(Unavailable, match=r"0\.2 s"):
            await views.lease()
    await views.lease()


async def test_all_shards_must_be_ready_and_the_log_recovered(cluster, views, monkeypatch) -> None:
    monkeypatch.setattr(views_module, "RECOVERY_S", 0.05)
    await Recorded(cluster, {}).worker(cluster, "w0", {0: READY, 1: READY, 2: READY, 3: FAILED})
    with pytest.raises(Unavailable, match="shard 3: w0 could not load it"):
        await views.lease()
    await Recorded(cluster, {}).worker(cluster, "w1", {3: READY})
    views._log.recovery.complete.clear()
    with pytest.raises(Unavailable, match="recovered"):
        await views.lease()
    monkeypatch.setattr(views_module, "RECOVERY_S", 10.0)
    asyncio.get_running_loop().call_later(0.05, views._log.recovery.complete.set)
    await views.lease()


async def test_a_view_is_removed_when_nobody_renews_it(cluster, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(views_module, "LEASE_S", 0.5)
    left = tmp_path / "backup.staging/left-by-a-killed-coordinator"
    left.mkdir(parents=True)
    views = Views(tmp_path, cluster.links, Still(), Still(), Manifest("c", 4))
    await views.start()
    assert not left.exists()
    await Recorded(cluster, {}).worker(cluster, "w0", dict.fromkeys(range(4), READY))
    view = await views.lease()
    with pytest.raises(Unavailable, match=view.id):
        await views.lease()
    for _ in range(10):
        await asyncio.sleep(0.1)
        views.renew(view.id)
    assert view.path.exists()
    await asyncio.sleep(0.8)
    assert not view.path.exists()
    with pytest.raises(NotFound):
        views.renew(view.id)
    await views.lease()
    await views.stop()
    assert os.listdir(tmp_path / "backup.staging") == []


async def test_a_view_whose_holder_goes_away_is_removed_at_once(cluster, views) -> None:
    await Recorded(cluster, {}).worker(cluster, "w0", dict.fromkeys(range(4), READY))
    view = await views.lease()
    holding = asyncio.create_task(views.hold(view.id, 60.0))
    await asyncio.sleep(0.05)
    assert not holding.done()
    holding.cancel()
    with pytest.raises(asyncio.CancelledError):
        await holding
    again = await views.lease()
    assert again.path.exists()
    while view.path.exists():
        await asyncio.sleep(0.01)
    with pytest.raises(NotFound):
        await views.hold(view.id, 60.0)


async def test_a_view_is_held_for_so_long_or_until_it_is_released(cluster, views) -> None:
    await Recorded(cluster, {}).worker(cluster, "w0", dict.fromkeys(range(4), READY))
    view = await views.lease()
    assert await views.hold(view.id, 0.05) is view
    assert view.path.exists()
    holding = asyncio.create_task(views.hold(view.id, 60.0))
    await asyncio.sleep(0.05)
    await views.release(view.id)
    with pytest.raises(NotFound):
        await asyncio.wait_for(holding, 5)


async def test_a_snapshot_whose_client_leaves_is_whole_before_another_one_begins(
    cluster, views, tmp_path, monkeypatch
) -> None:
    await Recorded(cluster, {}).worker(cluster, "w0", dict.fromkeys(range(4), READY))
    keep, begun, may_go_on = views_module._keep, threading.Event(), threading.Event()

    def slow(view: Path, target: Path) -> None:
        begun.set()
        assert may_go_on.wait(10)
        keep(view, target)

    monkeypatch.setattr(views_module, "_keep", slow)
    left = asyncio.create_task(views.snapshot())
    assert await asyncio.to_thread(begun.wait, 10)
    left.cancel()
    await asyncio.sleep(0)
    assert not left.done()
    try:
        with pytest.raises(Unavailable, match="another one is being made"):
            await views.snapshot()
    finally:
        may_go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await left
    again = await views.snapshot()
    [first] = set(os.listdir(tmp_path / "snapshots")) - {again}
    for name in (first, again):
        assert (tmp_path / "snapshots" / name / "manifest.json").read_bytes() == Manifest("c", 4).encode()


async def test_a_snapshot_is_not_emptied_when_it_is_cancelled_twice(cluster, views, tmp_path, monkeypatch) -> None:
    await Recorded(cluster, {}).worker(cluster, "w0", dict.fromkeys(range(4), READY))
    keep, begun, may_go_on = views_module._keep, threading.Event(), threading.Event()

    def slow(view: Path, target: Path) -> None:
        begun.set()
        assert may_go_on.wait(10)
        keep(view, target)

    monkeypatch.setattr(views_module, "_keep", slow)
    left = asyncio.create_task(views.snapshot())
    assert await asyncio.to_thread(begun.wait, 10)
    try:
        for _ in range(2):
            left.cancel()
            await asyncio.sleep(0)
        await asyncio.wait((left,))
        with pytest.raises(Unavailable, match="another one is being made"):
            await views.snapshot()
    finally:
        may_go_on.set()
    await views._keeping
    (first,) = os.listdir(tmp_path / "snapshots")
    await views.snapshot()
    assert (tmp_path / "snapshots" / first / "manifest.json").read_bytes() == Manifest("c", 4).encode()


async def test_a_snapshot_that_cannot_be_kept_leaves_nothing_when_its_client_has_left(
    cluster, views, tmp_path, monkeypatch
) -> None:
    await Recorded(cluster, {}).worker(cluster, "w0", dict.fromkeys(range(4), READY))
    begun, may_go_on = threading.Event(), threading.Event()

    def full(view: Path, target: Path) -> None:
        begun.set()
        assert may_go_on.wait(10)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(views_module, "_keep", full)
    left = asyncio.create_task(views.snapshot())
    assert await asyncio.to_thread(begun.wait, 10)
    left.cancel()
    await asyncio.sleep(0)
    may_go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await left
    assert os.listdir(tmp_path / "backup.staging") == []


async def test_only_files_of_the_view_are_given_out(cluster, views, tmp_path) -> None:
    await Recorded(cluster, {}).worker(cluster, "w0", dict.fromkeys(range(4), READY))
    view = await views.lease()
    assert views_module.file_of(view, "manifest.json").read_bytes() == Manifest("c", 4).encode()
    for name in ("/etc/passwd", "../x", "a/../../x"):
        with pytest.raises(BadData):
            views_module.file_of(view, name)
    with pytest.raises(NotFound):
        views_module.file_of(view, "shards")


def test_names_are_in_the_order_of_their_times_within_a_second_too() -> None:
    names = [view_name(1_790_000_000 + thousandth / 1000) for thousandth in range(3000)]
    assert names == sorted(set(names))
    assert all(re.fullmatch(r"\d{8}T\d{6}Z-[0-9a-f]{16}", name) for name in names)
