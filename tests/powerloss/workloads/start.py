"""A new data directory from its first moment: what the processes open, written to in all three areas by the
workers' methods, and started again with other numbers of workers."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import msgspec
import numpy as np

from coordinator.series import remote_write
from coordinator.vectors.catalogue import Catalogue
from loadtest.harness.remote_write_bodies import UNLIMITED, body
from shared import identity
from shared.control import LocalControl
from shared.hashing import hash64
from shared.labels import Symbols
from shared.log.blocks import block_of
from shared.manifest import open_manifest, shard_control
from shared.messages import log as log_messages
from shared.messages import vectors as messages
from shared.messages.vectors import Collection
from shared.settings import Settings
from shared.wire import Frame, Request, pack
from tests.powerloss.history import History, require, some
from tests.powerloss.recording import Recorder
from tests.powerloss.workloads import store as store_workload
from tests.powerloss.workloads import wal as wal_workload
from tests.unit.log_shard import OneShard
from tests.unit.series_shard import EVERYTHING, TIMEOUT_S
from worker.damage import Area
from worker.logs import cursors
from worker.methods.table import METHODS
from worker.queries.source import ShardSource
from worker.services import Services
from worker.shard import Shard
from worker.storage.rows.store import Store
from worker.storage.wal import layout
from worker.storage.wal.log import WriteAheadLog

SHARDS = 2
WORKERS = (1, 2, 2, 1)
ROUNDS = 3
KINDS = ("write_sample", "append", "upsert", "move")
AREAS: tuple[Area, ...] = ("series", "log", "vector")


class Empty(msgspec.Struct):
    """A method that needs no message."""


class Data:
    """The shards of a data directory, all in this process, with the logs of so many workers."""

    def __init__(self, root: Path, workers: int) -> None:
        settings = Settings(data=root / "data", shards=SHARDS, workers=workers)
        control = LocalControl(settings.data)
        self.cluster_id = open_manifest(settings, control).cluster_id
        base = settings.data / layout.NAME
        layout.prepare(settings.data, workers, self.cluster_id)
        self.catalogue = Catalogue(control.within("vector"))
        self.catalogue.load()
        self.logs = [WriteAheadLog(layout.directory_of(base, worker)) for worker in range(workers)]
        services = [Services.build(settings, log) for log in self.logs]
        self.shards = [Shard(n, services[n % workers]) for n in range(SHARDS)]
        identity.claim({n: shard_control(control, n) for n in range(SHARDS)}, self.cluster_id, identity.SHARD)
        identity.claim({n: layout.control_of(control, n) for n in range(workers)}, self.cluster_id, identity.LOG)
        for shard in self.shards:
            shard.series._upkeep.sealing.tick = lambda now_ms: None  # type: ignore[method-assign]

    def close(self) -> None:
        for shard in self.shards:
            shard.close()
        for log in self.logs:
            log.close()

    def kill(self) -> None:
        """As if the processes had died: nothing is synced or flushed."""
        for shard in self.shards:
            for part in (shard.series, shard.logs, shard.vectors):
                part.close()
            assert isinstance(shard.store, Store)
            store_workload.killed(shard.store)
        for log in self.logs:
            wal_workload.killed(log)

    def collection(self) -> Collection:
        return self.catalogue.create(Collection(0, "c", 4, "cosine", "f32"))

    def neighbours(self, shard: int) -> list[int]:
        """The shards of the same worker."""
        return list(range(shard % len(self.logs), SHARDS, len(self.logs)))

    def call(self, method: str, shards: Sequence[int], asked: msgspec.Struct, part: Sequence[Frame] = ()) -> None:
        """Ask one worker's method, as its process does for the coordinator."""
        request = Request(
            method, tuple(shards), time.monotonic() + TIMEOUT_S, pack(asked), (), dict.fromkeys(shards, part)
        )
        reply = METHODS[method].run({number: self.shards[number] for number in shards}, request)
        assert not reply.shard_errors, reply.shard_errors

    def write_sample(self, shards: Sequence[int], number: int) -> None:
        series = [({"__name__": "m", "n": str(number)}, [(number, float(number))])]
        frames = remote_write.split(body(series), 1, UNLIMITED).parts[0]
        self.call("series.write", shards, Empty(), frames)

    def append(self, shards: Sequence[int], number: int) -> None:
        block = block_of([(hash64(b"k"), 0, b"k", b"%d" % number)])
        asked = log_messages.AppendBody(0, number, number, True, 0, (log_messages.Batch(number, 1, tuple(shards)),))
        self.call("log.append", shards, asked, [block])

    def upsert(self, shards: Sequence[int], number: int) -> None:
        vector = np.full((1, 4), number + 1, dtype=np.float32)
        part = [*messages.pack_blobs([b"%d" % number]), vector.tobytes(), *messages.pack_blobs([b""])]
        self.call("vector.write", shards, messages.UpsertBody(self.collection()), part)

    def move(self, shards: Sequence[int], number: int) -> None:
        self.call("log.cursor_put", shards, log_messages.CursorBody("c", [log_messages.CursorMove(b"k", number, None)]))

    def seal(self, shard: int, number: int) -> None:
        self.shards[shard].series._upkeep.sealing._seal(1 << 60)
        self.shards[shard].logs.gather()
        self.shards[shard].logs.flush()

    def held(self, shard: int, kind: str) -> set[int]:
        """The numbers of what is there of this kind."""
        own = self.shards[shard]
        if kind == "write_sample":
            selection = ShardSource([own.series]).select((), *EVERYTHING, Symbols(own.series.symbols))
            return set(selection.read(0, selection.labels.size).timestamps_ms.tolist())
        if kind == "append":
            records = OneShard.read(SimpleNamespace(part=own.logs))  # type: ignore[arg-type]
            require(all(int(value) == number for number, _, value in records), "records are not as written")
            return {number for number, _, _ in records}
        if kind == "move":
            return {sequence for _, sequence in cursors.read(own.logs, "c", b"k")}
        found = own.vectors.find(self.collection())
        names = [b"%d" % number for number in range(len(WORKERS) * ROUNDS * SHARDS)]
        contents = found.contents(shard, names) if found is not None else []
        return {int(name) for name, content in zip(names, contents, strict=False) if content is not None}


