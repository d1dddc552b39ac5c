"""The coordinator's links against a worker that misbehaves on purpose."""

from __future__ import annotations

import asyncio
import time

import pytest
import zmq
import zmq.asyncio

from coordinator.fanout import membership
from coordinator.fanout.links import Links
from proto import cluster_pb2
from shared import errors, wire
from shared.settings import Settings
from shared.wire import Reply

READY, LOADING, FAILED = (
    cluster_pb2.ShardState.READY,
    cluster_pb2.ShardState.LOADING,
    cluster_pb2.ShardState.FAILED,
)


class FakeWorker:
    """A DEALER that registers shards and answers as `answer(request)` says; None means never."""

    def __init__(self, address, name, shards, answer=lambda request: Reply(body=b"ok"), pid=1):
        self.name, self.shards, self.answer, self.pid = name, shards, answer, pid
        self.cancelled, self.seen = [], []
        self.socket = zmq.asyncio.Context.instance().socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.ROUTING_ID, f"{name}-{pid}".encode())
        self.socket.connect(address)
        self.address, self.sockets = address, [self.socket]
        self.tasks = [asyncio.ensure_future(self.beat()), asyncio.ensure_future(self.serve())]

    async def beat(self):
        while True:
            await self.socket.send_multipart(wire.encode_register(self.register()))
            await asyncio.sleep(0.1)

    def register(self):
        message = cluster_pb2.Register(pid=self.pid, worker=self.name, cluster_id="c")
        for shard, state in self.shards.items():
            message.shards.add(shard=shard, state=state, detail="disk error" if state == FAILED else "")
        return message

    async def serve(self):
        while True:
            frames = await self.socket.recv_multipart()
            if wire.kind_of(frames) == wire.CANCEL:
                self.cancelled.append(wire.request_id_of(frames))
                continue
            request_id, request = wire.decode_request(frames)
            self.seen.append(request)
            reply = self.answer(request)
            if reply is not None:
                await self.socket.send_multipart([bytes(f) for f in wire.encode_reply(request_id, reply)])

    def control(self):
        """A connection beside the other one, by which this worker's heartbeats and cancellations travel."""
        control = zmq.asyncio.Context.instance().socket(zmq.DEALER)
        control.setsockopt(zmq.LINGER, 0)
        control.setsockopt(zmq.ROUTING_ID, self.socket.getsockopt(zmq.ROUTING_ID))
        control.connect(wire.control_address(self.address))
        self.sockets.append(control)
        return control

    async def beat_by(self, control):
        while True:
            await control.send_multipart(wire.encode_register(self.register()))
            await asyncio.sleep(0.1)

    def stop(self):
        for task in self.tasks:
            task.cancel()
        for socket in self.sockets:
            socket.close()


@pytest.fixture
async def cluster(tmp_path):
    """`cluster.links` of 4 shards, and `cluster.worker(...)` to add workers."""

    class Both:
        def __init__(self):
            self.workers = []

        async def worker(self, name, shards, *arguments, **options):
            worker = FakeWorker(address, name, shards, *arguments, **options)
            self.workers.append(worker)
            async with asyncio.timeout(5):
                while not any(w[0] == name and w[1] == worker.pid for w in self.links.workers()):
                    await asyncio.sleep(0.01)
            return worker

    address = f"ipc://{tmp_path}/s"
    both = Both()
    both.links = Links(Settings(shards=4, worker_requests_max=3), "c", address)
    await both.links.open()
    yield both
    for worker in both.workers:
        worker.stop()
    await both.links.close()


async def test_a_fan_out_asks_each_worker_once_for_all_its_shards(cluster):
    one = await cluster.worker("w0", {0: READY, 2: READY})
    await cluster.worker("w1", {1: READY, 3: READY})
    result = await cluster.links.fan_out("m", timeout_s=2)
    assert sorted(reply.shards for reply in result.replies) == [(0, 2), (1, 3)]
    assert not result.missing
    assert [request.shards for request in one.seen] == [(0, 2)]


