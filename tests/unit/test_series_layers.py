"""Samples below the head: what is being sealed is read and deleted as everything else, and what makes no sense in the
journal or the registry is said."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

from shared import wire
from shared.errors import DeadlineExceeded, Unavailable
from shared.labels import LabelFrame, Symbols
from shared.messages import series as messages
from shared.promql.ast import Matcher
from shared.promql.model import Samples
from shared.promql.regex import unchecked
from shared.wire import Reply, Request
from tests.unit.series_shard import EVERYTHING, TIMEOUT_S, A, B, Quiet, m
from worker.methods import series as methods
from worker.series import journal, upkeep
from worker.series.blocks.block import CorruptBlock
from worker.series.blocks.deletions import Deletions, Tombstone
from worker.series.blocks.layers import Slab
from worker.series.blocks.seal import Stopped
from worker.series.growing_array import GrowingArray
from worker.series.head import BEFORE, NEVER
from worker.series.index import patterns
from worker.series.index.index import Index
from worker.series.index.patterns import Pattern, Patterns
from worker.series.index.texts import TextTable
from worker.series.journal import Deletion, Written
from worker.series.loading import load_labels, numbers_of
from worker.storage.rows.damage import StoreDamaged

C = (("__name__", "m"), ("job", "c"))


@pytest.fixture
def shard(tmp_path: Path) -> Iterator[Quiet]:
    opened = Quiet(tmp_path)
    yield opened
    opened.close()


def selected(shard: Quiet, start_ms: int, end_ms: int, *matchers: Matcher) -> list[list[int]]:
    """Ids of the series that may have samples, and of those that have."""
    may_have = shard.part.select([matchers], start_ms, end_ms)[1]
    having = shard.part.having([matchers], start_ms, end_ms, lambda: None)[1]
    return [may_have.tolist(), having.tolist()]


@pytest.mark.parametrize("where", ["frozen", "slab"])
def test_what_is_neither_in_the_head_nor_in_a_block_is_read_selected_and_deleted(shard: Quiet, where: str) -> None:
    shard.write([(m(job="a"), [(10, 1.0), (20, 2.0)]), (m(job="b"), [(15, 3.0)])])
    if where == "frozen":
        shard.part.contents.freeze(shard.part.journal.next_sequence)
    else:
        shard.seal(0)
        assert shard.part.contents.layers.slab is not None
    shard.write([(m(job="c"), [(30, 4.0)])])
    assert shard.samples() == {A: [(10, 1.0), (20, 2.0)], B: [(15, 3.0)], C: [(30, 4.0)]}
    assert selected(shard, 0, 99) == [[0, 1, 2]] * 2
    assert selected(shard, 20, 29) == [[0]] * 2
    assert selected(shard, 15, 15)[1] == [1]
    assert selected(shard, 21, 29)[1] == []
    assert shard.part.counts()["samples"] == 4
    assert shard.part.contents.head_times()[1] == (30 if where == "frozen" else 10)
    shard.part.delete([[Matcher("job", "=", "a")]], 12, 25, TIMEOUT_S)
    assert shard.samples() == {A: [(10, 1.0)], B: [(15, 3.0)], C: [(30, 4.0)]}
    assert selected(shard, 12, 25)[1] == [1]
    assert selected(shard, 16, 25) == [[], []] if where == "slab" else True
    shard.part.delete([[Matcher("job", "=", "b")]], 15, 15, TIMEOUT_S)
    assert selected(shard, 10, 29)[1] == [0]
    [first, second] = shard.part.contents.layers.tombstones
    assert shard.part.contents.layers.needs(first) and shard.part.contents.layers.needs(second)
    shard.seal()
    assert shard.samples() == {A: [(10, 1.0)], C: [(30, 4.0)]}
    shard.part._upkeep.blocks._bury()
    assert shard.part.contents.layers.tombstones == ()
    shard.reopen()
    assert shard.samples() == {A: [(10, 1.0)], C: [(30, 4.0)]}


def test_a_slab_counts_its_samples_and_their_offsets() -> None:
    samples = Samples(np.array([0, 2, 3]), np.array([1, 2, 3]), np.zeros(3))
    assert Slab(samples).size_bytes == 3 * 16 + 3 * 8
    piece = Slab(samples).piece(np.array([1, 2, 0, 9]))
    assert (piece.rows.tolist(), piece.starts.tolist(), piece.ends.tolist()) == ([0, 2], [2, 0], [3, 2])


@pytest.mark.parametrize(
    ("generation", "start", "end", "applies"),
    [(5, 0, 9, True), (6, 0, 9, False), (4, 20, 30, True), (4, 31, 40, False), (4, 0, 10, True), (4, 0, 9, True)],
)
def test_a_deletion_concerns_older_layers_of_its_times(generation: int, start: int, end: int, applies: bool) -> None:
    stone = Tombstone(5, 9 if applies else 10, 20 if applies else 30, np.array([2, 7], np.int32).tobytes())
    assert stone.applies(generation, start, end) is applies
    found = list(Deletions([stone]).of(np.array([1, 7, 3, 2]), generation, start, end))
    assert [(rows.tolist(), *times) for rows, *times in found] == (
        [([False, True, False, True], stone.start_ms, stone.end_ms)] if applies else []
    )


# The journal


def test_samples_since_a_time_keep_their_series() -> None:
    record = Written(np.array([4, 6]), np.array([3, 2]), np.array([1, 5, 9, 4, 5]), np.arange(5.0))
    assert record.rows().tolist() == [4, 4, 4, 6, 6]
    found = record.since(5)
    assert (found.rows().tolist(), found.times_ms.tolist(), found.values.tolist()) == ([4, 4, 6], [5, 9, 5], [1, 2, 4])
    assert record.since(1) is record
    assert (record.latest_ms, Deletion(np.array([1]), 0, 9).latest_ms) == (9, BEFORE)
    payload = b"".join(map(bytes, journal.encode(record, 77)))
    sequence, again = journal.decode(payload)
    assert (sequence, isinstance(again, Written) and again.rows().tolist()) == (77, [4, 4, 4, 6, 6])


# Loading


def test_a_series_that_is_twice_in_the_registry_is_damage() -> None:
    data = np.frombuffer(b"\1\1ab\1\1ab", np.uint8)
    bounds = np.array([0, 4, 8])
    registry: Any = SimpleNamespace(load=lambda: [(np.array([0, 1]), data, bounds)], next_id=2)
    memory: Any = threading.Lock()
    with pytest.raises(StoreDamaged, match="below id 2 is twice"):
        load_labels(registry, Index(TextTable(), Patterns()), GrowingArray(np.int64), memory)


def test_numbers_of_permanent_ids() -> None:
    known = np.array([2, 5, 9])
    assert numbers_of(known, np.array([9, 1, 5, 2, 10, 3])).tolist() == [2, -1, 1, 0, -1, -1]
    assert numbers_of(known[:0], np.array([9, 1])).tolist() == [-1, -1]
    assert numbers_of(known, known[:0]).tolist() == []


# Expressions


def test_outcomes_are_remembered_for_codes_as_they_come_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patterns, "REMEMBERED_TEXTS_MAX", 3000)
    symbols = TextTable()
    codes = symbols.codes([f"{n}" for n in range(5000)])
    pattern = Pattern(".*7")
    asked: list[bytes] = []
    matching = pattern._regex.matching
    monkeypatch.setattr(pattern._regex, "matching", lambda texts, check: asked.extend(texts) or matching(texts, check))
    for first, last in ((0, 10), (990, 1100), (2900, 3100), (4000, 4010)):
        for _ in range(2):
            expected = [str(n).endswith("7") for n in range(first, last)]
            assert pattern.matches_codes(codes[first:last], symbols, unchecked).tolist() == expected
    assert sum(text == b"995" for text in asked) == 1
    assert sum(text == b"2950" for text in asked) == 1
    assert sum(text == b"4005" for text in asked) == 2
    assert len(pattern._outcomes) == 3000
    assert pattern.matches_codes(codes[:0], symbols, unchecked).tolist() == []


def test_the_expressions_used_last_stay_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patterns, "PATTERNS_MAX", 2)
    own = Patterns()
    first, second = own.get("a.*"), own.get("b.*")
    assert own.get("a.*") is first
    own.get("c.*")
    assert own.get("a.*") is first
    assert own.get("b.*") is not second


# The background


@pytest.mark.parametrize("error", [OSError("full"), Unavailable("full"), RuntimeError("a mistake")])
def test_upkeep_that_failed_is_tried_again_after_a_while(
    shard: Quiet, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    own, waited = shard.part._upkeep, list[float]()
    steps = iter([error, error, Stopped()])
    stopping: Any = SimpleNamespace(is_set=lambda: False, wait=waited.append)
    monkeypatch.setattr(own, "_stopping", stopping)

    def step(now_ms: int) -> None:
        assert abs(now_ms / 1000 - time.time()) < 60
        raise next(steps)

    wake = threading.Event()
    monkeypatch.setattr(upkeep, "TICK_S", 0.0)
    turn: Any = threading.Lock()
    running = threading.Thread(target=own._run, args=(step, turn, wake))
    running.start()
    running.join(TIMEOUT_S)
    assert waited == [upkeep.RETRY_S] * 2
    monkeypatch.undo()


def test_upkeep_sets_a_damaged_block_aside_and_goes_on(shard: Quiet, monkeypatch: pytest.MonkeyPatch) -> None:
    shard.write([(m(job="a"), [(1, 1.0)])])
    shard.seal()
    [block] = shard.part.contents.layers.blocks
    steps = iter([CorruptBlock(block, "it is wrong"), Stopped()])

    def step(now_ms: int) -> None:
        raise next(steps)

    monkeypatch.setattr(upkeep, "TICK_S", 0.0)
    turn: Any = threading.Lock()
    running = threading.Thread(target=shard.part._upkeep._run, args=(step, turn, threading.Event()))
    running.start()
    running.join(TIMEOUT_S)
    assert not running.is_alive()
    [text] = shard.part.damage(*EVERYTHING)
    assert "it is wrong" in text


@pytest.mark.parametrize(
    ("size", "is_behind", "earliest", "sealed"),
    [
        (101, False, 5000, [NEVER]),
        (100, False, 5000, []),
        (1, True, 5000, [NEVER]),
        (1, False, 3999, [4000]),
        (1, False, 4000, []),
    ],
)
def test_a_head_is_sealed_whole_when_it_must_be_and_its_past_windows_when_they_end(
    shard: Quiet, monkeypatch: pytest.MonkeyPatch, size: int, is_behind: bool, earliest: int, sealed: list[int]
) -> None:
    own = shard.part._upkeep.sealing
    asked: list[int] = []
    monkeypatch.setattr(own._rules, "_head_bytes_max", 100)
    monkeypatch.setattr(own, "_seal", asked.append)
    monkeypatch.setattr(own._rules, "_sealed_to_ms", 3000)
    monkeypatch.setattr(shard.part.contents, "head_times", lambda: (size, earliest))
    monkeypatch.setattr(shard.part.journal, "is_behind", lambda: is_behind)
    type(own).tick(own, 4125)
    assert asked == sealed
    type(own).tick(own, 4125)
    assert asked == ([*sealed, *sealed] if NEVER in sealed else sealed), "a window is sealed once"


# The methods


def call(shards: Sequence[Quiet], name: str, body: msgspec.Struct | None, **options: Any) -> Reply:
    packed = b"" if body is None else wire.pack(body)
    deadline = time.monotonic() + options.pop("within_s", TIMEOUT_S)
    request = Request(name, tuple(range(len(shards))), deadline, packed, (), options.pop("parts", {}))
    own: Any = {number: SimpleNamespace(series=shard.part) for number, shard in enumerate(shards)}
    return methods.METHODS[name].run(own, request)


@pytest.fixture
def shards(tmp_path: Path) -> Iterator[list[Quiet]]:
    """Two with the same table of texts, of three and two series."""
    symbols = TextTable()
    opened = [Quiet(tmp_path / str(number), symbols) for number in range(2)]
    opened[0].write([(m(job=job), [(1, 1.0)]) for job in "abc"])
    opened[1].write([(m(job=job), [(1, 1.0), (2, 2.0)]) for job in "de"])
    yield opened
    for shard in opened:
        shard.close()


def select(**fields: Any) -> messages.SelectBody:
    return messages.SelectBody(**{"selectors": [[Matcher("job", "!=", "b")]], "start_ms": 0, "end_ms": 9, **fields})


def test_a_deletion_is_of_all_shards(shards: list[Quiet]) -> None:
    own = messages.DeleteBody([[Matcher("job", "!=", "b")]], 0, 9)
    assert [sum(map(len, shard.samples().values())) for shard in shards] == [3, 4]
    assert call(shards, "series.delete", own) == wire.Reply()
    assert [len(shard.samples()) for shard in shards] == [1, 0]


def test_a_deletion_that_fails_at_one_shard_is_done_at_the_others_and_raises(
    shards: list[Quiet], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = messages.DeleteBody([[]], 0, 9)

    def refuse(*_: Any, **__: Any) -> None:
        raise Unavailable("the disk is full")

    for failing in (1, 0):
        with monkeypatch.context() as patch, pytest.raises(Unavailable, match="full"):
            patch.setattr(shards[failing].part, "delete", refuse)
            call(shards, "series.delete", own)
        assert shards[1 - failing].samples() == {}


@pytest.mark.parametrize(
    ("limit", "listed", "is_cut"), [(0, 4, False), (4, 4, False), (3, 3, True), (2, 2, True), (1, 1, True)]
)
def test_a_list_of_series_is_cut_over_all_shards(
    shards: list[Quiet], limit: int, listed: int, is_cut: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[int] = []
    frame = methods.Lookup.frame

    def counted(self: methods.Lookup, ids: Any, symbols: Symbols) -> LabelFrame:
        taken.append(len(ids))
        return frame(self, ids, symbols)

    monkeypatch.setattr(methods, "concat", lambda frames: frames[0])
    monkeypatch.setattr(methods.Lookup, "frame", counted)
    answer = wire.unpack(call(shards, "series.list", select(limit=limit)).body, messages.ListReply)
    assert (sum(taken), answer.cut) == (listed, is_cut)


def test_names_and_values_are_of_all_shards_each_once(shards: list[Quiet]) -> None:
    def texts(method: str, **fields: Any) -> list[str]:
        return wire.unpack(call(shards, method, select(**fields)).body, messages.TextsReply).texts

    assert texts("series.labels") == ["__name__", "job"]
    assert texts("series.values", name="job") == ["a", "c", "d", "e"]
    assert texts("series.values", name="job", limit=2) == ["a", "c"]
    assert texts("series.values", name="nothing") == []
    with pytest.raises(DeadlineExceeded, match="at shard 0"):
        call(shards, "series.labels", select(), within_s=0.0)


def test_the_time_is_looked_at_between_the_texts_of_values(
    shards: list[Quiet], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(methods, "VALUES_AT_ONCE", 1)
    looks: list[str] = []
    monkeypatch.setattr(methods, "check", lambda request, late: looks.append(late))
    call(shards, "series.values", select(name="job"))
    assert len([late for late in looks if "at shard" not in late]) == len("acde")


def test_metadata_is_put_and_found_over_all_shards(shards: list[Quiet]) -> None:
    def packed(*families: str) -> bytes:
        return wire.pack(messages.MetadataPut([messages.FamilyMetadata(name, "gauge", "", "") for name in families]))

    parts = {0: [packed("a"), packed("b", "c")], 1: [packed("d")]}
    answer = call(shards, "series.metadata_put", None, parts=parts).body
    assert wire.unpack(answer, messages.MetadataPutReply).left_out == 0

    def families(family: str, limit: int) -> tuple[list[str], bool]:
        own = call(shards, "series.metadata", messages.MetadataBody(family, limit)).body
        found = wire.unpack(own, messages.MetadataReply)
        return [entry.family for entry in found.entries], found.cut

    assert families("", 0) == (["a", "b", "c", "d"], False)
    assert families("c", 0) == (["c"], False)
    assert families("", 2) == (["a", "b", "d"], True)
