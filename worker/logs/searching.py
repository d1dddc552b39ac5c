"""Searching the values of one shard's log: reads that return only the records that a filter finds.

A page ends after a bounded amount of work, however few records were found, and says how far it has come.
"""

from __future__ import annotations

from shared.messages.log import Page, Range, Records
from worker.logs.examination import Examination
from worker.logs.part import LogPart
from worker.logs.reading import PAGE_BYTES_MAX, Check, fitting, key_runs, merged
from worker.logs.runs import joined


def scan(part: LogPart, span: Range, key: bytes, limit: int, reverse: bool, examination: Examination) -> Page:
    """As `reading.scan`, of the records found. The page may end early."""
    taken: list[Records] = []
    records = size = 0
    for run in key_runs(part, part.view(), span, key, reverse):
        examined = joined([run.reversed() if reverse else run])
        found = examination.found(examined)
        count = fitting(found, limit - records, PAGE_BYTES_MAX - size)
        taken.append(found.cut(0, count))
        records += count
        size += int(taken[-1].value_lengths.sum())
        if records >= limit or size >= PAGE_BYTES_MAX:
            last = int(found.sequences[count - 1])
        elif examination.is_over:
            last = int(examined.sequences[-1])
        else:
            continue
        return Page(Records.joined(taken), last if reverse else last + 1, False)
    return Page(Records.joined(taken), span.start if reverse else span.end, True)


def count_key(part: LogPart, span: Range, key: bytes, examination: Examination) -> int:
    return sum(len(examination.found(joined([run]))) for run in key_runs(part, part.view(), span, key))


def count_prefix(part: LogPart, span: Range, prefix: bytes, examination: Examination, check: Check) -> int:
    return sum(len(examination.found(records)) for records, _, _ in merged(part, part.view(), span, prefix, check))
