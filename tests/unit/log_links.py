"""Links to log shards in this process, which lose messages, fail and crash as a test tells them to."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from coordinator.fanout.calls import FanOut, WorkerReply
from shared.errors import Unavailable
from shared.wire import Frame, Request
from worker import damage
from worker.damage import DamageReport
from worker.logs.keeper import Keeper
from worker.logs.part import LogPart
from worker.methods import log, log_groups
from worker.methods.method import begin
from worker.storage.rows.store import Store
from worker.storage.wal.log import LOG, WriteAheadLog

METHODS = {**log.METHODS, **log_groups.METHODS}

Fault = Callable[[str, int], str]
"""(method, shard) → "" (works), "lost" (the request never arrives), "unanswered" (it does, the answer does not), "late"
(it arrives when `deliver_late` is called), or "frozen" (as late, and nobody hears of it before the deadline)."""


class LogShards:
    """Stands in for `coordinator.fanout.links.Links`: every shard is a worker of its own. `light_calls`: the methods of
    the calls whose CPU time was bounded."""

    def __init__(self, directory: Path, shards: int) -> None:
        self.shards = shards
        self.down: set[int] = set()
        self.fault: Fault = lambda method, shard: ""
        self.calls: list[str] = []
        self.light_calls: list[str] = []
        self._late: list[tuple[int, Request]] = []
        self._directory = directory
        self._shards = [self._open(n) for n in range(shards)]

    def _open(self, number: int) -> Any:
        directory = self._directory / f"{number:04d}"
        store = Store(directory / "store")
        wal = WriteAheadLog(directory / "wal").open()
        report = DamageReport()
        logs = LogPart(store, Keeper(wal), wal.stream(number, LOG), report)
        logs.load()
        return SimpleNamespace(id=number, store=store, logs=logs, wal=wal, damage=report)

    def close(self) -> None:
        for shard in self._shards:
            shard.logs.close()
            shard.store.close()
            shard.wal.close()

    def restart(self, number: int) -> None:
        """A worker that died and is back: what it had in memory is gone, messages that waited for it too."""
        self._late = [(shard, request) for shard, request in self._late if shard != number]
        self._shards[number].logs.close()
        self._shards[number].store.close()
        self._shards[number].wal.close()
        self._shards[number] = self._open(number)

    def deliver_late(self, method: str = "") -> None:
        """All messages, or those of one method; as if they had been read from the socket within their time."""
        late = [item for item in self._late if method in ("", item[1].method)]
        self._late = [item for item in self._late if item not in late]
        for shard, request in late:
            request.deadline = max(request.deadline, time.monotonic() + 1)
            METHODS[request.method].run({shard: self._shards[shard]}, request)

    def unready(self, shards: Iterable[int] | None = None) -> dict[int, str]:
        numbers = range(self.shards) if shards is None else shards
        return {n: "it is down" for n in numbers if n in self.down}

    def require(self, shards: Iterable[int]) -> None:
        missing = self.unready(shards)
        if missing:
            raise Unavailable(f"not available: {missing}")

    async def fan_out(
        self,
        method: str,
        *,
        shards: Iterable[int] | None = None,
        body: Frame = b"",
        frames: Sequence[Frame] = (),
        parts: Mapping[int, Sequence[Frame]] | None = None,
        timeout_s: float,
        processor_s: float = 0.0,
    ) -> FanOut:
        numbers = list(shards if shards is not None else parts if parts is not None else range(self.shards))
        answers: list[WorkerReply] = []
        missing: dict[int, str] = {}
        if processor_s:
            self.light_calls.append(method)
        is_frozen = False
        for number in numbers:
            self.calls.append(method)
            request = Request(method, (number,), time.monotonic() + timeout_s, body, frames, processor_s=processor_s)
            if parts is not None:
                request.parts = {number: parts[number]}
            answer = self._ask(number, request)
            if isinstance(answer, str):
                missing[number] = answer
                is_frozen = is_frozen or answer.startswith("frozen")
            else:
                answers.append(answer)
        if is_frozen:
            await asyncio.sleep(timeout_s)
        if not answers:
            raise Unavailable(f"not available: {missing}")
        return FanOut(answers, missing)

    def _ask(self, number: int, request: Request) -> WorkerReply | str:
        if number in self.down:
            return "it is down"
        fault = self.fault(request.method, number)
        if fault in ("late", "frozen"):
            self._late.append((number, request))
        if fault in ("lost", "late", "frozen"):
            return f"{fault}, says the test"
        try:
            begin(request)
            reply = METHODS[request.method].run({number: self._shards[number]}, request)
            reply.warnings = damage.warnings({number: self._shards[number].damage}, request.method)
        except Unavailable as error:
            return str(error)
        if fault == "unanswered":
            return "unanswered, says the test"
        if number in reply.shard_errors:
            return reply.shard_errors[number]
        return WorkerReply(f"worker-{number}", (number,), reply, 0.0)

    async def call(self, method: str, **options: Any) -> list[WorkerReply]:
        shards = options.get("shards")
        self.require(shards if shards is not None else options.get("parts") or range(self.shards))
        result = await self.fan_out(method, **options)
        if result.missing:
            raise Unavailable(f"not available: {result.missing}")
        return result.replies