async def test_parts_reach_the_shards_they_are_for(cluster):
    one = await cluster.worker("w0", {0: READY, 2: READY})
    await cluster.worker("w1", {1: READY, 3: READY})
    await cluster.links.call("m", parts={2: [b"two"], 3: [b"three"]}, timeout_s=2)
    assert {shard: list(frames) for shard, frames in one.seen[0].parts.items()} == {2: [b"two"]}


async def test_a_partial_answer_names_each_missing_shard_and_why(cluster):
    await cluster.worker("w0", {0: READY, 1: LOADING, 2: FAILED})
    result = await cluster.links.fan_out("m", timeout_s=2)
    assert [reply.shards for reply in result.replies] == [(0,)]
    assert result.warnings() == [
        "shard 1 is missing from this answer: w0 is still loading it",
        "shard 2 is missing from this answer: w0 could not load it: disk error",
        "shard 3 is missing from this answer: no worker has registered it",
    ]
    result.warnings().clear()  # of one request; another one that shares the outcome has its own
    assert len(result.warnings()) == 3


async def test_a_shard_the_worker_leaves_out_is_missing(cluster):
    await cluster.worker("w0", {0: READY, 1: READY}, lambda request: Reply(shard_errors={1: "corrupt"}))
    result = await cluster.links.fan_out("m", shards=[0, 1], timeout_s=2)
    assert [reply.shards for reply in result.replies] == [(0,)]
    assert result.missing == {1: "corrupt"}


async def test_an_answer_with_no_shards_left_is_no_answer(cluster):
    """A worker that leaves out every shard has said nothing about any."""
    await cluster.worker("w0", {0: READY, 1: READY}, lambda request: Reply(shard_errors={0: "full", 1: "corrupt"}))
    with pytest.raises(errors.Unavailable, match="shard 0: full; shard 1: corrupt"):
        await cluster.links.fan_out("m", shards=[0, 1], timeout_s=2)
    with pytest.raises(errors.Unavailable, match="shard 1: corrupt"):
        await cluster.links.call("m", shards=[0, 1], timeout_s=2)
    await cluster.worker("w1", {2: READY})
    result = await cluster.links.fan_out("m", shards=[0, 1, 2], timeout_s=2)
    assert [reply.shards for reply in result.replies] == [(2,)]
    assert result.missing == {0: "full", 1: "corrupt"}


async def test_bytes_in_flight_fall_however_a_call_ends(cluster, monkeypatch):
    answers = {"answered": Reply(b"ok"), "silent": None, "wrong": Reply(error_class="BadData", error="no")}
    await cluster.worker("w0", {0: READY}, lambda request: answers[request.method], pid=1)
    (worker,) = cluster.links.connected()
    seen = []
    transmit = cluster.links._transmit

    def sees(frames):
        sent = transmit(frames)
        cluster.links._loop.call_soon(lambda: seen.append(worker.pending_bytes))
        return sent

    monkeypatch.setattr(cluster.links, "_transmit", sees)
    await cluster.links.fan_out("answered", shards=[0], body=bytes(5000), timeout_s=2)
    assert max(seen) > 5000
    assert worker.pending_bytes == 0
    with pytest.raises(errors.Unavailable):
        await cluster.links.fan_out("silent", shards=[0], body=bytes(5000), timeout_s=0.1)
    assert worker.pending_bytes == 0
    with pytest.raises(errors.BadData):
        await cluster.links.fan_out("wrong", shards=[0], body=bytes(5000), timeout_s=2)
    assert worker.pending_bytes == 0
    leaving = asyncio.ensure_future(cluster.links.fan_out("silent", shards=[0], body=bytes(5000), timeout_s=30))
    await asyncio.sleep(0.05)
    assert worker.pending_bytes > 5000
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    assert worker.pending_bytes == 0
    waiting = asyncio.ensure_future(cluster.links.fan_out("silent", shards=[0], body=bytes(5000), timeout_s=30))
    await asyncio.sleep(0.05)
    cluster.links._members.remove(worker, "the test says so")
    with pytest.raises(errors.Unavailable):
        await waiting
    assert (worker.pending_bytes, worker.pending) == (0, {})


