"""Gathering: groups in memory are put into the store by key, all of them in one write."""

from __future__ import annotations

from heapq import nlargest
from itertools import pairwise

import msgspec
import numpy as np

from shared.log.blocks import KEY_LENGTH, VALUE_LENGTH
from shared.messages.log import PRODUCER_ANSWERS_MAX, SEQUENCE_MAX
from worker.logs import kernels, rows
from worker.logs.entries import GatheringEntry
from worker.logs.memory import Memory, ProducerAnswer
from worker.logs.recent import Grouped, Recent, RecentSnapshot
from worker.storage.faces import RowBatch, Rows

RUN_RECORDS_MAX = 4096
RUN_BYTES_MAX = 256 << 10
"""A read of one record reads its whole run. Runs of this size cost little compared with the lookup, and are large
enough for long scans."""

_ANSWER = msgspec.msgpack.Decoder(tuple[int, int])


def put(changes: RowBatch, store: Rows, memory: Memory) -> int:
    """Add everything in `memory` to `changes`: runs, entries and producers' answers. Returns the number of runs."""
    count = 0
    for segment, recent in memory.segments.items():
        count += _put_segment(changes, segment, recent, memory.settled)
    for producer, answers in memory.answers.items():
        _put_answers(changes, store, producer, answers)
    return count


def _put_segment(changes: RowBatch, segment: int, recent: Recent, settled: int) -> int:
    groups = sorted((held.group, held.batches) for held in recent.groups if held.batches)
    if not groups:
        return 0
    snapshot = recent.snapshot()
    ascending = snapshot.rows(0, SEQUENCE_MAX)
    grouped = snapshot.grouped(ascending)
    keys = [snapshot.key(row) for row in grouped.order[grouped.starts[:-1]].tolist()]
    numbers, tombstones = snapshot.numbers[ascending], snapshot.numbers[snapshot.tombstones(ascending)]
    entry = GatheringEntry(settled, groups, numbers, grouped.codes.astype(np.uint32), keys, tombstones)
    changes.put("log", rows.entry(segment, groups[0][0]), entry.packed())
    return put_runs(changes, segment, snapshot, grouped)


def put_runs(changes: RowBatch, segment: int, snapshot: RecentSnapshot, grouped: Grouped) -> int:
    """Add the records to `changes` as runs. Returns the number of runs."""
    records = len(grouped.order)
    key_bytes, value_bytes = snapshot.table[:, [KEY_LENGTH, VALUE_LENGTH]].sum(axis=0).tolist()
    # The buffers have room for the worst case: every record is a run of its own, and every byte of a key is escaped.
    names = np.empty(2 * key_bytes + kernels.ROW_KEY_BYTES * records, np.uint8)
    runs = np.empty(value_bytes + (kernels.RUN_RECORD_BYTES + kernels.RUN_HEAD_BYTES) * records, np.uint8)
    name_ends, run_ends = np.empty(records, np.int64), np.empty(records, np.int64)
    count = kernels.pack_runs(
        snapshot.data,
        snapshot.table,
        snapshot.numbers,
        snapshot.times,
        grouped.order,
        grouped.starts,
        segment,
        RUN_RECORDS_MAX,
        RUN_BYTES_MAX,
        names,
        name_ends,
        runs,
        run_ends,
    )
    changes.put_many("log", _cut(names, name_ends[:count]), _cut(runs, run_ends[:count]))
    return count


def _cut(octets: np.ndarray, ends: np.ndarray) -> list[bytes]:
    places = [0, *ends.tolist()]
    view = octets.data
    return [bytes(view[start:end]) for start, end in pairwise(places)]


def remembered(answers: list[ProducerAnswer]) -> list[ProducerAnswer]:
    """The answers with the PRODUCER_ANSWERS_MAX highest producer_seqs, in the given order. So a producer_seq that is
    missing above one of them was never stored. One producer_seq may have several answers: all but one of these attempts
    will be revoked."""
    last = set(nlargest(PRODUCER_ANSWERS_MAX, {producer_seq for producer_seq, _, _ in answers}))
    return [answer for answer in answers if answer[0] in last]


def _put_answers(changes: RowBatch, store: Rows, producer: str, answers: dict[int, ProducerAnswer]) -> None:
    """Store these answers to the producer, and delete those that are too old."""
    stored = dict(answer_rows(store, producer))
    current = remembered([*stored.values(), *(answers[start] for start in sorted(answers))])
    for row, answer in stored.items():
        if answer not in current:
            changes.delete("log", row)
    for producer_seq, start, count in current:
        if start in answers:
            changes.put("log", rows.producer(producer, start), msgspec.msgpack.encode((producer_seq, count)))


def answer_rows(store: Rows, producer: str) -> list[tuple[bytes, ProducerAnswer]]:
    """(row, answer) of the producer's answers in the store, ascending by start."""
    head = rows.producers_of(producer)
    answers = []
    for row, value in store.scan("log", head, rows.after(head)):
        producer_seq, count = _ANSWER.decode(value)
        answers.append((row, (producer_seq, rows.sequence_of(row), count)))
    return answers
