"""What several threads may call at once waits for the lock that guards what it reads or changes."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shared.messages.log import Span
from shared.messages.vector_text import TextClause, TextQuery
from shared.messages.vectors import Collection
from shared.settings import Settings
from tests.unit.log_shard import OneShard
from worker.damage import DamageReport
from worker.logs import cursors, keeper
from worker.series.blocks.archive import Archive
from worker.series.index import patterns as patterns_module
from worker.series.index.patterns import Patterns
from worker.series.index.texts import TextTable
from worker.series.ingest import Rounds
from worker.series.metadata import Metadata
from worker.storage.objects import LocalObjects
from worker.storage.rows.store import Store
from worker.storage.wal.log import LOG, SERIES, WriteAheadLog
from worker.storage.wal.register import Listing, Register
from worker.vectors import engine as engine_module
from worker.vectors.collection import WorkerCollection
from worker.vectors.engine import Engine
from worker.vectors.graph import Graph
from worker.vectors.indexing import Indexing
from worker.vectors.inverted_lists import InvertedLists
from worker.vectors.list_blocks import BLOCK_ROWS
from worker.vectors.list_filters import ListFilters
from worker.vectors.mask_cache import MaskCache
from worker.vectors.part import VectorPart
from worker.vectors.row_filter import Allowed, Bits
from worker.vectors.text import TextIndex

TIMEOUT_S = 10.0
EARLY_S = 0.05
"""What does not wait has ended by then."""

Act = Callable[[], object]


def waits_for(lock: Any, act: Act) -> bool:
    """Whether `act` ends only when the lock is free."""
    with ThreadPoolExecutor(1) as pool:
        with lock:
            acting = pool.submit(act)
            is_waiting = not wait([acting], EARLY_S).done
        acting.result(TIMEOUT_S)
        return is_waiting


def waits_after(lock: Any, owner: object, name: str, monkeypatch: pytest.MonkeyPatch, act: Act) -> bool:
    """Whether `act`, once the call `name` in it has ended, waits for the lock."""
    call, called, may_end = getattr(owner, name), threading.Event(), threading.Event()

    def slow(*arguments: Any, **options: Any) -> Any:
        answer = call(*arguments, **options)
        called.set()
        assert may_end.wait(TIMEOUT_S)
        return answer

    monkeypatch.setattr(owner, name, slow)
    with ThreadPoolExecutor(1) as pool:
        acting = pool.submit(act)
        assert called.wait(TIMEOUT_S)
        with lock:
            may_end.set()
            is_waiting = not wait([acting], EARLY_S).done
        acting.result(TIMEOUT_S)
        return is_waiting


def guard(monkeypatch: pytest.MonkeyPatch, lock: Any, owner: object, *names: str) -> Counter[str]:
    """From now on a call of one of these fails while nobody has the lock. How often each was called."""
    calls: Counter[str] = Counter()

    def guarded(name: str) -> Callable[..., Any]:
        original = getattr(owner, name)

        def call(*arguments: Any, **options: Any) -> Any:
            is_held = lock._is_owned() if isinstance(lock, type(threading.RLock())) else lock.locked()
            assert is_held, f"{name} is called without the lock"
            calls[name] += 1
            return original(*arguments, **options)

        return call

    for name in names:
        monkeypatch.setattr(owner, name, guarded(name))
    return calls


# The log


@pytest.fixture
def log_shard(tmp_path: Path) -> Iterator[OneShard]:
    shard = OneShard(tmp_path / "shard")
    shard.append(0, [(b"k", b"a")], [(b"k", b"b")], closed=0)
    shard.append(2, [(b"k", b"c")])
    yield shard
    shard.close()


LOG_ACTS: dict[str, Callable[[OneShard], object]] = {
    "view": lambda shard: shard.part.view(),
    "has dropped": lambda shard: shard.part.has_dropped(0),
    "answers of a producer": lambda shard: shard.part.producer_answers("p"),
    "segments": lambda shard: shard.part.segments(),
    "recovery": lambda shard: shard.part.recover(0, 0, 0),
    "gathering": lambda shard: shard.part.gather(),
    "flush": lambda shard: shard.part.flush(),
    "taking back": lambda shard: shard.part.revoke(0, 0, [Span((0, 1))]),
    "drop": lambda shard: shard.part.drop(1, 0),
    "cursor": lambda shard: cursors.move(shard.part, "c", [], lambda: None),
    "cursor removed": lambda shard: cursors.remove(shard.part, "c", lambda: None),
}


@pytest.mark.parametrize("name", LOG_ACTS)
def test_what_reads_or_changes_the_log_waits_for_its_lock(log_shard: OneShard, name: str) -> None:
    assert waits_for(log_shard.part.lock, lambda: LOG_ACTS[name](log_shard))


@pytest.mark.parametrize("name", ["gathering", "flush", "taking back", "drop"])
def test_what_changes_the_stored_log_waits_for_a_gathering(log_shard: OneShard, name: str) -> None:
    assert waits_for(log_shard.part._gather_lock, lambda: LOG_ACTS[name](log_shard))


def test_a_log_closes_when_the_gathering_has_ended(log_shard: OneShard) -> None:
    assert waits_for(log_shard.part._gather_lock, log_shard.part.close)
    for worker in (log_shard.part.keeper, log_shard.part.keeper.cleaner):  # to be closed once more
        worker.join(log_shard.part)


def test_the_memory_of_a_log_is_used_under_its_lock_only(log_shard: OneShard, monkeypatch: pytest.MonkeyPatch) -> None:
    part = log_shard.part
    guarded = ("stage", "add", "split", "revoke", "drop", "groups")
    calls = guard(monkeypatch, part.lock, part._memory, *guarded)
    log_shard.append(3, [(b"k", b"d")])
    part.revoke(0, 3, [Span((3, 4))])
    part.recover(0, 0, 0)
    part.drop(1, 0)
    part.gather()
    assert set(calls) == set(guarded)


def test_what_was_gathered_is_shown_as_stored_under_the_lock(
    log_shard: OneShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert waits_after(log_shard.part.lock, log_shard.store, "write", monkeypatch, log_shard.part.gather)
    assert log_shard.part._gathered == 2


@pytest.mark.parametrize("act", ["join", "leave"])
def test_a_keeper_takes_one_part_at_a_time(log_shard: OneShard, act: str) -> None:
    own = keeper.Keeper(log_shard.log)
    own.join(log_shard.part)
    assert waits_for(own._lock, lambda: getattr(own, act)(log_shard.part))
    for part in list(own._parts):
        own.leave(part)


# The write-ahead log


@pytest.fixture
def wal(tmp_path: Path) -> Iterator[WriteAheadLog]:
    log = WriteAheadLog(tmp_path / "wal").open()
    yield log
    log.close()


WAL_ACTS: dict[str, Callable[[WriteAheadLog], object]] = {
    "write": lambda log: log.write([(log._streams[0, SERIES], [b"x"])]),
    "stream": lambda log: log.stream(1, LOG),
    "release": lambda log: log.release(log._streams[0, SERIES], 1),
    "behind": lambda log: log.is_behind(log._streams[0, SERIES]),
}


@pytest.mark.parametrize("name", WAL_ACTS)
def test_what_uses_the_write_ahead_log_waits_for_its_lock(wal: WriteAheadLog, name: str) -> None:
    wal.stream(0, SERIES)
    assert waits_for(wal._lock, lambda: WAL_ACTS[name](wal))


def test_records_that_are_set_aside_join_the_known_losses_one_at_a_time(wal: WriteAheadLog) -> None:
    assert waits_for(wal._losses._lock, lambda: wal.set_aside((0, SERIES), [b"x"], "is damaged"))


@pytest.mark.parametrize(("act", "arguments"), [("change", ()), ("catch_up", ()), ("note", (1, 2)), ("close", ())])
def test_the_list_of_files_changes_once_at_a_time(tmp_path: Path, act: str, arguments: tuple[int, ...]) -> None:
    register = Register(tmp_path, Listing(1, {1: 0}))
    assert waits_for(register._lock, lambda: getattr(register, act)(*arguments))
    if act != "close":
        register.close()


# The series


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    own = Store(tmp_path / "store")
    yield own
    own.close()


@pytest.mark.parametrize("act", ["announce", "give_up", "forget", "changed"])
def test_the_list_of_blocks_files_changes_once_at_a_time(store: Store, tmp_path: Path, act: str) -> None:
    archive = Archive(store, Settings(), LocalObjects(tmp_path))
    arguments: dict[str, tuple[list[str], ...]] = {"changed": ([], []), "forget": ()}
    assert waits_for(archive._lock, lambda: getattr(archive, act)(*arguments.get(act, (["a"],))))


def test_what_is_forgotten_leaves_the_list_under_the_lock(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = Archive(store, Settings(), LocalObjects(tmp_path))
    archive.announce(["a"])
    archive.give_up(["a"])
    assert waits_after(archive._lock, store, "write", monkeypatch, archive.forget)
    assert not archive._left_over


def test_metadata_is_one_threads_at_a_time(store: Store) -> None:
    metadata = Metadata(store)
    assert waits_for(metadata._lock, lambda: metadata.put([]))
    assert waits_for(metadata._lock, lambda: metadata.find("m", 0))


def test_the_expressions_seen_lately_are_one_threads_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    patterns = Patterns()
    assert waits_for(patterns._lock, lambda: patterns.get("a.*"))
    assert waits_for(patterns._lock, lambda: patterns.get("a.*"))
    assert waits_after(patterns._lock, patterns_module, "Pattern", monkeypatch, lambda: patterns.get("b.*"))


def test_the_table_of_texts_is_one_threads_at_a_time() -> None:
    table = TextTable()
    assert waits_for(table._map_lock, lambda: table.codes(["a"]))
    assert waits_for(table._map_lock, lambda: table.find("a"))


def test_the_queue_of_commits_is_one_threads_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds: Rounds[Any] = Rounds()

    def announce() -> None:
        with rounds.coming():
            pass

    assert waits_for(rounds._queue_lock, announce)
    assert waits_for(rounds._queue_lock, lambda: rounds.add({}, TIMEOUT_S))
    came = guard(monkeypatch, rounds._queue_lock, rounds._came, "notify_all")
    rounds.add({}, TIMEOUT_S)
    assert came["notify_all"] == 1
    inside, may_leave = threading.Event(), threading.Event()

    def come() -> None:
        with rounds.coming():
            inside.set()
            assert may_leave.wait(TIMEOUT_S)

    coming = threading.Thread(target=come)
    coming.start()
    assert inside.wait(TIMEOUT_S)
    with rounds._queue_lock:
        may_leave.set()
        coming.join(EARLY_S)
        assert (coming.is_alive(), rounds._coming) == (True, 1)
    coming.join(TIMEOUT_S)
    assert rounds._coming == 0


# The vectors

TEXT = Collection(1, "default", 4, "cosine", text=("words",))


@pytest.fixture
def vectors(tmp_path: Path, store: Store) -> WorkerCollection:
    """With a vector, and one whose row is damaged."""
    own = WorkerCollection(TEXT, LocalObjects(tmp_path / "index"))
    own.attach(0, store, DamageReport())
    own.upsert(0, [b"a", b"b"], np.ones((2, 4), np.float32), [b"", b""])
    own.report(0, {b"b": "it is damaged"})
    return own


def indexing_of(own: WorkerCollection) -> Indexing:
    return Indexing(own, own.loading._snapshots, Settings(shards=1, workers=1))


VECTOR_ACTS: dict[str, Callable[[WorkerCollection], object]] = {
    "upsert": lambda own: own.upsert(0, [b"c"], np.ones((1, 4), np.float32), [b""]),
    "delete": lambda own: own.delete(0, [b"a"]),
    "leave": lambda own: own.leave(0, own.stores[0].batch()),
    "detach": lambda own: own.detach(0),
    "contents": lambda own: own.contents(0, [b"a", b"b"]),
    "index step": lambda own: indexing_of(own).index_step(),
    "compact": lambda own: list(indexing_of(own).compact()),
    "save": lambda own: indexing_of(own).save(),
}


@pytest.mark.parametrize("name", VECTOR_ACTS)
def test_what_reads_or_changes_a_collection_waits_for_its_lock(vectors: WorkerCollection, name: str) -> None:
    assert waits_for(vectors.lock, lambda: VECTOR_ACTS[name](vectors))


def test_vectors_are_loaded_under_the_lock_of_their_collection(
    vectors: WorkerCollection, tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = WorkerCollection(TEXT, LocalObjects(tmp_path / "index"))
    calls = guard(monkeypatch, own.lock, own.loading, "_restore", "load_batch")
    reports = guard(monkeypatch, own.lock, own, "report")
    own.attach(0, store, DamageReport())
    assert calls == {"_restore": 1, "load_batch": 1}
    assert reports == {"report": 1}


def test_the_texts_of_vectors_are_one_threads_at_a_time() -> None:
    texts = TextIndex(TEXT.text_fields())
    query = TextQuery((("words", 1.0),), (TextClause("a"),))
    for act in (lambda: texts.put(b"a", b""), lambda: texts.remove(b"a"), lambda: texts.search(query, 1)):
        assert waits_for(texts._lock, act)


def test_a_graph_is_saved_and_loaded_by_one_thread_at_a_time(tmp_path: Path) -> None:
    graph = Graph(4, "cosine", "f32")
    graph.add(np.arange(2), np.eye(2, 4, dtype=np.float32))
    assert waits_for(graph._lock, lambda: graph.save(tmp_path / "graph"))
    assert waits_for(graph._lock, lambda: graph.load(tmp_path / "graph", 2))


def test_lists_are_changed_and_saved_by_one_thread_at_a_time(tmp_path: Path) -> None:
    lists = InvertedLists(4, "cosine")
    assert waits_for(lists._lock, lambda: lists.add(np.arange(2), np.eye(2, 4, dtype=np.float32)))
    assert waits_for(lists._lock, lambda: lists.save(tmp_path / "lists"))
    assert waits_for(lists._lock, lambda: lists.load(tmp_path / "lists", 2))
    lists._lock.acquire()  # nobody releases it: a search does without
    assert set(lists.search(np.eye(1, 4, dtype=np.float32), 2, 2, 12, 2, Allowed())[0].tolist()) == {0, 1, -1}


def test_the_places_of_filters_are_kept_and_counted_by_one_thread_at_a_time() -> None:
    filters, bits, none = ListFilters(), Bits.of(np.zeros(1, np.bool_)), np.zeros(0, np.int32)
    assert waits_for(
        filters._lock, lambda: filters.places(bits, none.astype(np.int64), none, none, none.reshape(0, BLOCK_ROWS))
    )
    assert waits_for(filters._lock, lambda: filters.memory_bytes)


def test_the_masks_of_filters_are_kept_and_counted_by_one_thread_at_a_time() -> None:
    masks = MaskCache()
    for act in (
        lambda: masks.put(b"a", Bits.of(np.ones(1, np.bool_))),
        lambda: masks.get(b"a"),
        lambda: masks.memory_bytes,
    ):
        assert waits_for(masks._lock, act)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    own = Engine(Settings(data=tmp_path, shards=1, workers=1), LocalObjects(tmp_path / "vector-index"))
    yield own
    own.stop()


def test_the_engine_of_a_process_has_a_lock_for_what_it_knows(engine: Engine, store: Store) -> None:
    damage = DamageReport()
    assert waits_for(engine._lock, lambda: engine.join(0, store, damage, []))
    assert waits_for(engine._lock, lambda: engine.open(0, damage, TEXT))
    assert waits_for(engine._lock, lambda: engine.remove_left(7))
    assert waits_for(engine._lock, lambda: engine.leave(0))
    assert waits_for(engine._lock, engine.stop)


def test_the_engine_begins_its_thread_under_its_lock(
    engine: Engine, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = guard(monkeypatch, engine._lock, engine, "_find_or_make")
    begun = guard(monkeypatch, engine._lock, engine_module.threading, "Thread")
    engine.join(0, store, DamageReport(), [TEXT])
    monkeypatch.undo()
    assert (made["_find_or_make"], begun["Thread"]) == (1, 1)


def test_the_list_of_a_shards_collections_is_one_threads_at_a_time(tmp_path: Path, store: Store) -> None:
    part = VectorPart(
        store,
        Engine(Settings(data=tmp_path, shards=1, workers=1), LocalObjects(tmp_path / "vector-index")),
        0,
        DamageReport(),
    )
    part.load()
    assert waits_for(part._lock, part.collections)
    assert waits_for(part._lock, lambda: part.open(TEXT))
    assert waits_for(part._lock, lambda: part.drop(TEXT))
    part.close()
