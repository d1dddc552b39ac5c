"""The worker's methods for series: write, list, label names, label values, exemplars, metadata and delete."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import wait
from functools import partial

import numpy as np
from numpy.typing import NDArray

from shared.labels import Codes, LabelFrame, concat
from shared.messages.series import (
    DeleteBody,
    ExemplarsReply,
    ListReply,
    MetadataBody,
    MetadataPut,
    MetadataPutReply,
    MetadataReply,
    SelectBody,
    TextsReply,
    WriteReply,
)
from shared.wire import Frame, Reply, Request, pack, unpack
from worker.methods.method import Method, check
from worker.series.exemplar_record import ExemplarRecord, joined
from worker.series.index.lookup import Lookup
from worker.series.index.postings import Ids, distinct
from worker.series.writing import write
from worker.shard import Shard

VALUES_AT_ONCE = 1 << 14
"""Label values read from the symbol table between two checks of the deadline: some 10 ms."""


def _write(shards: Mapping[int, Shard], request: Request) -> Reply:
    """Store each shard's samples. Returns when all are durable (see `writing.write`)."""
    stored = write({shard.series: request.parts[number] for number, shard in shards.items()}, request.time_left)
    reply, frames = WriteReply(stored.samples), list[Frame]()
    if stored.stale or stored.numbers:  # rare: nearly all series are known
        for number, shard in shards.items():
            stale, new_numbers = stored.stale.get(shard.series), stored.numbers.get(shard.series)
            if stale or new_numbers:
                reply.epochs[number] = shard.series.epoch
            if stale:
                reply.stale[number] = stale
            if new_numbers:
                reply.numbered[number] = list(new_numbers)
                frames += [series.astype(np.int32).data for series in new_numbers.values()]
    return Reply(pack(reply), frames)


def _delete(shards: Mapping[int, Shard], request: Request) -> Reply:
    body = unpack(request.body, DeleteBody)
    _each(
        shards,
        lambda number: shards[number].series.delete(body.selectors, body.start_ms, body.end_ms, request.time_left),
    )
    return Reply()


def _each(shards: Mapping[int, Shard], work: Callable[[int], None]) -> None:
    """Call `work` for all shards in parallel, one of them in this thread. Waits for all, then raises the first
    error."""
    first, *others = shards
    pool = shards[first].series.services.deletes
    futures = [pool.submit(work, number) for number in others]
    try:
        work(first)
    finally:
        wait(futures)
    for future in futures:
        future.result()


def _selected(shards: Mapping[int, Shard], request: Request) -> Iterable[tuple[Lookup, Ids]]:
    """Yields for each shard its index and the series that have samples in the time range. Raises DeadlineExceeded,
    TooHeavy."""
    body = unpack(request.body, SelectBody)
    for number, shard in shards.items():
        require_time = partial(_require_time, request, number)
        require_time()
        yield shard.series.having(body.selectors, body.start_ms, body.end_ms, require_time)


def _require_time(request: Request, shard: int) -> None:
    check(request, f"{request.method} ran out of time at shard {shard}; ask for less at a time")


def _list(shards: Mapping[int, Shard], request: Request) -> Reply:
    limit = unpack(request.body, SelectBody).limit
    frames: list[LabelFrame] = []
    remaining, is_cut = limit, False
    for lookup, ids in _selected(shards, request):
        if limit and len(ids) > remaining:
            ids, is_cut = ids[:remaining], True
        remaining -= len(ids)
        frames.append(lookup.frame(ids, lookup.symbols))
    labels = concat(frames)
    return Reply(pack(ListReply(labels.size, is_cut)), labels.to_frames())


def _labels(shards: Mapping[int, Shard], request: Request) -> Reply:
    names: set[str] = set()
    for lookup, ids in _selected(shards, request):
        names.update(lookup.names(ids))
    return _texts(names, unpack(request.body, SelectBody).limit)


