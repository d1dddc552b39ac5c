"""A question to several workers at once, from its calls to what came of them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from shared import errors
from shared.wire import Reply


@dataclass(slots=True)
class Answer:
    """One worker's reply, for the shards that took part."""

    worker: str
    shards: tuple[int, ...]
    reply: Reply
    elapsed_ms: float


@dataclass(slots=True)
class FanOut:
    """What came of asking several shards. `missing`: shard → why it is not in the answer."""

    answers: list[Answer]
    missing: dict[int, str]

    def warnings(self) -> list[str]:
        """One text a missing shard, and what the others say is missing from theirs, for the envelope."""
        missing = [f"shard {shard} is missing from this answer: {why}" for shard, why in sorted(self.missing.items())]
        return missing + [text for answer in self.answers for text in answer.reply.warnings]


@dataclass(slots=True)
class Worker:
    """`pending`: what it has been asked and has not answered, by request id."""

    name: str
    identity: bytes
    pid: int
    seen: float
    shards: tuple[int, ...] = ()
    pending: dict[bytes, Call] = field(default_factory=dict)
    pending_bytes: int = 0


@dataclass(slots=True)
class Call:
    """One worker's part of a question. `outcome`: its answer, or why there is none; None while it is awaited."""

    question: Question
    worker: Worker
    shards: tuple[int, ...]
    bytes: int
    outcome: Answer | str | None = None

    def send_off(self) -> None:
        """It is on its way."""
        self.worker.pending[self.question.id] = self
        self.worker.pending_bytes += self.bytes
        self.question.awaited += 1

    def settle(self, outcome: Answer | str) -> None:
        """It was sent off and has come to its end."""
        del self.worker.pending[self.question.id]
        self.worker.pending_bytes -= self.bytes
        self.outcome = outcome
        self.question.awaited -= 1
        if not self.question.awaited:
            self.question.finish()


@dataclass(slots=True)
class Question:
    """What is asked of several workers at once, under one request id. `done` is set when every call has its outcome,
    at the deadline, or when a worker's `error` makes the other answers worthless."""

    id: bytes
    asked_at: float
    done: asyncio.Future[None]
    awaited: int = 0  # calls that were sent off and have no outcome
    error: errors.TriptychError | None = None

    def finish(self) -> None:
        if not self.done.done():
            self.done.set_result(None)


def require_whole(warnings: Sequence[str]) -> None:
    """For a client that wants all or nothing. Raises Unavailable if there are any warnings of what the answer lacks."""
    if warnings:
        raise errors.Unavailable("; ".join(warnings))


def gathered(calls: Sequence[Call], missing: dict[int, str]) -> FanOut:
    answers = []
    for call in calls:
        outcome = call.outcome
        if not isinstance(outcome, Answer):
            missing.update(dict.fromkeys(call.shards, outcome or ""))
            continue
        failed = outcome.reply.shard_errors
        if failed:
            missing.update(failed)
            outcome.shards = tuple(n for n in call.shards if n not in failed)
        if outcome.shards:
            answers.append(outcome)
    return FanOut(answers, missing)
