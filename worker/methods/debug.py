"""The method `debug.profile`. It has its own lane, since profiles are requested when all other threads are busy."""

from __future__ import annotations

from collections.abc import Mapping

from shared.messages.debug import ProfileBody
from shared.process.profiling import profile
from shared.wire import Reply, Request, unpack
from worker.methods.method import Method
from worker.shard import Shard


def run(shards: Mapping[int, Shard], request: Request) -> Reply:
    """Profile this process until the time is up or the request is cancelled. Raises Overloaded."""
    body = unpack(request.body, ProfileBody)
    text = profile(body.seconds, lambda: request.time_left == 0, by_processor=body.by_processor)
    return Reply(frames=[text])


METHODS: dict[str, Method] = {"debug.profile": Method(run, "debug")}