async def test_nothing_is_sent_for_a_write_unless_every_shard_is_there(cluster):
    worker = await cluster.worker("w0", {0: READY})
    with pytest.raises(errors.Unavailable, match="shard 1: no worker has registered it"):
        await cluster.links.call("m", shards=[0, 1], timeout_s=2)
    assert not worker.seen


async def test_no_shard_at_all_is_unavailable(cluster):
    with pytest.raises(errors.Unavailable, match="shard 0: no worker"):
        await cluster.links.fan_out("m", timeout_s=2)


async def test_a_worker_that_never_answers_is_missing_at_the_deadline_and_told_so(cluster):
    slow = await cluster.worker("w0", {0: READY, 1: READY}, lambda request: None)
    await cluster.worker("w1", {2: READY, 3: READY})
    started = time.monotonic()
    result = await cluster.links.fan_out("m", timeout_s=0.3)
    assert time.monotonic() - started < 1
    assert set(result.missing) == {0, 1}
    assert "w0 did not answer within 0.3" in result.missing[0]
    async with asyncio.timeout(2):
        while not slow.cancelled:
            await asyncio.sleep(0.01)


async def test_a_caller_that_goes_away_cancels_the_work(cluster):
    slow = await cluster.worker("w0", {0: READY}, lambda request: None)
    task = asyncio.ensure_future(cluster.links.fan_out("m", shards=[0], timeout_s=30))
    async with asyncio.timeout(2):
        while not slow.seen:
            await asyncio.sleep(0.01)
        task.cancel()
        while not slow.cancelled:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("name", ["BadData", "NotExecutable", "TooLarge", "Internal"])
async def test_an_error_about_the_request_is_raised_as_it_is(cluster, name):
    await cluster.worker("w0", {0: READY}, lambda request: Reply(error_class=name, error="text"))
    with pytest.raises(getattr(errors, name), match="text"):
        await cluster.links.fan_out("m", shards=[0], timeout_s=2)


async def test_a_worker_that_is_unavailable_is_missing(cluster):
    await cluster.worker("w0", {0: READY}, lambda request: Reply(error_class="DeadlineExceeded", error="too late"))
    await cluster.worker("w1", {1: READY})
    result = await cluster.links.fan_out("m", shards=[0, 1], timeout_s=2)
    assert result.missing == {0: "too late"}


async def test_silence_means_down_and_frees_who_waits(cluster, monkeypatch):
    monkeypatch.setattr(membership, "SILENCE_S", 0.4)
    silent = await cluster.worker("w0", {0: READY}, lambda request: None)
    silent.tasks[0].cancel()
    with pytest.raises(errors.Unavailable, match=r"shard 0: w0 is down \(no sign of life"):
        await cluster.links.fan_out("m", shards=[0], timeout_s=10)
    assert cluster.links.unready([0])


async def test_a_worker_whose_connection_has_ended_is_down_as_soon_as_it_is_asked(cluster, monkeypatch):
    monkeypatch.setattr(membership, "SILENCE_S", 60.0)
    gone = await cluster.worker("w0", {0: READY}, lambda request: None)
    await cluster.worker("w1", {1: READY})
    waiting = asyncio.ensure_future(cluster.links.fan_out("m", shards=[0], timeout_s=10))
    await asyncio.sleep(0.1)
    gone.stop()
    async with asyncio.timeout(5):
        while not cluster.links.unready([0]):
            answer = await cluster.links.fan_out("m", shards=[0, 1], timeout_s=0.1)
            assert [reply.shards for reply in answer.replies] == [(1,)]
    assert cluster.links.unready([0]) == {0: "w0 is not connected"}
    with pytest.raises(errors.Unavailable, match="shard 0: w0 is not connected"):
        await waiting
    assert not cluster.links.unready([1])


