"""Sends the queries of several rules as one: their leaves go in one message, and each result is merged on its own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from coordinator.queries.cost import Steps
from coordinator.queries.evaluation import Conclusion, Replies, WorkerShare
from coordinator.queries.joining import Joined
from coordinator.queries.merge import Merged, evaluate_plan
from coordinator.queries.planner import Plan
from coordinator.rules.alerts import Vector
from coordinator.rules.vectors import vector_of
from shared.errors import BadData, NotExecutable, TriptychError
from shared.messages.sub_queries import EvaluateReply
from shared.promql.ast import ValueType
from shared.promql.model import Annotations, Scalar
from shared.wire import Frame, unpack


def joined(plans: Sequence[Plan]) -> Plan:
    """A plan with the leaves of all plans. It is only for sending, and has no meaning of its own."""
    return Plan(
        "; ".join(plan.text for plan in plans),
        plans[0].expr,
        plans[0].root,
        tuple(leaf for plan in plans for leaf in plan.leaves),
        ValueType.VECTOR,
        False,
        tuple(demand for plan in plans for demand in plan.demands),
        Steps(max(plan.steps_most.own for plan in plans), max(plan.steps_most.sent for plan in plans)),
    )


def merged_apart(plans: Sequence[Plan], replies: Replies) -> tuple[Sequence[Vector | TriptychError], Conclusion]:
    """(The vector of each plan, or its error; what is learned from the replies for all). Work for a thread. Raises
    errors that concern all of them: DeadlineExceeded, TooHeavy, AskAgain."""
    shares = []
    pieces: list[list[tuple[EvaluateReply, Sequence[Frame]]]] = [[] for _ in plans]
    for reply in replies.fan_out.replies:
        evaluated, frames = unpack(reply.message.body, EvaluateReply), reply.message.frames
        shares.append(
            WorkerShare(reply.worker, tuple(reply.shards), reply.elapsed_ms, reply.message.timings_ms, evaluated)
        )
        answer_at = frame_at = 0
        for plan, plan_pieces in zip(plans, pieces, strict=True):
            answers = evaluated.answers[answer_at : answer_at + len(plan.leaves)]
            frames_end = frame_at + sum(answer.shape.frames for answer in answers)
            plan_pieces.append((EvaluateReply(answers, evaluated.samples_peak), frames[frame_at:frames_end]))
            answer_at, frame_at = answer_at + len(plan.leaves), frames_end
        assert answer_at == len(evaluated.answers) and frame_at == len(frames)
    vectors: list[Vector | TriptychError] = []
    for plan, plan_pieces in zip(plans, pieces, strict=True):
        try:
            value = evaluate_plan(plan, plan_pieces, replies.terms).value
            assert not isinstance(value, Joined)  # arrays were asked for
            vectors.append(vector_of(value))
        except (NotExecutable, BadData) as error:
            vectors.append(error)
    nothing = Merged(Scalar(np.zeros(1)), Annotations(), 0, 0)
    return vectors, Conclusion(replies.plan, nothing, replies.fan_out.warnings(), shares, {})
