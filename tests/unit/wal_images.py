"""Write-ahead logs on the disk, as orderly stops, kills and damage leave them, for tests."""

from __future__ import annotations

import shutil
from pathlib import Path

from worker.storage.wal import reading
from worker.storage.wal.log import LOG, SERIES, Stream, WriteAheadLog

SMALL = 4096


def opened(directory: Path) -> WriteAheadLog:
    return WriteAheadLog(directory, file_bytes=SMALL).open()


def held(stream: Stream) -> list[bytes]:
    return [bytes(payload) for _, payload in stream.records()]


def payload(shard: int, number: int) -> bytes:
    """As long as its number is odd: 9 to 600 bytes."""
    return b"%02d:%04d:" % (shard, number) + bytes([number % 251]) * (1 + number * 37 % 592)


def written(directory: Path, count: int, first: int = 0, shards: int = 3) -> WriteAheadLog:
    """A log of `count` records each of some shards, in both areas in turns, synced after every fourth."""
    log = opened(directory)
    for number in range(first, first + count):
        for shard in range(shards):
            log.stream(shard, SERIES if number % 2 else LOG).write([payload(shard, number)])
        if number % 4 == 3:
            log.sync()
    return log


def killed(log: WriteAheadLog, image: Path) -> Path:
    """What a process that is killed at this moment leaves, in `image`."""
    assert log._files is not None
    with log._files._preparing:  # nothing changes while it is copied
        shutil.copytree(log._directory, image)
    return image


def flip(path: Path, at: int, bit: int = 0) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1 << bit
    path.write_bytes(content)


def files_with_records(directory: Path) -> list[Path]:
    return [content.path for content in reading.survey(directory).used if content.records]


def everything(log: WriteAheadLog, shards: int = 3) -> dict[tuple[int, int], list[bytes]]:
    return {(shard, area): held(log.stream(shard, area)) for shard in range(shards) for area in (SERIES, LOG)}


def expected(count: int, shards: int = 3) -> dict[tuple[int, int], list[bytes]]:
    return {
        (shard, area): [payload(shard, number) for number in range(count) if number % 2 == (area == SERIES)]
        for shard in range(shards)
        for area in (SERIES, LOG)
    }