async def test_a_worker_that_says_goodbye_is_down_at_once_and_its_last_replies_count(cluster, monkeypatch):
    monkeypatch.setattr(membership, "SILENCE_S", 60.0)
    worker = await cluster.worker("w0", {0: READY}, lambda request: None)
    calls = [asyncio.ensure_future(cluster.links.fan_out("m", shards=[0], timeout_s=60)) for _ in range(2)]
    async with asyncio.timeout(5):
        while len(worker.seen) < 2:
            await asyncio.sleep(0.01)
        worker.tasks[0].cancel()
        answered = next(iter(cluster.links.connected()[0].pending))
        await worker.socket.send_multipart(wire.encode_reply(answered, Reply(body=b"ok")))
        await worker.socket.send_multipart(wire.encode_goodbye())
        assert (await calls[0]).replies
        with pytest.raises(errors.Unavailable, match="shard 0: w0 has stopped"):
            await calls[1]
    assert cluster.links.unready([0]) == {0: "w0 has stopped"}


def be_busy(seconds):
    """Keep the event loop from its turns."""
    time.sleep(seconds)


async def test_what_a_worker_has_answered_counts_when_its_end_is_noticed_before(cluster):
    with zmq.Context.instance().socket(zmq.DEALER) as worker:
        worker.connect(cluster.links._address)
        message = cluster_pb2.Register(pid=1, worker="w0", cluster_id="c")
        message.shards.add(shard=0, state=READY)
        worker.send_multipart(wire.encode_register(message))
        async with asyncio.timeout(5):
            while cluster.links.unready([0]):
                await asyncio.sleep(0.01)
            first = asyncio.ensure_future(cluster.links.fan_out("m", shards=[0], timeout_s=60))
            while not worker.poll(0):
                await asyncio.sleep(0.01)
        request_id, _ = wire.decode_request(worker.recv_multipart())
        worker.send_multipart(wire.encode_reply(request_id, Reply(body=b"ok")))
    second = asyncio.ensure_future(cluster.links.fan_out("m", shards=[0], timeout_s=60))
    be_busy(0.2)  # while the reply comes and the connection ends
    async with asyncio.timeout(5):
        with pytest.raises(errors.Unavailable, match="shard 0: w0 is not connected"):
            await second
        assert (await first).replies
    assert cluster.links.unready([0]) == {0: "w0 is not connected"}


async def test_a_restarted_worker_replaces_the_old_one_at_once(cluster):
    await cluster.worker("w0", {0: READY}, lambda request: None, pid=1)
    waiting = asyncio.ensure_future(cluster.links.fan_out("m", shards=[0], timeout_s=10))
    await asyncio.sleep(0.05)
    await cluster.worker("w0", {0: READY}, pid=2)
    with pytest.raises(errors.Unavailable, match="w0 has restarted"):
        await waiting
    assert [(name, pid) for name, pid, *_ in cluster.links.workers()] == [("w0", 2)]
    assert (await cluster.links.fan_out("m", shards=[0], timeout_s=2)).replies


async def test_more_than_the_bound_in_flight_is_overload(cluster):
    await cluster.worker("w0", {0: READY}, lambda request: None)
    waiting = [asyncio.ensure_future(cluster.links.fan_out("m", shards=[0], timeout_s=5)) for _ in range(3)]
    await asyncio.sleep(0.05)
    with pytest.raises(errors.Overloaded, match="w0 has 3 requests in flight, the limit is 3"):
        await cluster.links.fan_out("m", shards=[0], timeout_s=5)
    for task in waiting:
        task.cancel()


async def test_an_overload_of_one_worker_leaves_the_others_unasked(cluster):
    await cluster.worker("w0", {0: READY}, lambda request: None)
    other = await cluster.worker("w1", {1: READY})
    waiting = [asyncio.ensure_future(cluster.links.fan_out("m", shards=[0], timeout_s=5)) for _ in range(3)]
    await asyncio.sleep(0.05)
    with pytest.raises(errors.Overloaded, match="w0"):
        await cluster.links.fan_out("m", shards=[1, 0], timeout_s=5)
    await asyncio.sleep(0.05)
    assert not other.seen
    for task in waiting:
        task.cancel()


