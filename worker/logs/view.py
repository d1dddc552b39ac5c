"""What a read sees: the log of a shard at one moment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from worker.logs.memory import Memory
from worker.logs.recent import RecentSnapshot
from worker.logs.starts import KeyStarts


@dataclass(frozen=True, slots=True)
class LogView:
    """The log at one moment: records of groups below `gathered` are in the store, the others in these snapshots.
    `starts`, `fresh`: which records are gone, as in `KeyStarts`."""

    gathered: int
    segments: Mapping[int, Sequence[RecentSnapshot]]
    starts: Mapping[bytes, int]
    fresh: Mapping[bytes, int]


def view_of(gathered: int, memories: Sequence[Memory], starts: KeyStarts) -> LogView:
    """A view of the log with these memories, the earlier groups first. The caller holds the lock that guards them."""
    segments: dict[int, list[RecentSnapshot]] = {}
    for memory in memories:
        for segment, recent in memory.segments.items():
            if len(recent):
                segments.setdefault(segment, []).append(recent.snapshot())
    return LogView(gathered, segments, starts.all, starts.fresh)
