"""Appends of all kinds with retries of what timed out, followers, scans, counts and cursors."""

from __future__ import annotations

import base64
import json
import random
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from tests.chaos.client import Answer, Client, Silence
from tests.chaos.findings import Findings
from tests.chaos.load import WRITE_WITHIN_S, Load
from tests.chaos.log_record import Batch, LogRecord, Row
from tests.chaos.otlp_log_load import KEY as OTLP_KEY
from tests.chaos.otlp_log_load import OtlpLogs
from tests.chaos.registers import Key, Registers, Value

KEYS = tuple(b"key/%d" % n for n in range(7)) + tuple(b"other/%d" % n for n in range(4))
PAGE = 2000
REPEATS = 12
CURSOR_KEYS = (b"key/0", b"key/1")


def text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def rows_of(content: dict[str, Any]) -> list[Row]:
    return [(r["sequence"], base64.b64decode(r["key"]), base64.b64decode(r["value"])) for r in content["records"]]


class Log:
    """The log's record and its cursors' register; records that came by OTLP have a register of their own."""

    def __init__(
        self,
        findings: Findings,
        record: LogRecord | None = None,
        cursors: Registers | None = None,
        otlp: OtlpLogs | None = None,
    ) -> None:
        self.findings = findings
        self.record = record or LogRecord(findings)
        self.cursors = cursors or Registers("cursors", findings)
        self.otlp = otlp or OtlpLogs(findings)

    def forked(self, findings: Findings) -> Log:
        return Log(findings, self.record.forked(findings), self.cursors.forked(findings), self.otlp.forked(findings))

    def append(
        self, client: Client, batch: Batch, durable: bool, producer: tuple[str, int] | None, within_s: float
    ) -> str:
        """One attempt. "acknowledged", "refused" or "in doubt"."""
        body: dict[str, Any] = {
            "records": [{"key": text(key), "value": text(value)} for key, value in batch.records()],
            "awaitDurable": durable,
        }
        if producer is not None:
            body["producerId"], body["producerSeq"] = producer
        asked_at = time.strftime("%H:%M:%S")
        answered = self._append(client, batch, body, within_s)
        batch.attempts.append(f"{asked_at} durable={durable} {producer or ''} waited {within_s:.2g} s: {answered}")
        return answered.partition(":")[0]

    def _append(self, client: Client, batch: Batch, body: dict[str, Any], within_s: float) -> str:
        """The outcome, and behind a colon what was answered."""
        try:
            answer = client.post("/api/v1/log/append", body, within_s)
        except Silence as silence:
            # Refused connections have sent nothing, but an attempt before may have.
            self.record.doubt(batch) if silence.connected else self.record.refuse(batch)
            return "in doubt: no answer"
        content = answer.json()
        if answer.status == 200:
            self.record.acknowledge(batch, content["startSequence"])
            return f"acknowledged: {content['startSequence']}"
        if answer.status not in (429, 503):
            self.record.doubt(batch)
            self.findings.add("wrong", "log", f"an append was answered {answer.status}: {answer.body[:300]!r}")
            return f"wrong: {answer.status}"
        self.record.doubt(batch) if "may or may not" in content["message"] else self.record.refuse(batch)
        return f"refused: {content['message'][:120]}"

    def scan(self, client: Client, *, final: bool, **parameters: str) -> tuple[list[Row], int, bool] | None:
        """One page and its checks: (rows, where to go on, whether it said that it is complete); None when refused."""
        stamp = self.record.stamp
        answer = client.get("/api/v1/log/scan", {"limit": str(PAGE), **parameters})
        if answer.status != 200:
            self._check_refusal(answer, "a scan")
            return None
        content = answer.json()
        rows = rows_of(content)
        first, following = int(parameters.get("start_seq", "0")), content["nextSequence"]
        complete = not content.get("warnings")
        what = f"scan {parameters}"
        if following < first or any(not first <= row[0] < following for row in rows):
            self.findings.add("wrong", "log", f"{what} ends at {following}, and has rows up to {rows[-1:]}")
        rows = self._without_otlp(rows)
        own, prefix = parameters.get("key", "").encode(), parameters.get("prefix", "").encode()
        self.record.check(
            rows,
            lambda key: key == own if own else key.startswith(prefix),
            (first, following),
            stamp,
            complete=complete,
            final=final,
            what=what,
        )
        return rows, following, complete

    def scan_all(self, client: Client, *, final: bool, **parameters: str) -> tuple[list[Row], bool]:
        """Pages until there are no more: (rows, whether all said that they are complete)."""
        rows: list[Row] = []
        following, complete = 0, True
        while True:
            page = self.scan(client, final=final, start_seq=str(following), **parameters)
            if page is None:
                return rows, False
            rows += page[0]
            complete &= page[2]
            if page[1] == following or not page[2]:
                return rows, complete
            following = page[1]

    def listen(self, client: Client, start: int, for_s: float) -> int:
        """Take the events of a stream from this number on, and check them; the number to go on from."""
        stamp = self.record.stamp
        events = client.listen("/api/v1/log/scan", {"prefix": "", "start_seq": str(start)}, for_s)
        own = [json.loads(event["data"]) for event in events if "id" in event]
        rows = rows_of({"records": own})
        following = rows[-1][0] + 1 if rows else start
        if rows and rows[0][0] < start:
            self.findings.add("wrong", "log", f"a stream from {start} on begins with {rows[0]}")
        rows = self._without_otlp(rows)
        complete = not any(event.get("event") == "warning" for event in events)
        self.record.check(
            rows, lambda _: True, (start, following), stamp, complete=complete, final=False, what=f"stream from {start}"
        )
        return following

    def _without_otlp(self, rows: list[Row]) -> list[Row]:
        """The rows that have a batch in the record; the others are checked here."""
        self.otlp.check([row for row in rows if row[1] == OTLP_KEY])
        return [row for row in rows if row[1] != OTLP_KEY]

    def read_otlp(self, client: Client, *, final: bool) -> bool:
        """Read all records that came by OTLP and check them; whether all answers said that they are complete. Readers
        stop below a batch in doubt, so records that were acknowledged may be beyond the end of what can be read."""
        stamp = self.otlp.registers.stamp
        frontier = client.get("/api/v1/log/frontier", {})
        if frontier.status != 200:
            self._check_refusal(frontier, "the frontier")
            return False
        end = frontier.json()["nextSequence"]
        rows: list[Row] = []
        following = 0
        while True:
            asked = {"key": OTLP_KEY.decode(), "start_seq": str(following), "limit": str(PAGE)}
            answer = client.get("/api/v1/log/scan", asked)
            if not answer.complete:
                if answer.status != 200:
                    self._check_refusal(answer, "a scan")
                return False
            content = answer.json()
            rows += rows_of(content)
            if content["nextSequence"] == following:
                break
            following = content["nextSequence"]
        if following >= end:
            self.otlp.check_whole(rows, stamp, final=final)
        else:
            self.otlp.check(rows)
        return True

    def count(self, client: Client, key: bytes) -> int | None:
        answer = client.get("/api/v1/log/count", {"key": key.decode()})
        if answer.status != 200:
            self._check_refusal(answer, "a count")
            return None
        return None if answer.json().get("warnings") else int(answer.json()["count"])

    def read_cursor(self, client: Client, *, final: bool) -> bool:
        stamp = self.cursors.stamp
        answer = client.get("/api/v1/log/cursors/chaos", {})
        if answer.status not in (200, 404):
            self._check_refusal(answer, "a cursor")
            return False
        positions = answer.json()["positions"] if answer.status == 200 else []
        shown: dict[Key, Value] = {base64.b64decode(entry["key"]): entry["sequence"] for entry in positions}
        complete = answer.status == 404 or answer.complete
        self.cursors.check(shown, CURSOR_KEYS, stamp, complete=complete, final=final, what="cursor")
        if complete and len({shown.get(key) for key in CURSOR_KEYS}) > 1:
            self.findings.add("half", "cursors", f"positions set together are {shown}")
        return complete

    def move_cursor(self, client: Client, position: int, before: int | None = None) -> bool:
        """`before`: where the cursor may be taken for being; a move from elsewhere is a conflict."""
        moves: dict[Key, Value] = dict.fromkeys(CURSOR_KEYS, position)
        expected = {} if before is None else {"expected": before}
        was = [self.cursors.possible(key) for key in CURSOR_KEYS]
        self.cursors.begin(moves)
        body = {"positions": [{"key": text(key), "sequence": position, **expected} for key in CURSOR_KEYS]}
        try:
            answer = client.send(
                "PUT",
                "/api/v1/log/cursors/chaos",
                json.dumps(body).encode(),
                {"Content-Type": "application/json"},
                WRITE_WITHIN_S,
            )
        except Silence as silence:
            if silence.connected:
                self.cursors.abandon(moves)
            return False
        if answer.status == 409 and expected:
            if was == [{before}] * len(CURSOR_KEYS):
                self.findings.add("wrong", "cursors", f"they are at {before}, and a move from there was a conflict")
            self.cursors.refuse(moves)
            return False
        if answer.status == 200:
            if before is not None and not all(before in possible for possible in was):
                self.findings.add("wrong", "cursors", f"a move from {before} was accepted, they are at {was}")
            self.cursors.acknowledge(moves)
        else:
            self._check_refusal(answer, "a cursor's move")
        return answer.status == 200

    def _check_refusal(self, answer: Answer, what: str) -> None:
        if answer.status not in (429, 503):
            self.findings.add("wrong", "log", f"{what} was answered {answer.status}: {answer.body[:300]!r}")

    def check_all(self, client: Client, *, final: bool) -> bool:
        """Everything that can be read, each way; whether all answers said that they are complete."""
        rows, complete = self.scan_all(client, final=final, prefix="")
        if complete:
            self.record.check_whole(rows, "the whole log")
        for key in KEYS:
            own, own_complete = self.scan_all(client, final=final, key=key.decode())
            counted = self.count(client, key)
            complete &= own_complete and counted is not None
            if own_complete and counted is not None and counted != len(own):
                self.findings.add("wrong", "log", f"count of {key!r} is {counted}, a scan has {len(own)} records")
            if complete and own != [row for row in rows if row[1] == key]:
                self.findings.add("wrong", "log", f"a scan of {key!r} and one of everything disagree")
        complete &= self.read_otlp(client, final=final)
        return self.read_cursor(client, final=final) and complete