async def test_an_error_of_one_worker_frees_the_others_of_the_request(cluster):
    slow = await cluster.worker("w0", {0: READY}, lambda request: None)
    await cluster.worker("w1", {1: READY}, lambda request: Reply(error_class="BadData", error="no"))
    started = time.monotonic()
    with pytest.raises(errors.BadData, match="no"):
        await cluster.links.fan_out("m", shards=[0, 1], timeout_s=5)
    assert time.monotonic() - started < 1
    assert all(in_flight == 0 for *_, in_flight in cluster.links.workers())
    async with asyncio.timeout(2):
        while not slow.cancelled:
            await asyncio.sleep(0.01)


async def test_an_answer_that_comes_too_late_is_let_go(cluster):
    late = []
    slow = await cluster.worker("w0", {0: READY}, lambda request: late.append(request))
    result = await asyncio.gather(cluster.links.fan_out("m", shards=[0], timeout_s=0.1), return_exceptions=True)
    assert isinstance(result[0], errors.Unavailable)
    async with asyncio.timeout(2):
        while not slow.cancelled:
            await asyncio.sleep(0.01)
    slow.answer = lambda request: Reply(body=b"second")
    await slow.socket.send_multipart(wire.encode_reply(slow.cancelled[0], Reply(body=b"first")))
    replies = await cluster.links.call("m", shards=[0], timeout_s=2)
    assert bytes(replies[0].message.body) == b"second"


async def test_a_worker_of_another_cluster_is_ignored(cluster, tmp_path):
    stranger = FakeWorker(f"ipc://{tmp_path}/s", "w9", {0: READY})
    stranger.tasks[0].cancel()
    message = cluster_pb2.Register(pid=9, worker="w9", cluster_id="other")
    message.shards.add(shard=0, state=READY)
    await stranger.socket.send_multipart(wire.encode_register(message))
    await asyncio.sleep(0.2)
    assert cluster.links.workers() == []
    stranger.stop()


# Heartbeats and cancellations have a connection of their own


async def test_a_worker_whose_replies_hold_up_its_connection_still_beats(cluster, monkeypatch):
    monkeypatch.setattr(membership, "SILENCE_S", 0.4)
    worker = await cluster.worker("w", {0: READY})
    control = worker.control()
    worker.tasks[0].cancel()  # nothing more comes by the other connection
    worker.tasks.append(asyncio.ensure_future(worker.beat_by(control)))
    await asyncio.sleep(1.2)
    assert cluster.links.states()[0].state == "ready"
    worker.tasks[-1].cancel()
    async with asyncio.timeout(5):
        while cluster.links.states()[0].state == "ready":
            await asyncio.sleep(0.05)


async def test_a_heartbeat_alone_connects_no_worker(cluster):
    worker = await cluster.worker("w", {0: READY})
    stranger = FakeWorker(worker.address, "x", {1: READY})
    stranger.tasks[0].cancel()
    cluster.workers.append(stranger)
    stranger.tasks.append(asyncio.ensure_future(stranger.beat_by(stranger.control())))
    await asyncio.sleep(0.5)
    assert cluster.links.states()[1].state == "down"


async def test_a_cancellation_does_not_wait_behind_requests(cluster):
    worker = await cluster.worker("w", {0: READY}, lambda request: None)
    control = worker.control()
    worker.tasks.append(asyncio.ensure_future(worker.beat_by(control)))
    await asyncio.sleep(0.3)
    with pytest.raises(errors.Unavailable):
        await cluster.links.call("m", shards=[0], timeout_s=0.1)
    async with asyncio.timeout(5):
        (message,) = await control.recv_multipart()
    assert message[:1] == wire.CANCEL
    assert worker.cancelled == []
