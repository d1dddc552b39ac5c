"""Samples whose values say whose they are, of what time, and which write's: by all doors, and read by PromQL."""

from __future__ import annotations

import random
import time
import urllib.parse
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from tests.chaos.client import Client, Silence
from tests.chaos.doors import DOORS, Door
from tests.chaos.findings import Findings
from tests.chaos.load import Load
from tests.chaos.registers import Key, Registers, Value
from worker.series.journal import Written, decode
from worker.series.series_record import SeriesRecord

WRITERS = 2
SERIES_MAX = 60
LIFE_SERIES = 100
"""Each life of a history has series of its own: ids that a damaged shard gives out again would show."""
STEP_MS = 100
BATCH_SERIES = 12
REWRITES = 3
DELETIONS = 0.1
"""After so many of the writes."""
RANGE = "6h"
UID_UNIT, NUMBER_UNIT = 10**9, 10**3
"""A value is `uid · 10⁹ + number · 10³ + version`, exact in a float."""


def labels_of(uid: int) -> dict[str, str]:
    return {"__name__": f"chaos_{uid % 3}", "writer": str(uid // 1000), "series": str(uid % 1000)}


def value_of(uid: int, number: int, version: int) -> float:
    return float(uid * UID_UNIT + number * NUMBER_UNIT + version)


def sent_in(payload: bytes) -> set[Key] | None:
    """The keys of the samples in a record of the write-ahead log; None for a deletion, which names them otherwise."""
    _, record = decode(payload)
    if isinstance(record, SeriesRecord):
        return set()
    if not isinstance(record, Written):
        return None
    whole = record.values.astype(np.int64) // NUMBER_UNIT
    unit = UID_UNIT // NUMBER_UNIT
    return set(zip((whole // unit).tolist(), (whole % unit).tolist(), strict=True))


class Metrics:
    """What was sent: a register (uid, number) → version. `base_ms` is the time of number 0."""

    def __init__(self, findings: Findings, base_ms: int | None = None, registers: Registers | None = None) -> None:
        self.base_ms = int(time.time() * 1000) - 600_000 if base_ms is None else base_ms
        self.findings = findings
        self.registers = registers or Registers("metrics", findings)

    def forked(self, findings: Findings) -> Metrics:
        return Metrics(findings, self.base_ms, self.registers.forked(findings))

    def body(self, writes: Mapping[Key, Value], door: Door = DOORS[0]) -> bytes:
        series: dict[int, list[tuple[int, float]]] = {}
        for (uid, number), version in sorted(writes.items()):
            assert version is not None
            series.setdefault(uid, []).append((self.base_ms + number * STEP_MS, value_of(uid, number, version)))
        return door.body([(labels_of(uid), samples) for uid, samples in series.items()])

    def shown(self, result: list[dict[str, Any]], what: str) -> dict[Key, Value]:
        """The samples of a matrix; those whose value is not of their series and time are reported."""
        shown: dict[Key, Value] = {}
        for series in result:
            labels = series["metric"]
            uid = int(labels.get("writer", -1)) * 1000 + int(labels.get("series", -1))
            if labels != labels_of(uid):
                self.findings.add("invented", "metrics", f"{what}: there is a series {labels}")
                continue
            for at_s, text in series["values"]:
                whole, version = divmod(int(float(text)), NUMBER_UNIT)
                number = round((at_s * 1000 - self.base_ms) / STEP_MS)
                if whole != uid * (UID_UNIT // NUMBER_UNIT) + number:
                    self.findings.add("invented", "metrics", f"{what}: {labels} at {at_s} (number {number}) is {text}")
                    continue
                shown[uid, number] = version
        return shown

    def read(self, client: Client, writer: int | None, *, final: bool) -> bool:
        """Read all samples (of a writer) and check them; whether the answer said that it is complete."""
        stamp = self.registers.stamp
        asked = [key for key in self.registers.known() if writer is None or key[0] // 1000 == writer]
        selector = '{__name__=~"chaos_.*"' + ("" if writer is None else f',writer="{writer}"') + "}"
        at = str(self.base_ms / 1000 + 3 * 3600)
        answer = client.get("/api/v1/query", {"query": f"{selector}[{RANGE}]", "time": at})
        if answer.status != 200:
            if answer.status not in (429, 503):
                self.findings.add("wrong", "metrics", f"a query was answered {answer.status}: {answer.body[:300]!r}")
            return False
        content = answer.json()
        complete = not content.get("warnings")
        shown = self.shown(content["data"]["result"], "query")
        self.registers.check(shown, asked, stamp, complete=complete, final=final, what="query")
        if final and complete:
            self._check_series(client, {uid for uid, _ in shown})
        return complete

    def _check_series(self, client: Client, uids: set[int]) -> None:
        """`/series` and the query agree on which series there are."""
        answer = client.get("/api/v1/series", {"match[]": '{__name__=~"chaos_.*"}', "limit": "0"})
        if not answer.complete:
            return
        listed = {int(labels["writer"]) * 1000 + int(labels["series"]) for labels in answer.json()["data"]}
        if uids - listed:
            self.findings.add("unlabelled", "metrics", f"/series lacks {sorted(uids - listed)[:5]}, which have samples")
        unknown = listed - {key[0] for key in self.registers.known()}
        if unknown:
            self.findings.add("invented", "metrics", f"/series has {sorted(unknown)[:5]}, which were never sent")

    def write(self, client: Client, writes: dict[Key, Value], within_s: float, door: Door = DOORS[0]) -> bool:
        """True when it was acknowledged."""
        self.registers.begin(writes)
        try:
            answer = client.send("POST", door.path, self.body(writes, door), door.headers, within_s)
        except Silence as silence:
            if silence.connected:
                self.registers.abandon(writes)
            return False
        if answer.status == door.stored and b"partialSuccess" not in answer.body:
            self.registers.acknowledge(writes)
            return True
        if answer.status not in (429, 503):
            self.findings.add(
                "wrong", "metrics", f"a write to {door.path} was answered {answer.status}: {answer.body[:300]!r}"
            )
        return False

    def delete(self, client: Client, key: Key, within_s: float) -> None:
        """The sample of this series and number, by an API that deletes what is between two times."""
        gone: dict[Key, Value] = {key: None}
        uid, number = key
        at = str((self.base_ms + number * STEP_MS) / 1000)
        labels = ",".join(f'{name}="{value}"' for name, value in labels_of(uid).items() if name != "__name__")
        asked = urllib.parse.urlencode({"match[]": f"{{{labels}}}", "start": at, "end": at})
        self.registers.begin(gone)
        try:
            answer = client.send("POST", f"/api/v1/admin/tsdb/delete_series?{asked}", within_s=within_s)
        except Silence as silence:
            if silence.connected:
                self.registers.abandon(gone)
            return
        if answer.status == 204:
            self.registers.acknowledge(gone)
        elif answer.status not in (429, 503):
            self.findings.add("wrong", "metrics", f"a deletion was answered {answer.status}: {answer.body[:300]!r}")


class MetricsLoad(Load):
    area = "metrics"

    def __init__(self, client: Client, metrics: Metrics, seed: str, impatience: float, life: int = 0) -> None:
        assert (life + 1) * LIFE_SERIES <= 1000
        super().__init__(metrics.findings, seed, impatience)
        self.client, self.metrics, self.life = client, metrics, life
        self._numbers = [life * 1000] * WRITERS
        self._pool = [5] * WRITERS
        self._recent: list[list[tuple[Key, int]]] = [[] for _ in range(WRITERS)]

    def start(self) -> None:
        for writer in range(WRITERS):
            self._run(partial(self._write, writer), f"writer {writer}")
        self._run(self._read, "reader")

    def _write(self, writer: int, chance: random.Random) -> None:
        self._numbers[writer] += 1
        number = self._numbers[writer]
        self._pool[writer] = min(SERIES_MAX, self._pool[writer] + 1)  # so that new series come all the time
        chosen = chance.sample(range(self._pool[writer]), min(BATCH_SERIES, self._pool[writer]))
        writes: dict[Key, Value] = {(writer * 1000 + self.life * LIFE_SERIES + s, number): 0 for s in chosen}
        recent = self._recent[writer]
        for place in {chance.randrange(len(recent)) for _ in range(REWRITES)} if recent else ():
            key, version = recent[place]
            recent[place] = (key, version + 1)
            writes[key] = version + 1
        recent.extend((key, 0) for key in list(writes)[:2])
        del recent[:-200]
        for _ in range(3):
            door = chance.choice(DOORS)
            if self.metrics.write(self.client, writes, self.patience_s(chance), door) or self.stopping.is_set():
                break
            self.pause()
            if chance.random() < 0.5:
                break
        if recent and chance.random() < DELETIONS:  # of a sample that may be written again
            self.metrics.delete(self.client, chance.choice(recent)[0], self.patience_s(chance))

    def _read(self, chance: random.Random) -> None:
        try:
            self.metrics.read(self.client, chance.randrange(WRITERS), final=False)
        except Silence as silence:
            if silence.timed_out:
                self.findings.add("stuck", "metrics", str(silence))
        self.stopping.wait(0.2)
