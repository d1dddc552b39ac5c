"""Services that the series of all shards of one worker process share."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Lock

from shared.settings import Settings
from worker.background import Background
from worker.series.index.texts import TextTable
from worker.series.ingest import Rounds
from worker.series.journal import Staged
from worker.series.selections import Selections

DELETE_THREADS = 8
"""Shards of one process that delete at the same time: a deletion mostly waits for an fsync, and hardly takes CPU
time."""


def _delete_pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(DELETE_THREADS, thread_name_prefix="delete")


@dataclass(frozen=True, slots=True)
class SeriesServices:
    """`symbols`: the symbol table with the label texts of all shards. `rounds`: the group commit. A thread holds
    `sealing` while it seals a shard and `merging` while it merges blocks, so a process does one of each at a time.
    `deletes`: the thread pool in which the shards of a request delete. `background`: whether merges are postponed.
    `selections`: what recent queries selected."""

    settings: Settings
    symbols: TextTable
    background: Background = field(default_factory=Background)
    rounds: Rounds[Staged] = field(default_factory=Rounds)
    sealing: Lock = field(default_factory=Lock)
    merging: Lock = field(default_factory=Lock)
    deletes: ThreadPoolExecutor = field(default_factory=_delete_pool)
    selections: Selections = field(default_factory=Selections)
