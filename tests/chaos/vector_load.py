"""Vectors that can be recomputed from their collection, id and version: upserts, deletions, reads, searches, and
collections that are dropped and made again."""

from __future__ import annotations

import random
import zlib
from functools import partial
from typing import Any

import numpy as np

from tests.chaos.client import Client, Silence
from tests.chaos.findings import Findings
from tests.chaos.load import Load
from tests.chaos.registers import Key, Registers, Value

COLLECTIONS = {"default": 8, "other": 6}
"""Name → dimension of those that stay."""
DROPPED = "passing"
IDS_EACH = 120
BATCH = 12
LIFE_UNIT = 10**6
"""A version is `life of the collection · 10⁶ + number of the write`."""


def dimension_of(collection: str, version: int) -> int:
    return COLLECTIONS.get(collection) or 4 + version // LIFE_UNIT % 3


def vector_of(collection: str, name: str, version: int) -> np.ndarray:
    """float32[dimension]"""
    seed = zlib.crc32(f"{collection} {name} {version}".encode())
    return np.random.default_rng(seed).standard_normal(dimension_of(collection, version), dtype=np.float32)


class Vectors:
    """What was sent: a register (collection, id) → version."""

    def __init__(self, findings: Findings, registers: Registers | None = None) -> None:
        self.findings = findings
        self.registers = registers or Registers("vectors", findings)
        self.life = 1
        self.drop_in_doubt = False

    def forked(self, findings: Findings) -> Vectors:
        other = Vectors(findings, self.registers.forked(findings))
        other.life, other.drop_in_doubt = self.life, self.drop_in_doubt
        return other

    def make(self, client: Client, name: str, dimension: int) -> int | None:
        """The status; None when no answer came."""
        path, body = f"/api/v1/vector/collections/{name}", b'{"dimension": %d}' % dimension
        try:
            return client.send("PUT", path, body, {"Content-Type": "application/json"}).status
        except Silence:
            return None

    def write(self, client: Client, collection: str, changes: dict[str, Value], within_s: float) -> int | None:
        """Upsert ids with versions, or delete those with None (all of them one or the other). The status."""
        writes: dict[Key, Value] = {(collection, name): version for name, version in changes.items()}
        named = {} if collection == "default" else {"collection": collection}
        self.registers.begin(writes)
        try:
            if None in changes.values():
                answer = client.post("/api/v1/vector/delete", {**named, "ids": list(changes)}, within_s)
            else:
                entries = [
                    _entry(collection, name, version) for name, version in changes.items() if version is not None
                ]
                answer = client.post("/api/v1/vector/write", {**named, "upsertVectors": entries}, within_s)
        except Silence as silence:
            if silence.connected:
                self.registers.abandon(writes)
            return None
        if answer.status == 200:
            self.registers.acknowledge(writes)
        elif answer.status not in (404, 429, 503):
            self.findings.add("wrong", "vectors", f"a write was answered {answer.status}: {answer.body[:300]!r}")
        return answer.status

    def read(self, client: Client, collection: str, names: list[str], *, final: bool) -> dict[str, int] | None:
        """Read ids and check them. Returns id → version when the answer said that it is complete."""
        stamp = self.registers.stamp
        named = {} if collection == "default" else {"collection": collection}
        answer = client.post("/api/v1/vector/get", {**named, "ids": names}, 30.0)
        if answer.status == 404:  # the collection is not there, nor are its vectors
            content: dict[str, Any] = {"vectors": []}
        elif answer.status != 200:
            if answer.status not in (429, 503):
                self.findings.add("wrong", "vectors", f"a read was answered {answer.status}: {answer.body[:300]!r}")
            return None
        else:
            content = answer.json()
        complete = not content.get("warnings")
        what = f"get of {collection}"
        versions: dict[str, int] = {}
        for entry in content["vectors"]:
            version = entry["attributes"].get("version")
            versions[entry["id"]] = version
            vector = np.array(entry["attributes"]["vector"], np.float32)
            if not isinstance(version, int) or not np.array_equal(vector, vector_of(collection, entry["id"], version)):
                self.findings.add("invented", "vectors", f"{what}: {entry['id']} of version {version} is {vector}")
        shown: dict[Key, Value] = {(collection, name): version for name, version in versions.items()}
        self.registers.check(
            shown, [(collection, name) for name in names], stamp, complete=complete, final=final, what=what
        )
        return versions if complete else None

    def search(self, client: Client, collection: str, name: str, *, exact: bool, final: bool) -> bool:
        """A search for a vector that is there finds it first. Whether the answer said that it is complete."""
        stamp = self.registers.stamp
        possible = self.registers.possible((collection, name))
        version = next(iter(possible))
        if len(possible) != 1 or version is None:
            return True
        query = vector_of(collection, name, version).tolist()
        body = {"collection": collection, "vector": query, "k": 3, "exact": exact, "includeFields": ["version"]}
        answer = client.post("/api/v1/vector/search", body, 30.0)
        if answer.status != 200:
            if answer.status not in (429, 503):
                self.findings.add("wrong", "vectors", f"a search was answered {answer.status}: {answer.body[:300]!r}")
            return False
        hits = [(hit["vector"]["id"], hit["vector"]["attributes"].get("version")) for hit in answer.json()["results"]]
        what = f"{'exact ' if exact else ''}search of {collection}"
        shown: dict[Key, Value] = {(collection, found): version for found, version in hits}
        complete = answer.complete
        self.registers.check(shown, (), stamp, complete=complete, final=final, what=what)
        if complete and (not hits or hits[0][0] != name) and self.registers.possible((collection, name)) == possible:
            kind = "lost" if final else "unlabelled"
            self.findings.add(kind, "vectors", f"{what}: {name} (version {version}) is not first but {hits}")
        return complete

    def check_all(self, client: Client, *, final: bool) -> bool:
        """Read every id ever written, and search for some; whether all answers said that they are complete."""
        complete = True
        for collection in (*COLLECTIONS, DROPPED):
            names = sorted(name for own, name in self.registers.known() if own == collection)
            if not names:
                continue
            there = self.read(client, collection, names, final=final)
            complete &= there is not None
            for name in names[:: max(1, len(names) // 8)] if collection != DROPPED else ():
                for exact in (True, False):
                    complete &= self.search(client, collection, name, exact=exact, final=final)
            if collection == DROPPED and there is not None:
                self._check_dropped_whole(names, there)
        return complete

    def _check_dropped_whole(self, names: list[str], there: dict[str, int]) -> None:
        """A collection whose drop is in doubt is there whole or not at all."""
        if not self.drop_in_doubt or not there:
            return
        surely = [name for name in names if (self.registers.possible((DROPPED, name)) - {None})]
        missing = [name for name in surely if name not in there]
        if missing and len(missing) < len(surely):
            text = f"of a collection whose drop failed, {len(there)} of {len(surely)} are there; {missing[:5]} are not"
            self.findings.add("half", "vectors", text)


def _entry(collection: str, name: str, version: int) -> dict[str, Any]:
    return {"id": name, "attributes": {"vector": vector_of(collection, name, version).tolist(), "version": version}}


class VectorLoad(Load):
    area = "vectors"

    def __init__(self, client: Client, vectors: Vectors, seed: str, impatience: float, first_version: int = 0) -> None:
        super().__init__(vectors.findings, seed, impatience)
        self.client, self.vectors = client, vectors
        self._version = dict.fromkeys(COLLECTIONS, first_version)

    def start(self) -> None:
        for name, dimension in COLLECTIONS.items():
            self._run(partial(self._write, name, dimension), f"writer of {name}")
        self._run(self._read, "reader")
        self._run(self._live_once, "dropper")

    def _write(self, collection: str, dimension: int, chance: random.Random) -> None:
        self._version[collection] += 1
        names = [f"{collection}-{n}" for n in chance.sample(range(IDS_EACH), BATCH)]
        version = None if chance.random() < 0.2 else self._version[collection]
        status = self.vectors.write(self.client, collection, dict.fromkeys(names, version), self.patience_s(chance))
        if status == 404 and collection != "default":
            self.vectors.make(self.client, collection, dimension)
        elif status != 200:
            self.pause()

    def _read(self, chance: random.Random) -> None:
        collection = chance.choice(list(COLLECTIONS))
        names = [f"{collection}-{n}" for n in range(IDS_EACH)]
        try:
            self.vectors.read(self.client, collection, chance.sample(names, 30), final=False)
            self.vectors.search(self.client, collection, chance.choice(names), exact=chance.random() < 0.5, final=False)
        except Silence as silence:
            if silence.timed_out:
                self.findings.add("stuck", "vectors", str(silence))
            self.pause()
        self.stopping.wait(0.05)

    def _live_once(self, chance: random.Random) -> None:
        """A collection is made, written, read, dropped; one step is tried until it is answered."""
        vectors = self.vectors
        if vectors.drop_in_doubt or self._is_there():
            self._drop()
            return
        life = vectors.life
        dimension = dimension_of(DROPPED, life * LIFE_UNIT)
        while (status := vectors.make(self.client, DROPPED, dimension)) != 200:
            if status == 400:  # that of the life before is there still
                self.findings.add("stale", "vectors", f"{DROPPED} was dropped, and is there with another dimension")
            if self.stopping.is_set():
                return
            self.pause()
        for number in range(chance.randint(1, 3)):
            changes: dict[str, Value] = {f"p-{number}-{n}": life * LIFE_UNIT + number for n in range(BATCH)}
            vectors.write(self.client, DROPPED, changes, 25.0)
        try:
            names = sorted(name for own, name in vectors.registers.known() if own == DROPPED)
            vectors.read(self.client, DROPPED, names, final=False)
        except Silence:
            self.pause()
        if self.stopping.wait(chance.uniform(0.0, 0.5)):
            return
        self._drop()

    def _is_there(self) -> bool:
        """Whether a life that was cut short has left it."""
        return any(
            own == DROPPED and self.vectors.registers.possible((own, name)) != {None}
            for own, name in self.vectors.registers.known()
        )

    def _drop(self) -> None:
        vectors = self.vectors
        gone: dict[Key, Value] = {key: None for key in vectors.registers.known() if key[0] == DROPPED}
        vectors.registers.begin(gone)
        vectors.drop_in_doubt = True
        try:
            answer = self.client.send("DELETE", f"/api/v1/vector/collections/{DROPPED}", within_s=25.0)
        except Silence:
            self.pause()
            return
        if answer.status in (200, 404):
            vectors.registers.acknowledge(gone)
            vectors.drop_in_doubt = False
            vectors.life += 1
        else:
            self.pause()