def run(root: Path, recorder: Recorder, chance: random.Random) -> None:
    number = 0
    for workers in WORKERS:
        done = recorder.begin(["open"])
        data = Data(root, workers)
        done(data.cluster_id)
        for _ in range(ROUNDS):
            for shard in range(SHARDS):
                for kind in KINDS:
                    shards = [shard] if kind == "move" or chance.random() < 0.5 else data.neighbours(shard)
                    recorder.act([kind, shards, number], partial(getattr(data, kind), shards, number))
                number += 1
        if chance.random() < 0.5:
            recorder.act(["seal"], partial(data.seal, chance.randrange(SHARDS), number))
        chance.choice((data.close, data.kill))()


def check(root: Path, history: History) -> None:
    """The directory opens, keeps its identity, and has everything that was acknowledged, and nothing else."""
    data = Data(root, 2)
    told = {act.result for act in history.acts if act.told[0] == "open" and act.is_done}
    require(told <= {data.cluster_id}, f"the cluster was {told}, and is {data.cluster_id}")
    for shard in range(SHARDS):
        require(not any(map(data.shards[shard].damage.texts, AREAS)), f"shard {shard} says that it is damaged")
        for kind in KINDS:
            acts = [act for act in history.acts if act.told[0] == kind and shard in act.told[1]]
            tried, needed = {act.told[2] for act in acts}, {act.told[2] for act in acts if act.is_done}
            if kind == "move":  # each replaces the one before
                needed = set()
                tried = {act.told[2] for act in acts if not act.is_done} | {
                    max((act.told[2] for act in acts if act.is_done), default=-1)
                }
            held = data.held(shard, kind)
            require(needed <= held, f"{kind}, shard {shard}: lost {some(sorted(needed - held))}")
            require(held <= tried, f"{kind}, shard {shard}: invented {some(sorted(held - tried))}")
            if kind == "move" and any(act.is_done for act in acts):
                require(bool(held), f"shard {shard}: the cursor is lost")
    data.kill()
