"""A shard's vectors: written, overwritten, deleted, saved in snapshots, collections dropped."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from unittest import mock

import msgspec
import numpy as np

from shared import wire
from shared.errors import NotFound
from shared.messages import vectors as messages
from shared.messages.vectors import Collection, Condition
from tests.powerloss.history import History, Violation, require, some
from tests.powerloss.recording import Recorder
from tests.powerloss.workloads.store import killed as killed_store
from tests.unit.vector_shard import OneShard
from worker.vectors import indexing, loading

STEPS = 60
DROPPED_AT = 40
IDS = 12
DIMENSION = 4
COLLECTIONS = (
    Collection(1, "a", DIMENSION, "cosine"),
    Collection(2, "b", DIMENSION, "l2"),
    Collection(3, "c", DIMENSION, "l2"),
)
DROPPED = COLLECTIONS[2]
"""Once, after some time; as the coordinator asks for it."""
UNSEEN = Collection(4, "d", DIMENSION, "l2")
"""Dropped before this shard has heard of it: a write that is late must not make it again."""
UNSEEN_DROPPED_AT = (10, 20, 30)

SAVED_ROWS_MIN = 6
"""Some snapshots have the vectors, some do not."""

Held = dict[tuple[int, str], int]
"""(collection, id) → number of the write that it is of."""


def _vector(number: int) -> np.ndarray:
    return np.random.default_rng(number).standard_normal(DIMENSION).astype(np.float32)


def _write(shard: OneShard, collection: Collection, names: list[str], numbers: list[int]) -> None:
    vectors = np.stack([_vector(number) for number in numbers])
    shard.write(names, vectors, [{"n": number} for number in numbers], into=collection)


def _save(shard: OneShard) -> None:
    for own in list(shard.vectors.engine._indexing.values()):
        own.save()


@contextmanager
def _fast_starts() -> Iterator[None]:
    """A start reads only what changed since the snapshot, and nothing corrects that later."""
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(indexing, "SAVED_ROWS_MIN", SAVED_ROWS_MIN))
        stack.enter_context(mock.patch.object(loading, "CHANGED_SHARE_MAX", 100.0))
        stack.enter_context(mock.patch.object(indexing.Indexing, "verify_step", lambda _: False))
        yield


@_fast_starts()
def run(root: Path, recorder: Recorder, chance: random.Random) -> None:
    shard = OneShard(root)
    recorder.settled()
    number = 0
    collections = list(COLLECTIONS)
    for step in range(STEPS):
        if step == DROPPED_AT:
            collections.remove(DROPPED)
            asked = messages.CollectionBody(DROPPED)
            recorder.act(["drop", DROPPED.id], partial(shard.call, "vector.drop", asked))
        if step in UNSEEN_DROPPED_AT:
            unseen = msgspec.structs.replace(UNSEEN, id=UNSEEN.id + step)
            recorder.act(["drop", unseen.id], partial(shard.call, "vector.drop", messages.CollectionBody(unseen)))
        how = chance.random()
        collection = chance.choice(collections)
        if how < 0.5:
            names = chance.sample([f"id-{i}" for i in range(IDS)], chance.randint(1, 5))
            numbers = list(range(number, number + len(names)))
            number += len(names)
            told = [collection.id, names, numbers]
            recorder.act(["write", *told], partial(_write, shard, collection, names, numbers))
        elif how < 0.7:
            names = chance.sample([f"id-{i}" for i in range(IDS)], 3)
            recorder.act(["delete", collection.id, names], partial(shard.delete, names, of=collection))
        elif how < 0.8:
            # A snapshot has a write in it that has not been synced, and not been answered.
            names = chance.sample([f"id-{i}" for i in range(IDS)], 3)
            recorder.begin(["write", collection.id, names, [number, number + 1, number + 2]])
            with mock.patch.object(shard.vectors, "sync"):
                _write(shard, collection, names, [number, number + 1, number + 2])
            number += 3
            shard.wait_indexed()
            recorder.act(["save"], partial(_save, shard))
        elif how < 0.88:
            shard.wait_indexed()
            recorder.act(["save"], partial(_save, shard))
        else:
            if chance.random() < 0.5:
                shard.close()
            else:
                shard.vectors.close()
                killed_store(shard.store)
            shard.open()
    shard.close()


@_fast_starts()
def check(root: Path, history: History) -> None:
    """Every vector is that of its last acknowledged write, or of one under way; searches find the same."""
    shard = OneShard(root)
    require(not shard.damage.texts("vector"), f"it says that it is damaged: {shard.damage.texts('vector')}")
    allowed = _allowed(history)
    for collection in COLLECTIONS:
        held = _held(shard, collection)
        for name in [f"id-{i}" for i in range(IDS)]:
            may = allowed.get((collection.id, name), {None})
            require(held.get(name) in may, f"{collection.name}/{name} is write {held.get(name)}, not one of {may}")
        _search(shard, collection, held)
    for act in history.acts:
        if act.told[0] == "drop" and act.is_done:
            _is_refused(shard, msgspec.structs.replace(DROPPED, id=act.told[1]))
    _write(shard, COLLECTIONS[0], ["id-new"], [10**6])
    before = _held(shard, COLLECTIONS[0])
    shard.reopen()
    require(_held(shard, COLLECTIONS[0]) == before and before["id-new"] == 10**6, "the second start differs")
    _search(shard, COLLECTIONS[0], before)
    shard.close()


def _is_refused(shard: OneShard, collection: Collection) -> None:
    try:
        _write(shard, collection, ["id-late"], [10**6])
    except NotFound:
        return
    raise Violation(f"the collection {collection.id} was dropped, and a write makes it again")


def _allowed(history: History) -> dict[tuple[int, str], set[int | None]]:
    """Which write each id may show: None for no vector."""
    allowed: dict[tuple[int, str], set[int | None]] = {}
    for act in history.acts:
        kind = act.told[0]
        if kind == "drop":
            for name in [f"id-{i}" for i in range(IDS)]:
                own = allowed.setdefault((act.told[1], name), {None})
                if act.is_done:
                    own.clear()
                own.add(None)
            continue
        if kind not in ("write", "delete"):
            continue
        numbers = act.told[3] if kind == "write" else [None] * len(act.told[2])
        for name, number in zip(act.told[2], numbers, strict=True):
            own = allowed.setdefault((act.told[1], name), {None})
            if act.is_done:
                own.clear()
            own.add(number)
    return allowed


def _held(shard: OneShard, collection: Collection) -> dict[str, int]:
    asked = messages.pack_blobs([b"id-%d" % i for i in range(IDS)] + [b"id-new"])
    reply = shard.call("vector.get", messages.IdsBody(collection), part=asked)
    wire.unpack(reply.body, messages.VectorCountReply)
    names = messages.unpack_blobs(reply.frames[0], reply.frames[1])
    attributes = messages.unpack_blobs(reply.frames[2], reply.frames[3])
    vectors = np.frombuffer(reply.frames[4], np.float32).reshape(-1, DIMENSION)
    held = {}
    for name, packed, vector in zip(names, attributes, vectors, strict=True):
        number = msgspec.msgpack.decode(packed)["n"]
        require(np.array_equal(vector, _vector(number)), f"{name!r} has not the vector of its attributes")
        held[name.decode()] = number
    return held


def _search(shard: OneShard, collection: Collection, held: dict[str, int]) -> None:
    found = set(shard.ids(_vector(0), IDS + 1, of=collection)) if shard.vectors.find(collection) else set()
    require(found == set(held), f"a search finds {some(sorted(found))}, and there are {some(sorted(held))}")
    for name, number in held.items():
        condition = Condition("eq", "n", (number,))
        found_by_filter = shard.ids(_vector(number), 2, of=collection, filter=condition)
        require(found_by_filter == [name], f"filtered for write {number}: {found_by_filter}, not {name}")
