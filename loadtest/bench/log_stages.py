"""The cost of each stage of an append that handles single records, in ns of CPU time per record, in one process and
without sockets: `python -m loadtest.bench.log_stages`. 100-byte values over 1,000 keys, 1,000 records a request.

In addition, an append has the fixed cost of its request, of its group and of two messages (loadtest.bench.log).
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import cast

from coordinator.context import Context
from coordinator.direct.appends import DirectAppends
from coordinator.direct.plain_heads import PlainHead
from coordinator.log import records
from loadtest.bench.log_load import BODIES, KEYS, json_body, keys_from
from shared.messages.log import Batch
from shared.process import allocator
from shared.settings import Settings
from worker.logs import writing
from worker.logs.keeper import Keeper
from worker.logs.messages import Message
from worker.logs.part import LogPart
from worker.storage.rows.store import Store
from worker.storage.wal.log import LOG, WriteAheadLog

SHARDS = 8
GATHERINGS = 8


def ns_a_record(work: Callable[[], object], times: int, count: int) -> float:
    """The fastest of `times` calls, each of which works on so many records: other work on the machine only adds."""
    best = float("inf")
    for _ in range(times):
        began = time.thread_time_ns()
        work()
        best = min(best, time.thread_time_ns() - began)
    return best / count


def measure_requests(settings: Settings, times: int) -> None:
    context = SimpleNamespace(settings=settings, log=SimpleNamespace(knows_state=True))
    direct = DirectAppends(cast(Context, context))
    for name, (body_of, media_type) in BODIES.items():
        body = body_of(keys_from(0, KEYS))
        say(f"read a request, {name}", ns_a_record(partial(records.parse, media_type, body, settings), times, KEYS))
        batch = records.parse(media_type, body, settings).records
        head = PlainHead("POST", direct.path, b"", "localhost", media_type, "", "", len(body), takes_gzip=False)
        say(f"the same without aiohttp, {name}", ns_a_record(partial(direct.work, head, body), times, KEYS))
    say("hash and divide by shard", ns_a_record(lambda: batch.blocks(SHARDS), times, KEYS))
    body = json_body(keys_from(0, 1))
    say("read a request of one record, JSON", ns_a_record(lambda: records.one_plain(body, settings), times, 1))


def measure_gathering(settings: Settings) -> None:
    """Of one shard: into memory and the write-ahead log without an fsync, then from memory into the store."""
    body_of, media_type = BODIES["protobuf"]
    batch = records.parse(media_type, body_of(keys_from(0, KEYS)), settings)
    block = batch.records.blocks(SHARDS)[0]
    with tempfile.TemporaryDirectory() as directory:
        store, log = Store(Path(directory) / "store"), WriteAheadLog(Path(directory) / "wal").open()
        part = LogPart(store, Keeper(log), log.stream(0, LOG))
        part.load()
        part.keeper.leave(part)  # it is gathered here, so that its time is known
        fill_ns, gather_ns, start = [], [], 0
        for _ in range(GATHERINGS):
            before, began = part.counts()["records"], time.thread_time_ns()
            while not part.is_large():
                message = Message(0, start, start, start, (Batch(start, batch.count, (0,), "", 0, 1),), block)
                writing.append({0: (part, message)}, durable=False)
                start += batch.count
            filled = time.thread_time_ns()
            with part.lock:
                part.closed_below(start)
            part.gather()
            count = part.counts()["records"] - before
            fill_ns.append((filled - began) / count)
            gather_ns.append((time.thread_time_ns() - filled) / count)
        part.keeper.join(part)
        part.close()
        store.close()
        log.close()
    say("append to memory and log", min(fill_ns))
    say("gather into the store", min(gather_ns))


def say(stage: str, ns: float) -> None:
    sys.stdout.write(f"{stage:40}{ns:8,.0f} ns a record\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=300, help="of each work, of which the fastest counts")
    allocator.keep_pages()
    measure_requests(Settings(), parser.parse_args().times)
    measure_gathering(Settings())


if __name__ == "__main__":
    main()