class LogLoad(Load):
    area = "log"

    def __init__(self, client: Client, log: Log, seed: str, impatience: float, life: int = 0) -> None:
        """`life` tells producers of one history's loads apart."""
        super().__init__(log.findings, seed, impatience)
        self.client, self.log, self.life = client, log, life
        self._producer_seq: dict[str, int] = {}
        self._following = self._heard = 0
        self._position = 1000 * life

    def start(self) -> None:
        for number in range(2):
            self._run(partial(self._append, number), f"appender {number}")
        for number in range(2):
            self._run(partial(self._produce, number), f"producer {number}")
        self._run(self._follow, "follower")
        self._run(self._listen, "listener")
        self._run(self._read, "reader")
        self._run(self._move, "cursor")

    def _keys(self, chance: random.Random) -> Sequence[bytes]:
        if chance.random() < 0.3:
            return [chance.choice(KEYS)] * chance.randint(1, 8)
        return chance.choices(KEYS, k=chance.randint(2, 20))

    def _append(self, number: int, chance: random.Random) -> None:
        batch = self.log.record.begin(self._keys(chance), chance.choice((0, 0, 0, 50, 3000)))
        durable = chance.random() < 0.5
        if self.log.append(self.client, batch, durable, None, self.patience_s(chance)) != "acknowledged":
            self.pause()

    def _produce(self, number: int, chance: random.Random) -> None:
        """The same number again until it is answered: it is there once."""
        name = f"producer-{self.life}-{number}"
        seq = self._producer_seq[name] = self._producer_seq.get(name, -1) + 1
        batch = self.log.record.begin(chance.sample(KEYS, chance.randint(2, 5)))
        durable = chance.random() < 0.5
        for _ in range(REPEATS):
            within_s = chance.choice((0.1, 0.4, 1.0)) if self.impatience else chance.choice((0.4, 2.0, WRITE_WITHIN_S))
            if self.log.append(self.client, batch, durable, (name, seq), within_s) == "acknowledged":
                break
            self.log.record.reopen(batch)
            if self.stopping.wait(0.05):
                break
        if chance.random() < 0.2:  # asked once more, it has the same answer
            self.log.append(self.client, batch, durable, (name, seq), WRITE_WITHIN_S)

    def _follow(self, chance: random.Random) -> None:
        try:
            page = self.log.scan(
                self.client, final=False, prefix="", start_seq=str(self._following), follow="true", timeout="500ms"
            )
        except Silence as silence:
            if silence.timed_out:
                self.findings.add("stuck", "log", str(silence))
            page = None
        if page is None:
            self.pause()
        else:
            self._following = page[1]

    def _listen(self, chance: random.Random) -> None:
        before = self._heard
        self._heard = self.log.listen(self.client, before, chance.uniform(0.5, 2.0))
        if self._heard == before:
            self.pause()

    def _read(self, chance: random.Random) -> None:
        key = chance.choice(KEYS)
        try:
            self.log.scan(self.client, final=False, key=key.decode(), limit="10000")
            self.log.scan(self.client, final=False, prefix="other/", limit="10000")
            self.log.read_cursor(self.client, final=False)
        except Silence as silence:
            if silence.timed_out:
                self.findings.add("stuck", "log", str(silence))
            self.pause()
        self.stopping.wait(0.1)

    def _move(self, chance: random.Random) -> None:
        self._position += 1
        known = self.log.cursors.possible(CURSOR_KEYS[0])
        # Half of the moves say where the cursor is, some of them wrongly.
        at = chance.choice(sorted(value for value in known if value is not None) or [0])
        before = chance.choice((None, None, at, at + (chance.random() < 0.2)))
        if not self.log.move_cursor(self.client, self._position, before):
            self.pause()
        self.stopping.wait(0.05)
