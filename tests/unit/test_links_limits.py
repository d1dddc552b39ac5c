"""What the coordinator's links keep count of: bytes and requests in flight, owners of shards, states, time."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
import zmq

from coordinator.fanout import links as links_module
from coordinator.fanout import membership
from coordinator.fanout.calls import FanOut, MethodCall, Worker, WorkerCall, WorkerReply
from coordinator.fanout.links import Links
from proto import cluster_pb2
from shared import errors
from shared.settings import Settings
from shared.wire import Reply

READY, LOADING, FAILED = (
    cluster_pb2.ShardState.READY,
    cluster_pb2.ShardState.LOADING,
    cluster_pb2.ShardState.FAILED,
)


def links(**options: Any) -> Links:
    return Links(Settings(shards=4, **options), "c", "ipc://nowhere")


def worker(name: str = "w0", pending: int = 0, pending_bytes: int = 0) -> Worker:
    made = Worker(name, name.encode(), 7, 0.0)
    for number in range(pending):
        made.pending[number.to_bytes(8, "big")] = cast(Any, None)
    made.pending_bytes = pending_bytes
    return made


def test_a_worker_takes_so_many_bytes_and_no_more() -> None:
    most = 1 << 20
    settings = Settings(worker_bytes_max=most)
    worker(pending=1, pending_bytes=most - 10).require_room(10, settings)
    with pytest.raises(errors.Overloaded, match=f"w0 has {most - 10} bytes in flight, the limit is {most}"):
        worker(pending=1, pending_bytes=most - 10).require_room(11, settings)
    worker().require_room(5 * most, settings)  # one message may be larger than what several may be together


@pytest.mark.parametrize("number", [zmq.EHOSTUNREACH, zmq.EAGAIN])
async def test_a_message_to_a_connection_that_is_gone_or_full_is_not_sent(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = links()
    made._loop, made._socket = asyncio.get_running_loop(), cast(Any, None)
    monkeypatch.setattr(made, "_drain", lambda: None)

    def refused(socket: object, frames: object) -> None:
        raise zmq.ZMQError(number)

    monkeypatch.setattr(links_module.wire, "send", refused)
    assert made._transmit([b"w0", b"x"]) == number
    number = zmq.ETERM
    with pytest.raises(zmq.ZMQError):
        made._transmit([b"w0", b"x"])
    monkeypatch.setattr(links_module.wire, "send", lambda socket, frames: None)
    assert made._transmit([b"w0", b"x"]) == 0


async def test_messages_sent_in_one_go_are_followed_by_one_look_for_what_has_arrived(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = links()
    made._loop, made._socket = asyncio.get_running_loop(), cast(Any, SimpleNamespace(closed=True))
    looks: list[bool] = []
    drain = made._drain

    def counted() -> None:
        looks.append(True)
        drain()

    monkeypatch.setattr(made, "_drain", counted)
    monkeypatch.setattr(links_module.wire, "send", lambda socket, frames: None)
    for expected in (1, 2):
        made._transmit([b"w0", b"x"])
        made._transmit([b"w0", b"y"])
        await asyncio.sleep(0)
        assert len(looks) == expected


def test_a_worker_takes_so_many_requests_and_no_more() -> None:
    settings = Settings(worker_requests_max=2)
    worker(pending=1).require_room(1, settings)
    with pytest.raises(errors.Overloaded, match="w0 has 2 requests in flight, the limit is 2"):
        worker(pending=2).require_room(1, settings)


def register(made: Links, name: str, pid: int, shards: dict[int, int], cluster: str = "c", **counts: int) -> None:
    message = cluster_pb2.Register(pid=pid, worker=name, cluster_id=cluster)
    for number, state in shards.items():
        entry = message.shards.add(shard=number, state=cast(Any, state), detail="disk" if state == FAILED else "")
        entry.counts.update(counts)
    made._members.register(f"{name}-{pid}".encode(), message)


def test_states_are_those_of_the_last_beat() -> None:
    made = links()
    register(made, "w0", 1, {0: READY, 1: LOADING, 2: FAILED}, records=5)
    assert [(s.number, s.state, s.worker) for s in made.states()] == [
        (0, "ready", "w0"),
        (1, "loading", "w0"),
        (2, "failed", "w0"),
        (3, "down", None),
    ]
    assert made.states()[0].counts == {"records": 5}
    assert made.unready() == {
        1: "w0 is still loading it",
        2: "w0 could not load it: disk",
        3: "no worker has registered it",
    }
    assert made.unready([0, 3]) == {3: "no worker has registered it"}
    assert made.unready([]) == {}
    register(made, "w0", 1, {0: READY, 1: READY, 2: READY})
    assert set(made.unready()) == {3}
    assert made.workers() == [("w0", 1, (0, 1, 2), 0)]
    with pytest.raises(errors.Unavailable, match="not available: shard 3: no worker has registered it"):
        made.require([2, 3])
    made.require([0, 2])


def test_a_worker_of_another_cluster_changes_nothing() -> None:
    made = links()
    register(made, "w0", 1, {0: READY}, cluster="other")
    assert (made.workers(), set(made.unready())) == ([], {0, 1, 2, 3})


def test_shards_move_to_the_worker_that_has_them_now() -> None:
    made = links()
    register(made, "w0", 1, {0: READY, 1: READY})
    register(made, "w1", 2, {2: READY, 3: READY})

    def owners(*shards: int) -> list[tuple[str, tuple[int, ...]]]:
        return [(owner.name, numbers) for owner, numbers in made._members.owners_of(shards)]

    assert owners(0, 1, 2, 3) == [("w0", (0, 1)), ("w1", (2, 3))]
    assert owners(3, 0) == [("w1", (3,)), ("w0", (0,))]
    register(made, "w1", 2, {1: READY, 2: READY, 3: READY})
    assert owners(0, 1, 2, 3) == [("w0", (0,)), ("w1", (1, 2, 3))]
    gone = next(w for w in made.connected() if w.name == "w0")
    made._members.remove(gone, "it has gone")
    assert made.unready() == {0: "it has gone"}
    assert [name for name, *_ in made.workers()] == ["w1"]


def test_a_restarted_worker_replaces_only_itself() -> None:
    made = links()
    register(made, "w0", 1, {0: READY})
    register(made, "w1", 2, {1: READY})
    register(made, "w0", 3, {0: LOADING})
    assert [(name, pid) for name, pid, *_ in made.workers()] == [("w0", 3), ("w1", 2)]
    assert made.unready([0, 1]) == {0: "w0 is still loading it"}


def test_so_many_sets_of_owners_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership, "OWNERS_KEPT", 2)
    made = links()
    register(made, "w0", 1, {0: READY, 1: READY, 2: READY})
    for number in (0, 1):
        made._members.owners_of((number,))
    assert set(made._members._owners) == {(0,), (1,)}
    made._members.owners_of((0,))
    assert len(made._members._owners) == 2
    made._members.owners_of((2,))
    assert set(made._members._owners) == {(2,)}


# Calls


async def part(call: MethodCall, owner: Worker, *shards: int, size: int = 10) -> WorkerCall:
    return WorkerCall(call, owner, shards, size)


async def new_call() -> MethodCall:
    return MethodCall(b"8 bytes.", 0.0, asyncio.get_running_loop().create_future())


def reply(shards: tuple[int, ...], failed: dict[int, str] | None = None, warnings: tuple[str, ...] = ()) -> WorkerReply:
    return WorkerReply("w0", shards, Reply(shard_errors=failed or {}, warnings=warnings), 1.0)


async def test_a_call_is_done_with_its_last_part() -> None:
    call = await new_call()
    owners = worker("w0"), worker("w1")
    parts = [await part(call, owner, number, size=10 + number) for number, owner in enumerate(owners)]
    for one in parts:
        one.send_off()
    assert (call.awaited, [owner.pending_bytes for owner in owners]) == (2, [10, 11])
    parts[0].settle("it is gone")
    assert (call.awaited, call.done.done(), owners[0].pending_bytes, owners[1].pending_bytes) == (1, False, 0, 11)
    parts[1].settle(reply((1,)))
    assert (call.awaited, call.done.done(), owners[1].pending_bytes) == (0, True, 0)
    assert all(not owner.pending for owner in owners)
    call.finish()  # twice is once


async def test_what_came_of_a_call_is_gathered_by_shard() -> None:
    call, owner = await new_call(), worker()
    parts = [await part(call, owner, *shards) for shards in ((0, 1), (2, 3), (4, 5), (6,))]
    parts[0].outcome = reply((0, 1))
    parts[1].outcome = reply((2, 3), {3: "corrupt"})
    parts[2].outcome = reply((4, 5), {4: "full", 5: "corrupt"})
    parts[3].outcome = "it is down"
    result = FanOut.of(parts, {9: "it is loading"})
    assert [reply.shards for reply in result.replies] == [(0, 1), (2,)]
    assert result.missing == {3: "corrupt", 4: "full", 5: "corrupt", 6: "it is down", 9: "it is loading"}


def test_warnings_name_missing_shards_in_order_and_then_what_the_others_lack() -> None:
    outcome = FanOut([reply((0,), warnings=("a",)), reply((1,), warnings=("b",))], {3: "late", 2: "down"})
    assert outcome.warnings() == [
        "shard 2 is missing from this answer: down",
        "shard 3 is missing from this answer: late",
        "a",
        "b",
    ]