def _values(shards: Mapping[int, Shard], request: Request) -> Reply:
    body = unpack(request.body, SelectBody)
    values: set[str] = set()
    columns: list[Codes] = []
    for lookup, ids in _selected(shards, request):
        if len(ids):
            symbols = lookup.symbols  # shared by all shards of the worker
            columns.append(distinct(lookup.column(ids, body.name)))
    codes = distinct(np.concatenate(columns)) if columns else np.zeros(0, dtype=np.int32)
    codes = codes[codes != 0]
    for first in range(0, len(codes), VALUES_AT_ONCE):
        check(request, f"{request.method} ran out of time; ask for less at a time")
        values.update(symbols.texts(codes[first : first + VALUES_AT_ONCE]))
    return _texts(values, body.limit)


def _exemplars(shards: Mapping[int, Shard], request: Request) -> Reply:
    body = unpack(request.body, SelectBody)
    labels: list[LabelFrame] = []
    records: list[ExemplarRecord] = []
    counts: list[NDArray[np.int64]] = []
    remaining, is_cut = body.limit or np.iinfo(np.int64).max, False
    for number, shard in shards.items():
        require_time = partial(_require_time, request, number)
        require_time()
        lookup, record = shard.series.find_exemplars(body.selectors, body.start_ms, body.end_ms, require_time)
        if len(record) > remaining:
            record, is_cut = record.between(0, remaining), True
        remaining -= len(record)
        ids, shard_counts = np.unique(record.series, return_counts=True)
        labels.append(lookup.frame(ids, lookup.symbols))
        records.append(record)
        counts.append(shard_counts)
    all_labels, all_exemplars = concat(labels), joined(records)
    columns = (np.concatenate(counts), all_exemplars.times_ms, all_exemplars.values, all_exemplars.label_offsets)
    frames = [*all_labels.to_frames(), *(column.tobytes() for column in (*columns, all_exemplars.labels))]
    return Reply(pack(ExemplarsReply(all_labels.size, len(all_exemplars), is_cut)), frames)


def _metadata_put(shards: Mapping[int, Shard], request: Request) -> Reply:
    left_out = 0
    for number, shard in shards.items():
        for frame in request.parts[number]:
            left_out += shard.series.metadata.put(unpack(frame, MetadataPut).entries)
    return Reply(pack(MetadataPutReply(left_out)))


def _metadata(shards: Mapping[int, Shard], request: Request) -> Reply:
    body = unpack(request.body, MetadataBody)
    selected = [shard.series.metadata.find(body.family, body.limit) for shard in shards.values()]
    entries = [entry for shard_entries, _ in selected for entry in shard_entries]
    return Reply(pack(MetadataReply(entries, any(is_cut for _, is_cut in selected))))


def _texts(texts: set[str], limit: int) -> Reply:
    ordered = sorted(texts)
    is_cut = bool(limit) and len(ordered) > limit
    return Reply(pack(TextsReply(ordered[:limit] if is_cut else ordered, is_cut)))


def _with_damage_warnings(
    method: Callable[[Mapping[int, Shard], Request], Reply],
) -> Callable[[Mapping[int, Shard], Request], Reply]:
    """The method, with a warning for each damage in the requested time range."""

    def run(shards: Mapping[int, Shard], request: Request) -> Reply:
        reply = method(shards, request)
        body = unpack(request.body, SelectBody)
        for number, shard in shards.items():
            damage = shard.series.damage(body.start_ms, body.end_ms)
            reply.warnings = [*reply.warnings, *(f"shard {number}: {text}" for text in damage)]
        return reply

    return run


METHODS: dict[str, Method] = {
    "series.write": Method(_write, "write"),
    "series.delete": Method(_delete, "write"),
    "series.metadata_put": Method(_metadata_put, "write"),
    "series.metadata": Method(_metadata, "query"),
    "series.list": Method(_with_damage_warnings(_list), "query"),
    "series.labels": Method(_with_damage_warnings(_labels), "query"),
    "series.exemplars": Method(_exemplars, "query"),
    "series.values": Method(_with_damage_warnings(_values), "query"),
}
