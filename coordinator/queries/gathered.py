"""What the workers replied to queries of which nothing is evaluated here: their series, leaf by leaf."""

from __future__ import annotations

from dataclasses import dataclass

from coordinator.queries.evaluation import Replies, WorkerShare
from coordinator.queries.merge import samples_read, with_frames
from shared.labels import Symbols
from shared.messages import exchange
from shared.promql.engine.context import EvalContext
from shared.promql.model import RangeVector


@dataclass(frozen=True, slots=True)
class Gathered:
    """`parts`: for each leaf, the series of each worker; the label codes of all are those of one table."""

    parts: list[list[RangeVector]]
    shares: list[WorkerShare]
    samples_read: int


def gather(replies: Replies) -> Gathered:
    """Work for a thread. Raises OverBudget, DeadlineExceeded."""
    terms = replies.terms
    symbols = Symbols()
    context = EvalContext(
        None, symbols, terms.grid, deadline=terms.deadline, samples_max=terms.samples_max, cancelled=terms.cancelled
    )
    shares: list[WorkerShare] = []
    parts: list[list[RangeVector]] = [[] for _ in replies.plan.leaves]
    for reply in replies.fan_out.replies:
        context.check()
        share = WorkerShare.of(reply)
        shares.append(share)
        answers = with_frames(share.evaluated, reply.message.frames)
        for own, (answer, frames) in zip(parts, answers, strict=True):
            part = exchange.decode(answer.shape, frames, symbols)
            assert isinstance(part, RangeVector)
            context.hold(exchange.cells(part))
            own.append(part)
    return Gathered(parts, shares, sum(samples_read(share.evaluated) for share in shares))
