"""Which workers have no series that a query reads, so that they need not be asked.

A selector does not say to which shards its series hash, since they may have more labels than it names. But what a
worker answered once stays true: its index only ever grows, and only by writes that bring labels, all of which the
coordinator sends. A reply says of each selection whether any series matches, at whatever time. "None" is known for
certain as long as the process is the same, no write with labels was on its way when the worker was asked, and none has
been sent since (`Worker.index_version`). A write is counted before it is sent, thus before it is answered: whoever
wrote a series reads it.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from coordinator.fanout.calls import IndexVersion, Worker
from coordinator.fanout.links import Links
from coordinator.queries.cost import Demand
from shared.messages.sub_queries import EvaluateReply

SELECTIONS_MAX = 2048
SELECTION_CHARACTERS_MAX = 1000
"""Of a selection that is remembered: together with the selections' number, the bound on what this takes (some MB)."""
TRUSTED_S = 60.0
"""A worker that finds something damaged says so in every answer about its shards. One that is not asked says nothing:
each is asked this often at least."""


IndexVersions = Mapping[str, IndexVersion | None]
"""By worker."""


@dataclass(frozen=True, slots=True)
class Asked:
    """The shards that a query is asked of, None for all, and the versions of their workers' indexes."""

    shards: tuple[int, ...] | None = None
    versions: IndexVersions = field(default_factory=dict)


class Whereabouts:
    """For the event loop's thread only."""

    def __init__(self) -> None:
        self._absent: OrderedDict[str, dict[str, tuple[IndexVersion, float]]] = OrderedDict()

    def asked(self, demands: Sequence[Demand], links: Links) -> Asked:
        """Whom to ask now for leaves with these demands: all workers if a shard is not ready, since the answer names
        each that is missing."""
        workers = links.connected()
        having = workers if links.unready() else self._having(demands, workers)
        shards = None if having is workers else tuple(shard for worker in having for shard in worker.shards)
        return Asked(shards, {worker.name: worker.index_version for worker in having})

    def _having(self, demands: Sequence[Demand], workers: list[Worker]) -> list[Worker]:
        """Those of the workers that may have series; one at least, so that there is an answer."""
        now = time.monotonic()
        absences = [self._absent.get(demand.selections) for demand in demands]
        if None in absences:
            return workers

        def is_absent(worker: Worker) -> bool:
            return all(
                absence is not None
                and (known := absence.get(worker.name)) is not None
                and known[0] == worker.index_version
                and now < known[1]
                for absence in absences
            )

        having = [worker for worker in workers if not is_absent(worker)] or workers[:1]
        return workers if len(having) == len(workers) else having

    def learn(self, demands: Sequence[Demand], versions: IndexVersions, worker: str, reply: EvaluateReply) -> None:
        """A worker replied to leaves with these demands, for all its shards and with all that they have."""
        version = versions.get(worker)
        if version is None:
            return
        until = time.monotonic() + TRUSTED_S
        for demand, answer in zip(demands, reply.answers, strict=True):
            absence = self._absent.get(demand.selections)
            if answer.has_matched:
                if absence is not None:
                    absence.pop(worker, None)
            elif len(demand.selections) <= SELECTION_CHARACTERS_MAX:
                if absence is None:
                    absence = self._absent[demand.selections] = {}
                absence[worker] = version, until
                self._absent.move_to_end(demand.selections)
        while len(self._absent) > SELECTIONS_MAX:
            self._absent.popitem(last=False)
