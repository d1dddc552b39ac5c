"""Batches of OTLP log records, each sent again until it is acknowledged: every record is in the log once."""

from __future__ import annotations

import itertools
import json
import random
import threading
from collections import Counter
from collections.abc import Iterable, Sequence

from tests.chaos.client import JSON, Client, Silence
from tests.chaos.findings import Findings
from tests.chaos.load import Load
from tests.chaos.log_record import Row
from tests.chaos.registers import Key, Registers, Value

AREA = "otlp logs"
SERVICE = "otlp service"
KEY = SERVICE.encode()
"""What the log knows these records by."""
REPEATS = 12


class OtlpLogs:
    """A register (batch, record) → 1, and where each record was read."""

    def __init__(
        self, findings: Findings, registers: Registers | None = None, sequences: dict[Key, int] | None = None
    ) -> None:
        self.findings = findings
        self.registers = registers or Registers(AREA, findings)
        self._sequences = sequences or {}
        self._lock = threading.Lock()
        self._is_hit = False

    def forked(self, findings: Findings) -> OtlpLogs:
        with self._lock:
            return OtlpLogs(findings, self.registers.forked(findings), dict(self._sequences))

    def body(self, batch: int, count: int) -> bytes:
        records = [
            {
                "timeUnixNano": str(1_800_000_000_000_000_000 + batch),
                "body": {"stringValue": f"{batch}/{record}/{count}"},
            }
            for record in range(count)
        ]
        service = {"key": "service.name", "value": {"stringValue": SERVICE}}
        scopes = [{"logRecords": records}]
        return json.dumps({"resourceLogs": [{"resource": {"attributes": [service]}, "scopeLogs": scopes}]}).encode()

    def send(self, client: Client, batch: int, count: int, within_s: float) -> bool:
        """One attempt; True when it was acknowledged."""
        writes: dict[Key, Value] = {(batch, record): 1 for record in range(count)}
        self.registers.begin(writes)
        try:
            answer = client.send("POST", "/v1/logs", self.body(batch, count), JSON, within_s)
        except Silence as silence:
            if silence.connected:
                self.registers.abandon(writes)
            return False
        if answer.status == 200 and not answer.json().get("partialSuccess"):
            self.registers.acknowledge(writes)
            return True
        if answer.status not in (429, 503):
            self._add("wrong", f"a batch was answered {answer.status}: {answer.body[:300]!r}")
        return False

    def check(self, rows: Sequence[Row]) -> dict[Key, int]:
        """Each record (its key, and the size of its batch) stands at one number of the log, and was sent."""
        shown: dict[Key, int] = {}
        for sequence, _, value in rows:
            batch, record, count = map(int, json.loads(value)["body"].split("/"))
            with self._lock:
                before = self._sequences.setdefault((batch, record), sequence)
            if before != sequence:
                self._add("twice", f"record {record} of batch {batch} is at {before} and at {sequence}")
            shown[batch, record] = count
        self.registers.check(
            dict.fromkeys(shown, 1), (), self.registers.stamp, complete=False, final=False, what="OTLP records"
        )
        return shown

    def check_whole(self, rows: Sequence[Row], stamp: int, *, final: bool) -> None:
        """`rows`: all that a read which began at `stamp` was given, and it said that nothing is missing."""
        shown = self.check(rows)
        known = self.registers.known()
        self.registers.check(dict.fromkeys(shown, 1), known, stamp, complete=True, final=final, what="all OTLP records")
        counts = Counter(batch for batch, _ in shown)
        half = {batch for (batch, _), count in shown.items() if counts[batch] != count}
        if half and not self._is_hit:
            self._add("half", f"of batches {sorted(half)[:5]} only some records are there")

    def lose(self, spans: Iterable[range]) -> None:
        """Damage that nobody can tell has hit these numbers of the log; a record that nobody has read may be at any."""
        self._is_hit = True
        hit = {None, *itertools.chain.from_iterable(spans)}
        with self._lock:
            lost = [key for key in self.registers.known() if self._sequences.get(key) in hit]
        self.registers.lose(lost, silently=True)

    def _add(self, kind: str, text: str) -> None:
        self.findings.add(kind, AREA, text)


class OtlpLogLoad(Load):
    area = AREA

    def __init__(self, client: Client, logs: OtlpLogs, seed: str, impatience: float, life: int = 0) -> None:
        super().__init__(logs.findings, seed, impatience)
        self.client, self.logs = client, logs
        self._numbers = itertools.count(life * 1_000_000)

    def start(self) -> None:
        self._run(self._send, "exporter")

    def _send(self, chance: random.Random) -> None:
        """The same batch again until it is answered, as exporters do: it is there once."""
        batch, count = next(self._numbers), chance.randint(1, 20)
        for _ in range(REPEATS):
            within_s = chance.choice((0.1, 0.4, 1.0)) if self.impatience else chance.choice((0.4, 2.0, 25.0))
            if self.logs.send(self.client, batch, count, within_s) or self.stopping.wait(0.05):
                break
        if chance.random() < 0.2:  # sent once more, it is there once all the same
            self.logs.send(self.client, batch, count, 25.0)
