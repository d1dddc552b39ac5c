"""Label sets that workers have sent before: the same answer as if they had not, made with less."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import pytest

from coordinator.queries import label_memory, merge
from coordinator.queries.label_memory import SENT_BYTES_MAX, SERIES_MAX, LabelMemory
from coordinator.queries.merge import Terms, evaluate_plan
from coordinator.queries.planner import plan
from coordinator.queries.results import Result, ordered
from shared.errors import NotExecutable
from shared.labels import LabelFrame, Symbols
from shared.messages import exchange
from shared.messages.sub_queries import EvaluateReply, SubQueryReply
from shared.promql.model import Grid, Matrix
from shared.promql.rendering import labels as rendering
from shared.wire import Frame

GRID = Grid(0, 20_000, 10_000)
Labels = dict[str, str]
Replies = list[tuple[EvaluateReply, Sequence[Frame]]]


class Nothing(LabelMemory):
    def joined(self, sent: Sequence[Sequence[Frame]]) -> None:
        return None


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> LabelMemory:
    own = LabelMemory()
    monkeypatch.setattr(merge, "LABELS", own)
    return own


def m(**labels: str) -> Labels:
    return {"__name__": "m", **labels}


def frames_of(*label_sets: Labels) -> list[Frame]:
    return list(LabelFrame.of(label_sets, Symbols()).to_frames())


def replies(*workers: Sequence[Labels], first: float = 0.0, drops_names: bool = False, gaps: bool = False) -> Replies:
    """Each worker's series, with values that count up from `first`."""
    made: Replies = []
    for label_sets in workers:
        values = first + np.arange(GRID.steps * len(label_sets), dtype=np.float64).reshape(-1, GRID.steps)
        present = np.ones(values.shape, np.bool_)
        if gaps:
            present[0], present[-1, 1] = False, False
        labels = LabelFrame.of(label_sets, Symbols())
        shape, frames = exchange.encode(Matrix(labels, values, present, np.full(len(label_sets), drops_names)))
        made.append((EvaluateReply((SubQueryReply(shape, (), 1, 0.0, 1, 0, True, ()),), 1), frames))
        first += values.size
    return made


def text(sent: Replies) -> bytes:
    merged = evaluate_plan(plan("m", GRID), sent, Terms(GRID, 300_000, 1_000_000, time.monotonic() + 60))
    assert not isinstance(merged.value, merge.Joined)
    return b"".join(bytes(chunk) for chunk in Result(ordered(merged.value), GRID, True).chunks())


CASES: dict[str, Replies] = {
    "some of both": replies([m(i="3"), m(i="1", zone="a")], [m(i="2")]),
    "without names": replies([m(i="3"), m(i="1")], [m(i="2"), m(i="0")], drops_names=True),
    "with gaps": replies([m(i="3"), m(i="1"), m(i="5")], [m(i="2"), m(i="4")], gaps=True),
    "no series of one": replies([], [m(i="2"), m(i="1")]),
    "no series": replies([], []),
    "a label that is empty elsewhere": replies([m(a="1")], [m(b="1"), m()]),
    "texts to escape": replies([m(i='"\\\n')], [m(i="ü")]),
}


@pytest.mark.parametrize("name", CASES)
def test_the_answer_is_the_same(name: str, memory: LabelMemory, monkeypatch: pytest.MonkeyPatch) -> None:
    again = [text(CASES[name]) for _ in range(3)]
    monkeypatch.setattr(merge, "LABELS", Nothing())
    assert again == [text(CASES[name])] * 3


def test_other_numbers_beside_the_same_labels_are_shown(memory: LabelMemory) -> None:
    workers = [m(i="2")], [m(i="1")]
    assert b'"7"' not in text(replies(*workers))
    assert b'"7"' in text(replies(*workers, first=7.0))


def test_labels_are_put_in_order_and_rendered_once(memory: LabelMemory, monkeypatch: pytest.MonkeyPatch) -> None:
    rendered: list[int] = []
    pairs = rendering.label_pairs
    monkeypatch.setattr(rendering, "label_pairs", lambda own, by: rendered.append(own.size) or pairs(own, by))
    for drops_names in (False, True, False, True):
        text(replies([m(i="3"), m(i="1")], [m(i="2")], drops_names=drops_names))
    assert rendered == [3, 3], "with names and without, each once"


def test_series_that_become_equal_are_refused_each_time(memory: LabelMemory) -> None:
    for _ in range(3):
        with pytest.raises(NotExecutable, match="same labelset"):
            text(replies([m(i="1")], [{"__name__": "n", "i": "1"}], drops_names=True))


def test_the_order_of_the_workers_counts(memory: LabelMemory) -> None:
    one, other = frames_of(m(i="1")), frames_of(m(i="2"))
    here, there = memory.joined([one, other]), memory.joined([other, one])
    assert here is not None and there is not None and here is not there
    assert here.labels.labels(0) == there.labels.labels(1) == (("__name__", "m"), ("i", "1"))
    assert memory.joined([one, other]) is here


def test_many_series_and_long_labels_are_not_kept(memory: LabelMemory) -> None:
    half = frames_of(*(m(i=str(i)) for i in range(SERIES_MAX // 2)))
    assert memory.joined([half, half]) is memory.joined([half, half])
    many = [half, half, frames_of(m())]
    made = memory.joined(many)
    assert made is not None and made is not memory.joined(many)
    assert (made.labels.size, made.labels.derived) == (SERIES_MAX + 1, None)
    assert memory.joined([frames_of(m(i="x" * SENT_BYTES_MAX)), half]) is None


def test_the_memory_is_bounded_and_keeps_what_is_asked_for(
    memory: LabelMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(label_memory, "BYTES_MAX", 100_000)
    mine = [frames_of(m(i="mine")), frames_of(m(i="mine too"))]
    first = memory.joined(mine)
    for i in range(1000):
        assert memory.joined([frames_of(m(i=str(i))), frames_of(m())]) is not None
        assert memory.joined(mine) is first
    assert 1 < len(memory._kept) < 20
    assert 0 < memory.bytes <= 100_000
    old = [frames_of(m(i="0")), frames_of(m())]
    assert memory.joined(old) is memory.joined(old)
