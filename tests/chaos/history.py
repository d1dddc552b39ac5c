"""One cluster, what was sent to it, and the load and the checks of all areas together."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass

from tests.chaos.client import Client, Silence
from tests.chaos.damage import Harm
from tests.chaos.findings import Findings
from tests.chaos.load import Load
from tests.chaos.log_load import Log, LogLoad
from tests.chaos.metrics_load import Metrics, MetricsLoad, sent_in
from tests.chaos.otlp_log_load import OtlpLogLoad
from tests.chaos.processes import ChaosCluster
from tests.chaos.vector_load import VectorLoad, Vectors
from worker.logs.messages import Message
from worker.logs.messages import read as read_message
from worker.storage.wal import log as wal

SETTINGS = {
    # So that sealing, merging, snapshots and segments happen all the time, and are cut short too.
    "TRIPTYCH_HEAD_BYTES": "40000",
    "TRIPTYCH_BLOCK_WINDOW": "5s",
    "TRIPTYCH_SELF_SCRAPE": "0",
    "TRIPTYCH_BLOCK_CACHE_BYTES": "1MB",
    "TRIPTYCH_VECTOR_SNAPSHOT": "200ms",
    "TRIPTYCH_LOG_SEGMENT_BYTES": "256KB",
    "TRIPTYCH_WRITE_TIMEOUT": "3s",
    "TRIPTYCH_VECTOR_TIMEOUT": "3s",
    "TRIPTYCH_QUERY_TIMEOUT": "8s",
}
SHOWN_WITHIN_S = 25.0
"""After healing, shards that were declared missing and batches that a new coordinator decides on are there again."""


@dataclass
class History:
    """A cluster and its record in the three areas."""

    cluster: ChaosCluster
    findings: Findings
    metrics: Metrics
    log: Log
    vectors: Vectors
    lives: int = 0

    @classmethod
    def new(cls, cluster: ChaosCluster, findings: Findings) -> History:
        return cls(cluster, findings, Metrics(findings), Log(findings), Vectors(findings))

    def forked(self, cluster: ChaosCluster, findings: Findings) -> History:
        """The same past in another cluster, which has a copy of the data directory."""
        return History(
            cluster,
            findings,
            self.metrics.forked(findings),
            self.log.forked(findings),
            self.vectors.forked(findings),
            self.lives,
        )

    @property
    def client(self) -> Client:
        return Client(self.cluster.port)

    def expect(self, harm: Harm) -> None:
        """Know what answers may lack because of damage to a file, and which of them must say so."""
        if harm.loses_file:
            self.metrics.registers.is_file_lost = self.vectors.registers.is_file_lost = True
        for area, payload in harm.records:
            if area == wal.SERIES:
                registers = self.metrics.registers
                keys = sent_in(payload)
                registers.lose(registers.deleted() if keys is None else keys, silently=harm.is_silent)
            elif harm.is_silent and isinstance(message := read_message(memoryview(payload)), Message):
                self.log.record.lose(batch.start for batch in message.batches)
                self.log.otlp.lose(range(batch.start, batch.start + batch.count) for batch in message.batches)

    def older(self) -> int:
        """Older values in answers with a warning."""
        return self.metrics.registers.older + self.vectors.registers.older

    def acknowledged(self) -> int:
        """Samples, records and vectors."""
        return (
            self.metrics.registers.acknowledged()
            + self.log.record.acknowledged()
            + self.log.otlp.registers.acknowledged()
            + self.vectors.registers.acknowledged()
        )

    @contextlib.contextmanager
    def under_load(self, seed: str, impatience: float = 0.0) -> Iterator[None]:
        """Meanwhile all areas are written and read, and each answer is checked."""
        self.lives += 1
        loads: list[Load] = [
            MetricsLoad(self.client, self.metrics, seed, impatience, life=self.lives),
            LogLoad(self.client, self.log, seed, impatience, life=self.lives),
            OtlpLogLoad(self.client, self.log.otlp, seed, impatience, life=self.lives),
            VectorLoad(self.client, self.vectors, seed, impatience, first_version=self.lives * 10_000),
        ]
        for load in loads:
            load.start()
        try:
            yield
        finally:
            for load in loads:
                load.stopping.set()
            for load in loads:
                load.stop()

    def check_healed(self) -> None:
        """Everything acknowledged is there, and no answer lacks something: no file was damaged."""
        give_up = time.monotonic() + SHOWN_WITHIN_S
        while (lacking := self._lacking()) and time.monotonic() < give_up:
            time.sleep(0.1)
        if not self.check(final=True) and not self.findings:
            self.findings.add(
                "stuck", "cluster", f"answers still have warnings or refusals: {lacking or self._lacking()}"
            )

    def _lacking(self) -> list[str]:
        """The warnings and refusals of answers of the three areas."""
        lacking = []
        for path, parameters in (
            ("/api/v1/query", {"query": '{__name__=~"chaos_.*"}[6h]', "time": str(time.time() + 3600)}),
            ("/api/v1/log/scan", {"prefix": "", "limit": "1"}),
            ("/api/v1/vector/stats", {}),
        ):
            try:
                answer = self.client.get(path, parameters)
                if not answer.complete:
                    lacking.append(f"{path}: {answer.status} {answer.json().get('warnings') or answer.body[:300]!r}")
            except Silence as silence:
                lacking.append(str(silence))
        return lacking

    def check(self, *, final: bool) -> bool:
        """Check all that can be read; whether all answers said that they are complete."""
        complete = True
        for area, read in (
            ("metrics", lambda: self.metrics.read(self.client, None, final=final)),
            ("log", lambda: self.log.check_all(self.client, final=final)),
            ("vectors", lambda: self.vectors.check_all(self.client, final=final)),
        ):
            try:
                complete &= read()
            except Silence as silence:
                complete = False
                if silence.timed_out:
                    self.findings.add("stuck", area, str(silence))
        return complete
