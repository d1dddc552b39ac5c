"""How fast one shard applies a policy that keeps the newest record of each key, and removes the others from its store:
`python -m loadtest.bench.log_removal`. In one process, without HTTP; 100-byte values."""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from pathlib import Path

from shared.hashing import hash64
from shared.log.blocks import block_of
from shared.messages.log import Batch, KeyPolicy, PoliciesBody
from worker.logs import cleaning, policies, writing
from worker.logs.keeper import Keeper
from worker.logs.messages import Message
from worker.logs.part import LogPart
from worker.storage.rows.store import Store
from worker.storage.wal.log import LOG, WriteAheadLog

BATCH_RECORDS = 10_000
VALUE = bytes(100)


def fill(part: LogPart, records: int, keys: int, chance: random.Random) -> None:
    names = [b"key/%d" % n for n in range(keys)]
    hashes = [hash64(name) for name in names]
    for start in range(0, records, BATCH_RECORDS):
        picked = chance.choices(range(keys), k=BATCH_RECORDS)
        block = block_of((hashes[key], at, names[key], VALUE) for at, key in enumerate(picked))
        batch = Batch(start, BATCH_RECORDS, (0,), "", 0, time.time_ns() // 1_000_000)
        failed = writing.append({0: (part, Message(0, start, start, start, (batch,), block))}, durable=False)
        assert not failed, failed


def measure(records: int, keys: int) -> str:
    with tempfile.TemporaryDirectory() as directory:
        store, log = Store(Path(directory) / "store"), WriteAheadLog(Path(directory) / "wal").open()
        part = LogPart(store, Keeper(log), log.stream(0, LOG))
        part.load()
        part.keeper.cleaner.leave(part)  # it is done here, so that its time is known
        fill(part, records, keys, random.Random(1))
        body = PoliciesBody([KeyPolicy(b"", 1)], [0], records, records, True, [0])
        with part.lock:
            part.closed_below(records)
        part.gather()
        find_s = remove_s = 0.0
        more = True
        while more:
            began = time.thread_time()
            more = policies.run(part, body)
            body.is_new = False
            found = time.thread_time()
            while (not more or len(part.starts) > policies.WAITING_MAX // 2) and cleaning.clean(part):
                pass
            find_s, remove_s = find_s + found - began, remove_s + time.thread_time() - found
        removed = records - part.counts()["records"]
        part.keeper.cleaner.join(part)
        part.close()
        store.close()
        log.close()
    text = f"{records} records of {keys} keys: {removed} removed, {removed / (find_s + remove_s):,.0f}/s of CPU time"
    return f"{text} (policy {find_s:.2f} s, removal {remove_s:.2f} s)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--keys", type=int, nargs="*", default=[1_000, 100_000])
    arguments = parser.parse_args()
    for keys in arguments.keys:
        print(measure(arguments.records, keys), flush=True)


if __name__ == "__main__":
    main()
