"""Files for answers that are not taken: what goes into them comes out, within the bounds of the spool and the disk."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections import deque
from collections.abc import Callable, Container, Iterator
from pathlib import Path

import pytest

from coordinator.limits import spool as module
from coordinator.limits.connections import Waiting
from coordinator.limits.spool import GRANT_BYTES, READ_BYTES, Spool, SpoolFile
from tests.unit.test_connections import Connection

MB = 1 << 20


def ends_nobody(_: Container[Waiting]) -> Waiting | None:
    return None


def numbered(count: int, size: int = MB) -> list[bytes]:
    return [bytes([number]) * size for number in range(count)]


def following(pieces: list[bytes]) -> Callable[[], bytes | None]:
    left: Iterator[bytes] = iter(pieces)
    return lambda: next(left, None)


def names(directory: Path) -> list[str]:
    return os.listdir(directory)


async def content(file: SpoolFile) -> bytes:
    return b"".join([piece async for piece in file.pieces()])


async def closed(spool: Spool) -> None:
    """Return when the threads have done what was asked of them."""
    for _ in range(module.THREADS):
        await spool.in_thread(lambda: None)


async def test_a_file_gives_what_was_written_in_small_pieces(tmp_path: Path) -> None:
    spool = Spool(tmp_path, 64 * MB, ends_nobody)
    pieces = [b"first", *numbered(9), b"last"]
    async with spool.file(Connection()) as file:
        assert await file.fill(deque(pieces[:2]), following(pieces[2:]))
        sizes = [len(piece) async for piece in file.pieces()]
        assert await content(file) == b"".join(pieces)
        assert max(sizes) == READ_BYTES
        assert spool.bytes == file.size == len(b"".join(pieces))
    assert spool.bytes == 0


async def test_nothing_has_a_name_in_the_directory(tmp_path: Path) -> None:
    spool = Spool(tmp_path, 64 * MB, ends_nobody)
    async with spool.file(Connection()) as file:
        assert await file.fill(deque([b"text"]), following([]))
        assert names(tmp_path) == []


async def test_what_has_no_room_in_the_spool_stays_where_it_is(tmp_path: Path) -> None:
    spool = Spool(tmp_path, 2 * GRANT_BYTES, ends_nobody)
    pieces = numbered(20)
    left, more = deque(pieces[:1]), following(pieces[1:])
    async with spool.file(Connection()) as file:
        assert not await file.fill(left, more)
        written = await content(file)
        assert written
        assert spool.bytes <= 2 * GRANT_BYTES
    rest = [*left]
    while (piece := more()) is not None:
        rest.append(piece)
    assert written + b"".join(rest) == b"".join(pieces)


async def test_a_full_disk_leaves_the_piece_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = os.pwrite, []

    def pwrite(number: int, data: memoryview, at: int) -> int:
        calls.append(at)
        if len(calls) == 4:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(number, data[: MB // 2], at)  # as a disk does that is nearly full

    monkeypatch.setattr(module.os, "pwrite", pwrite)
    spool = Spool(tmp_path, 64 * MB, ends_nobody)
    left = deque(numbered(3))
    async with spool.file(Connection()) as file:
        assert not await file.fill(left, following([]))
        assert await content(file) == numbered(1)[0]
        assert list(left) == numbered(3)[1:]
        assert spool.bytes == MB


async def test_a_file_that_lost_its_end_is_an_error(tmp_path: Path) -> None:
    spool = Spool(tmp_path, 64 * MB, ends_nobody)
    async with spool.file(Connection()) as file:
        assert await file.fill(deque([b"text" * 1000]), following([]))
        assert file._file is not None
        os.truncate(file._file.fileno(), 100)
        with pytest.raises(OSError, match="has 100 bytes at 0, it must have 4000"):
            await content(file)


async def test_a_disk_that_hangs_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "IO_TIMEOUT_S", 0.05)
    release = threading.Event()

    def hang() -> bytes | None:
        release.wait(10)
        return None

    spool = Spool(tmp_path, 64 * MB, ends_nobody)
    try:
        async with spool.file(Connection()) as file:
            with pytest.raises(OSError):
                await file.fill(deque(), hang)
    finally:
        release.set()
    assert spool.bytes == 0


async def test_a_cancelled_answer_gives_its_room_and_its_file_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release, begun = threading.Event(), threading.Event()

    def slow() -> bytes | None:
        begun.set()
        release.wait(10)
        return b"late"

    spool = Spool(tmp_path, 64 * MB, ends_nobody)
    files: list[SpoolFile] = []

    async def answer() -> None:
        async with spool.file(Connection()) as file:
            files.append(file)
            await file.fill(deque([b"text"]), slow)

    task = asyncio.create_task(answer())
    await asyncio.to_thread(begun.wait, 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert spool.bytes == 0
    release.set()
    for _ in range(100):
        await closed(spool)
        if files[0]._is_closed:
            break
    assert files[0]._file is not None
    assert files[0]._file.closed


async def test_the_slowest_reader_makes_room(tmp_path: Path) -> None:
    slow, quick = Connection("slow"), Connection("quick")
    asked: list[list[Waiting]] = []

    def end_slowest(among: Container[Waiting]) -> Waiting | None:
        asked.append([one for one in (slow, quick) if one in among])
        return slow if slow in among else None

    spool = Spool(tmp_path, GRANT_BYTES + MB, end_slowest)
    async with spool.file(slow) as first, spool.file(quick) as second:
        assert await first.fill(deque(numbered(3)), following([]))
        assert await second.fill(deque(numbered(2)), following([]))
        assert asked == [[slow, quick]]
        assert spool.bytes == 2 * MB
    assert spool.bytes == 0
