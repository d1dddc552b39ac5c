"""Checks of a running cluster, by its own responses."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Iterator, Mapping
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
            yield problem(CLUSTER, "coordinator", f"{url}/-/healthy returned status {healthy.status}", _why(healthy))
            return
        yield ok(CLUSTER, "coordinator", f"{url} is serving")
        yield clock(healthy.date, time.time())
        yield from shards(get("/api/v1/cluster"))
        yield from measures(get("/metrics"))
        yield from damage({path: get(path) for path in ASKED_FOR_WARNINGS})
    except ssl.SSLCertVerificationError as error:
        right = "use a certificate for this name, and --ca with the certificate of its authority"
        yield problem(CLUSTER, "coordinator", f"the certificate of {url} is not trusted: {error.verify_message}", right)
    except OSError as error:
        yield problem(
            CLUSTER,
            "coordinator",
            f"{url} cannot be reached: {error.strerror or error}",
            "start the cluster or correct --url",
        )


def clock(date: str, now_s: float) -> Finding:
    try:
        skew_s = parsedate_to_datetime(date).timestamp() - now_s
    except ValueError:
        return ok(CLUSTER, "clock", "the response has no date")
    if abs(skew_s) > SKEW_MAX_S:
        seen = f"{abs(skew_s):.0f} s {'ahead of' if skew_s > 0 else 'behind'} the clock of this machine"
        return warning(CLUSTER, "clock", seen, "synchronise the clocks of all machines that write and query")
    return ok(CLUSTER, "clock", "the same time as on this machine")


def shards(answer: Answer) -> Iterator[Finding]:
    try:
        state = msgspec.json.decode(answer.body, type=_Cluster).data
    except msgspec.MsgspecError:
        yield problem(CLUSTER, "shards", f"/api/v1/cluster returned status {answer.status}", _why(answer))
        return
    missing = [shard for shard in state.shards if shard.state != "ready"]
    for shard in missing:
        seen = f"{shard.state}: {shard.detail}" if shard.detail else shard.state
        right = "see the workers' log for the reason; until it is ready, responses lack its data and writes to it fail"
        yield problem(CLUSTER, f"shard {shard.shard}", seen, right)
    if not missing:
        seen = f"{counted(len(state.shards), 'shards')} in {counted(len(state.workers), 'workers')}, all ready"
        yield ok(CLUSTER, "shards", seen)


def measures(answer: Answer) -> Iterator[Finding]:
    """From the text of /metrics."""
    samples: dict[str, float] = {}
    for line in answer.body.decode(errors="replace").splitlines():
        name, _, value = line.partition(" ")
        if name.startswith("triptych_") and "{" not in name:
            samples[name] = float(value)
    level = samples.get("triptych_overload_level")
    if answer.status != 200 or level is None:
        yield warning(CLUSTER, "overload", f"/metrics returned status {answer.status}", _why(answer))
        return
    if level < 1:
        yield ok(CLUSTER, "overload", "none")
    else:
        waits = samples.get("triptych_queue_wait_seconds", 0.0) * 1000
        available = samples.get("triptych_memory_available_bytes", 0.0) / (1 << 20)
        seen = (
            f"{OVERLOAD.get(int(level), int(level))}: work waits {waits:.0f} ms, and {available:.0f} MB are available"
        )
        right = "send fewer or lighter requests, or add memory or processors; see docs/internals/overload.md"
        yield (warning if level < 3 else problem)(CLUSTER, "overload", seen, right)


def damage(answers: Mapping[str, Answer]) -> Iterator[Finding]:
    """Warnings of responses about data that they may lack. `answers`: path → response."""
    warned = {path: _warnings(answer) for path, answer in answers.items()}
    failed: dict[tuple[int, str], list[str]] = {}
    for path, texts in warned.items():
        if texts is None:
            failed.setdefault((answers[path].status, _why(answers[path])), []).append(path)
    for (status, why), paths in failed.items():
        yield warning(CLUSTER, "answers", f"{', '.join(paths)} returned status {status}", why)
    for text in list(dict.fromkeys(text for texts in warned.values() for text in texts or ()))[:WARNINGS_MAX]:
        right = "see Damage in docs/operations.md, and run `triptych check` while the cluster is stopped"
        yield problem(CLUSTER, "answers", text, right)
    if not any(texts is None or texts for texts in warned.values()):
        yield ok(CLUSTER, "answers", "no warnings of damage")


def _warnings(answer: Answer) -> list[str] | None:
    """None for an error, and for a response that cannot be parsed."""
    try:
        return msgspec.json.decode(answer.body, type=_Warned).warnings if answer.status == 200 else None
    except msgspec.MsgspecError:
        return None


def _why(answer: Answer) -> str:
    if answer.status == 401:
        return "set --token-file or TRIPTYCH_TOKEN to a credential of this cluster; it says: " + _shown(answer.body)
    if answer.status == 403:
        return "use a token with this role, or a host name that the cluster accepts; it says: " + _shown(answer.body)
    if answer.status == 503:
        return "run the doctor again when the cluster has recovered; it says: " + _shown(answer.body)
    return "use the --url of a Triptych cluster, which returns status 200; the response is: " + _shown(answer.body)


class _Refusal(msgspec.Struct):
    error: str = ""
    message: str = ""


def _shown(body: bytes) -> str:
    """The message of a response that is an error, on one line."""
    try:
        refusal = msgspec.json.decode(body, type=_Refusal)
        text = refusal.error or refusal.message
    except msgspec.MsgspecError:
        text = ""
    text = text or " ".join(body.decode(errors="replace").split())
    return text if len(text) <= 200 else text[:200] + "…"
