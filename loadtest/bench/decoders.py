"""`python -m loadtest.bench.decoders`: the cost of decoding the worst bodies, printed as a table.

For each body: the total time, the longest time that other threads waited for the interpreter lock, the longest pause of
the event loop, and the peak memory. Each body has its own process, in which the handler of its path is called with a
complete request; the work after decoding fails at once.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any
from unittest import mock

import psutil
from aiohttp import streams, web
from aiohttp.test_utils import make_mocked_request

from coordinator.app import build
from coordinator.context import Context
from coordinator.dispatch import Dispatcher, _answered
from coordinator.limits.admission import Holder
from coordinator.limits.clients import Client
from coordinator.queries.gate import Gate
from loadtest.harness.worst_bodies import WORST
from shared.errors import Unavailable
from shared.kernels import compile_all
from shared.process.allocator import keep_pages
from shared.process.interpreter import collect_seldom, switch_often
from shared.settings import Settings

SIZE_BYTES = 63 << 20
TICK_S = 0.001
WITHIN_S = 120.0


class Ticker(threading.Thread):
    """Notes the longest time between two of its turns, in seconds; not what other processes took meanwhile."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.longest = 0.0
        self._ended = threading.Event()

    def run(self) -> None:
        last, used = time.perf_counter(), time.process_time()
        while not self._ended.is_set():
            time.sleep(TICK_S)
            now, used_now = time.perf_counter(), time.process_time()
            self.longest = max(self.longest, min(now - last, used_now - used))
            last, used = now, used_now

    def stop(self) -> None:
        self._ended.set()
        self.join()


async def note_pauses(pauses: list[float]) -> None:
    """Note the time between any two turns of the event loop, in seconds."""
    last = time.perf_counter()
    while True:
        await asyncio.sleep(TICK_S)
        now = time.perf_counter()
        pauses.append(now - last)
        last = now


def _context() -> Context:
    """A context whose areas store nothing."""
    links = mock.MagicMock(shards=8)
    areas = [mock.AsyncMock(), mock.AsyncMock(), mock.AsyncMock()]
    areas[0].append.side_effect = lambda append: _nothing(append.take_blocks(8))
    for area in (*areas[1:], areas[1].selected, links):
        for name in ("write", "delete", "get", "search", "create", "call", "fan_out", "scroll", "update"):
            setattr(area, name, mock.AsyncMock(side_effect=Unavailable("nothing is stored here")))
    log, vectors, samples = areas
    return Context(Settings(), links, mock.MagicMock(), log, vectors, samples, Gate(1))


def _nothing(_: object) -> tuple[int, int]:
    raise Unavailable("nothing is stored here")


def dispatcher() -> Dispatcher:
    """The handlers of all paths, with nothing behind them."""
    return Dispatcher(build(_context()))


async def answer(handlers: Dispatcher, body: bytes, path: str, content_type: str) -> tuple[int, str]:
    """(status, text) of what the handlers answer to this body."""
    method = "PUT" if "/cursors/" in path or "/collections/" in path else "POST"
    protocol = mock.Mock(_reading_paused=False, holder=Holder(Client("a bench")))
    payload = streams.StreamReader(protocol, limit=1 << 30, loop=asyncio.get_running_loop())
    payload.feed_data(body)
    payload.feed_eof()
    del body
    headers = {"Content-Type": content_type, "Content-Encoding": "snappy" if path == "/api/v1/write" else "identity"}
    mocked = make_mocked_request(method, path, headers, payload=payload)
    request = handlers._request(mocked._message, payload, protocol, mocked._payload_writer, mock.Mock())
    match = handlers._plain.get((method, path)) or handlers._bound(await handlers._app.router.resolve(request))
    request.match = match
    response = await _answered(request, match.handler)
    assert isinstance(response, web.Response)
    return response.status, (response.text or "")[:300]


def reset_peak() -> int:
    """Have the peak of this process's memory begin anew; returns the bytes it takes now."""
    Path("/proc/self/clear_refs").write_text("5")
    return int(psutil.Process().memory_info().rss)


def peak_bytes() -> int:
    """The most memory of this process since `reset_peak`."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))


async def measure(name: str, size_bytes: int) -> dict[str, Any]:
    path, content_type, make = WORST[name]
    body = make(size_bytes)
    handlers = dispatcher()
    before = reset_peak()
    blocks: list[float] = [0.0]
    ticks = asyncio.create_task(note_pauses(blocks))
    ticker = Ticker()
    ticker.start()
    await asyncio.sleep(0.02)
    ticker.longest, blocks[:] = 0.0, [0.0]
    started = time.perf_counter()
    status, text = await answer(handlers, body, path, content_type)
    took = time.perf_counter() - started
    await asyncio.sleep(2 * TICK_S)
    ticks.cancel()
    ticker.stop()
    return {
        "body": len(body),
        "s": took,
        "lock_ms": ticker.longest * 1000,
        "loop_ms": max(blocks) * 1000,
        "peak_mb": (peak_bytes() - before) / 1e6,
        "status": status,
        "text": text,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bytes", type=int, default=SIZE_BYTES)
    parser.add_argument("--only", default="", help="how the names of the bodies to measure begin")
    parser.add_argument("--one", default="", help="measure this one here, and print JSON")
    options = parser.parse_args()
    if options.one:
        keep_pages()
        compile_all()
        collect_seldom()
        switch_often()
        print(json.dumps(asyncio.run(measure(options.one, options.bytes))))
        return
    print(f"{'body':34}{'MB':>6}{'s':>8}{'lock ms':>9}{'loop ms':>9}{'peak MB':>9}  answer")
    for name in WORST:
        if not name.startswith(options.only):
            continue
        command = [sys.executable, "-m", __spec__.name, "--one", name, "--bytes", str(options.bytes)]
        try:
            ended = subprocess.run(command, capture_output=True, text=True, timeout=WITHIN_S)
        except subprocess.TimeoutExpired:
            print(f"{name:34} did not end within {WITHIN_S:g} s", flush=True)
            continue
        if ended.returncode:
            print(f"{name:34} ended with {ended.returncode}: {ended.stderr[-300:]}", flush=True)
            continue
        row = json.loads(ended.stdout.splitlines()[-1])
        figures = (
            f"{row['body'] / 1e6:6.1f}{row['s']:8.2f}{row['lock_ms']:9.1f}{row['loop_ms']:9.1f}{row['peak_mb']:9.0f}"
        )
        print(f"{name:34}{figures}  {row['status']} {row['text'][:110]}", flush=True)


if __name__ == "__main__":
    main()
