"""Workers' answers to a search become one, and one text."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.vectors.answers import hits_json
from coordinator.vectors.fusion import fuse
from coordinator.vectors.merging import Hits, merge
from coordinator.vectors.ranked_ids import RankedIds
from shared import wire
from shared.messages.vectors import SearchReply, pack_blobs
from shared.wire import Reply
from worker.vectors.ranking import best

ROOT = Path(__file__).resolve().parents[2]
Scored = list[tuple[float, bytes]]


def reply(lists: Sequence[Scored]) -> Reply:
    counts = np.array([len(found) for found in lists], dtype=np.int32)
    near = np.array([score for found in lists for score, _ in found], dtype=np.float32)
    names = pack_blobs([name for found in lists for _, name in found])
    return Reply(wire.pack(SearchReply((), 9)), [counts.tobytes(), near.tobytes(), *names, b"", b"", b""])


def ordered(hits: Scored) -> Scored:
    return sorted(hits, key=lambda hit: (-hit[0], hit[1]))


SCORES = st.sampled_from([-1.0, -0.5, 0.0, 0.25, 0.5, 1.0])


@settings(deadline=None)
@given(
    st.integers(1, 3).flatmap(lambda n: st.lists(st.lists(st.lists(SCORES, max_size=6), min_size=n, max_size=n))),
    st.integers(1, 8),
)
def test_merged_is_the_best_of_all_workers_and_equal_ones_by_id(workers: list[list[list[float]]], k: int) -> None:
    queries = len(workers[0]) if workers else 1
    numbers = iter(np.random.default_rng(1).permutation(1000).tolist())
    found = [[ordered([(s, f"{next(numbers)}".encode()) for s in scores]) for scores in lists] for lists in workers]
    merged = merge([reply(lists) for lists in found], queries, 2, k)
    for place, hits in enumerate(merged.lists):
        expected = ordered([hit for lists in found for hit in lists[place]])[:k]
        assert [(float(near), name) for near, name, _, _ in hits] == expected


@settings(deadline=None)
@given(st.lists(st.lists(SCORES | st.just(-np.inf), min_size=7, max_size=7), min_size=1, max_size=4), st.integers(1, 9))
def test_candidates_are_ranked_by_similarity_and_equal_ones_by_id(table: list[list[float]], k: int) -> None:
    near = np.array(table, dtype=np.float32)
    random = np.random.default_rng(2)
    index = np.stack([random.permutation(7) for _ in table]).astype(np.int64)
    names = [f"{number}".encode() for number in random.permutation(7)]
    for place, (rows, values) in enumerate(best(near, index, k, names).parts()):
        there = [(float(s), names[row]) for s, row in zip(near[place], index[place], strict=True) if s > -np.inf]
        assert [(float(s), names[row]) for s, row in zip(values, rows, strict=True)] == ordered(there)[:k]


@pytest.mark.parametrize("names", [[b"a", b"b"], [b'"\\', "é\n".encode()]])
@pytest.mark.parametrize("shown", [False, True])
def test_json_has_the_scores_ids_and_attributes(names: list[bytes], shown: bool) -> None:
    attributes = [{"colour": 'r"ed', "n": 2.0}, {}]
    packed = [msgspec.msgpack.encode(entry) if entry else b"" for entry in attributes]
    vectors = np.array([[0.1, 0.2], [0.3, 0.4]], dtype=np.float32)
    hits = Hits(np.array([0.9, -0.5], np.float32), names, packed if shown else [], vectors if shown else None)
    results = json.loads(hits_json(hits, "cosine"))
    assert [result["score"] for result in results] == [0.9, -0.5]
    assert [result["vector"]["id"].encode() for result in results] == names
    expected = [{"vector": [0.1, 0.2], **attributes[0]}, {"vector": [0.3, 0.4]}] if shown else [{}, {}]
    assert [result["vector"]["attributes"] for result in results] == expected
    assert json.loads(hits_json(hits, "l2"))[1]["score"] == 0.5


def of_two_workers(names: list[list[str]]) -> list[Hits]:
    """The merged hits of queries that find these ids, of which two workers have every other one."""

    def part(worker: int) -> Reply:
        return reply([[(1 - place / 16, name.encode()) for place, name in enumerate(ids)][worker::2] for ids in names])

    return merge([part(0), part(1)], len(names), 2, 9).lists


@pytest.mark.parametrize("metric", ["cosine", "l2"])
@pytest.mark.parametrize("odd", ["", "é€😀", "\x7f", '"', "\\", "\n", "\x1f"])
def test_a_batch_is_rendered_as_each_of_its_queries_would_be(odd: str, metric: str) -> None:
    batch = of_two_workers([["a", "bb", odd + "c"], [], ["d"], ["longer" * 10, "a"]])
    alone = [Hits(hits.near, list(hits.ids), [], None) for hits in batch]
    assert [hits_json(hits, metric) for hits in batch] == [hits_json(hits, metric) for hits in alone]
    assert [len(hits.ids) for hits in batch] == [3, 0, 1, 2]
    assert [hits.ids for hits in batch] == [hits.ids for hits in alone] and batch[0].ids != [b"a"]


def test_rendering_a_batch_makes_no_object_for_an_id(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = of_two_workers([["a", "b"], ["c"]])
    monkeypatch.setattr(RankedIds, "ids", lambda *_: pytest.fail("made objects"))
    assert [[result["vector"]["id"] for result in json.loads(hits_json(hits, "dot"))] for hits in batch] == [
        ["a", "b"],
        ["c"],
    ]


def test_part_of_a_query_of_a_batch_is_rendered_without_the_rest() -> None:
    hits = of_two_workers([["a", "b", "c"], ["d"]])[0]
    assert [result["vector"]["id"] for result in json.loads(hits_json(hits.part(1, 3), "dot"))] == ["b", "c"]
    assert [result["vector"]["id"] for result in json.loads(hits_json(hits.take(np.array([2, 0])), "dot"))] == [
        "c",
        "a",
    ]


def test_fused_ranking_keeps_what_belongs_to_each_hit() -> None:
    def ranking(names: list[bytes]) -> Hits:
        return Hits(np.zeros(len(names), np.float32), names, names, np.array([[ord(n)] for n in names], np.float32))

    fused = fuse([ranking([b"a", b"b", b"c"]), ranking([b"c", b"d"])], 3)
    assert fused.ids == fused.attributes == [b"c", b"a", b"b"]
    assert fused.vectors is not None and fused.vectors.ravel().tolist() == [ord("c"), ord("a"), ord("b")]
    np.testing.assert_allclose(fused.near, [1 / 63 + 1 / 61, 1 / 61, 1 / 62], rtol=1e-6)


FIRST_USES = """
import sys, threading
import msgspec
from shared.messages.settling import settle
MODULE = "shared.messages.vectors"
INNER = [("a", int), ("b", str), ("c", "tuple[str, ...]", ())]
kinds = [
    msgspec.defstruct(f"Outer{n}", [("inner", msgspec.defstruct(f"Inner{n}", INNER, module=MODULE))], module=MODULE)
    for n in range(300)
]
settle()
sys.setswitchinterval(1e-6)
start = threading.Barrier(4)
message = msgspec.msgpack.encode({"inner": {"a": 1, "b": "x", "c": ["y"]}})
def use():
    for kind in kinds:
        start.wait()
        for _ in range(5):
            msgspec.msgpack.decode(message, type=kind)
threads = [threading.Thread(target=use) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


def test_settled_message_types_may_be_used_first_by_several_threads_at_once() -> None:
    subprocess.run([sys.executable, "-c", FIRST_USES], cwd=ROOT, check=True, timeout=120)
