"""Checks of a running cluster, by its own responses."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Iterator
from email.utils import parsedate_to_datetime

import msgspec

from coordinator.command_client import Answer
from coordinator.doctor.finding import Finding, ok, problem, warning
from coordinator.plurals import counted

CLUSTER = "cluster"
SKEW_MAX_S = 5.0
OVERLOAD = {
    1: "background work pauses",
    2: "heavy queries are refused, and background work pauses",
    3: "writes and heavy queries are refused",
}
ASKED_FOR_WARNINGS = ("/api/v1/labels", "/api/v1/log/count", "/api/v1/vector/stats")
"""Paths whose responses have the warnings of their area."""
WARNINGS_MAX = 20


Get = Callable[[str], Answer]
"""Sends a GET request. Raises OSError."""


class _Warned(msgspec.Struct):
    warnings: list[str] = []


class _Shard(msgspec.Struct):
    shard: int
    state: str
    detail: str | None = None


class _State(msgspec.Struct):
    shards: list[_Shard]
    workers: list[dict[str, object]]


class _Cluster(msgspec.Struct):
    data: _State


def look(get: Get, url: str) -> Iterator[Finding]:
    try:
        healthy = get("/-/healthy")
        if healthy.status != 200:
            yield problem(CLUSTER, "coordinator", f"{url} answers with status {healthy.status}", _why(healthy))
            return
        yield ok(CLUSTER, "coordinator", f"{url} serves")
        yield clock(healthy.date, time.time())
        yield from shards(get("/api/v1/cluster"))
        yield from measures(get("/metrics"))
        yield from damage([get(path) for path in ASKED_FOR_WARNINGS])
    except ssl.SSLCertVerificationError as error:
        right = "a certificate for this name, by an authority that --ca names"
        yield problem(CLUSTER, "coordinator", f"{url} is not trusted: {error.verify_message}", right)
    except OSError as error:
        yield problem(CLUSTER, "coordinator", f"{url} does not answer: {error}", "a running cluster; its log says more")


def clock(date: str, now_s: float) -> Finding:
    try:
        skew_s = parsedate_to_datetime(date).timestamp() - now_s
    except ValueError:
        return ok(CLUSTER, "clock", "the answer has no date")
    if abs(skew_s) > SKEW_MAX_S:
        seen = f"{abs(skew_s):.0f} s {'ahead of' if skew_s > 0 else 'behind'} the clock of this machine"
        return warning(CLUSTER, "clock", seen, "the same time on all machines that write and ask")
    return ok(CLUSTER, "clock", "as that of this machine")


def shards(answer: Answer) -> Iterator[Finding]:
    try:
        state = msgspec.json.decode(answer.body, type=_Cluster).data
    except msgspec.MsgspecError:
        yield problem(CLUSTER, "shards", f"/api/v1/cluster answers with status {answer.status}", _why(answer))
        return
    missing = [shard for shard in state.shards if shard.state != "ready"]
    for shard in missing:
        seen = f"{shard.state}: {shard.detail}" if shard.detail else shard.state
        right = "ready; the log of the workers says why it is not, and answers lack its data"
        yield problem(CLUSTER, f"shard {shard.shard}", seen, right)
    if not missing:
        yield ok(CLUSTER, "shards", f"all {len(state.shards)} are ready, in {counted(len(state.workers), 'workers')}")


def measures(answer: Answer) -> Iterator[Finding]:
    """From the text of /metrics."""
    samples: dict[str, float] = {}
    for line in answer.body.decode(errors="replace").splitlines():
        name, _, value = line.partition(" ")
        if name.startswith("triptych_") and "{" not in name:
            samples[name] = float(value)
    level = samples.get("triptych_overload_level")
    if answer.status != 200 or level is None:
        yield warning(CLUSTER, "overload", f"/metrics answers with status {answer.status}", _why(answer))
        return
    if level < 1:
        yield ok(CLUSTER, "overload", "none")
    else:
        waits = samples.get("triptych_queue_wait_seconds", 0.0) * 1000
        available = samples.get("triptych_memory_available_bytes", 0.0) / (1 << 20)
        seen = f"{OVERLOAD.get(int(level), int(level))}: work waits {waits:.0f} ms, {available:.0f} MB are available"
        right = "fewer or lighter requests, more memory or processors; see docs/internals/overload.md"
        yield (warning if level < 3 else problem)(CLUSTER, "overload", seen, right)


def damage(answers: list[Answer]) -> Iterator[Finding]:
    """Warnings of responses about data that they may lack."""
    warned = [_warnings(answer) for answer in answers]
    for answer, texts in zip(answers, warned, strict=True):
        if texts is None:
            yield warning(CLUSTER, "answers", f"status {answer.status}", _why(answer))
    for text in list(dict.fromkeys(text for texts in warned for text in texts or ()))[:WARNINGS_MAX]:
        right = "what docs/operations.md says of damage; `triptych check` examines the stopped cluster"
        yield problem(CLUSTER, "answers", text, right)
    if not any(texts is None or texts for texts in warned):
        yield ok(CLUSTER, "answers", "no warnings")


def _warnings(answer: Answer) -> list[str] | None:
    """None for an error, and for a response that cannot be parsed."""
    try:
        return msgspec.json.decode(answer.body, type=_Warned).warnings if answer.status == 200 else None
    except msgspec.MsgspecError:
        return None


def _why(answer: Answer) -> str:
    if answer.status == 401:
        return "--token-file or TRIPTYCH_TOKEN, with a credential of this cluster: " + _shown(answer.body)
    if answer.status == 403:
        return "a token with this role, or --url with a name of the server: " + _shown(answer.body)
    return "status 200 of a Triptych cluster: " + _shown(answer.body)


def _shown(body: bytes) -> str:
    text = body.decode(errors="replace").strip()
    return text if len(text) <= 200 else text[:200] + "…"
