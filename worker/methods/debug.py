"""The method `debug.profile`. It has a lane of its own: a profile is wanted when all other threads are at work."""

from __future__ import annotations

from collections.abc import Mapping

from shared.messages.debug import ProfileBody
from shared.profiling import profile
from shared.wire import Reply, Request, unpack
from worker.methods.method import Method
from worker.shard import Shard


def run(shards: Mapping[int, Shard], request: Request) -> Reply:
    """Profile this process until the time is up or nobody waits for the reply any more. Raises Overloaded."""
    wanted = unpack(request.body, ProfileBody)
    text = profile(wanted.seconds, lambda: request.time_left == 0, by_processor=wanted.by_processor)
    return Reply(frames=[text])


METHODS: dict[str, Method] = {"debug.profile": Method(run, "debug")}
