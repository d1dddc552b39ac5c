"""Images of an open store, and of the write-ahead log, while both are written."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from shared.errors import Unavailable
from worker.storage.rows import image
from worker.storage.rows.check import opened
from worker.storage.rows.store import Store
from worker.storage.wal import reading, register
from worker.storage.wal.log import LOG, SERIES, WriteAheadLog

IMAGES = 25


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path / "store")
    yield store
    store.close()


def put(store: Store, number: int, *, durable: bool = False) -> None:
    """One batch: the number in two families."""
    batch = store.batch()
    for family in ("meta", "vectors"):
        batch.put(family, number.to_bytes(8, "big"), b"x" * 2000)
    batch.put("blocks", b"last", number.to_bytes(8, "big"))
    store.write(batch, durable=durable)


def numbers(path: Path) -> list[int]:
    """The numbers in the image. Asserts that every batch is in it whole."""
    with opened(path) as rows:
        first, second = ([int.from_bytes(key, "big") for key, _ in rows.scan(family)] for family in ("meta", "vectors"))
        last = rows.get("blocks", b"last")
        assert first == second
        assert (int.from_bytes(last, "big") if last else None) == (max(first) if first else None)
        assert rows.writes == len(first)
        return first


def test_images_are_of_one_moment_each_whatever_the_store_does_meanwhile(store: Store, tmp_path: Path) -> None:
    written = -1
    stopping = threading.Event()

    def write() -> None:
        nonlocal written
        while not stopping.is_set() and written < 20_000:
            put(store, written + 1)
            written += 1

    def change_files() -> None:
        while not stopping.is_set():
            store.flush_all()
            store.reclaim("meta", b"", b"\xff")
            stopping.wait(0.01)  # without a pause between two changes, no image can be made

    threads = [threading.Thread(target=work) for work in (write, change_files)]
    for thread in threads:
        thread.start()
    try:
        least = []
        for number in range(IMAGES):
            least.append(written)
            store.make_image(tmp_path / f"image-{number}")
    finally:
        stopping.set()
        for thread in threads:
            thread.join()
    for number in range(IMAGES):
        there = numbers(tmp_path / f"image-{number}")
        assert there == list(range(len(there)))
        assert len(there) > least[number]


def test_a_flush_waits_until_an_image_is_made(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise flushes, one after the other, could keep an image from being made for ever."""
    flush = threading.Thread(target=store.flush, args=("meta",))

    def make(path: Path, target: Path) -> None:
        flush.start()
        flush.join(0.2)
        assert flush.is_alive()

    put(store, 0)
    monkeypatch.setattr(image, "make", make)
    store.make_image(tmp_path / "image")
    flush.join(10)
    assert not flush.is_alive()


def test_an_image_does_not_change_and_is_a_store(store: Store, tmp_path: Path) -> None:
    put(store, 0)
    store.flush_all()
    put(store, 1)
    store.make_image(tmp_path / "image")
    before = {path.name: path.read_bytes() for path in (tmp_path / "image").iterdir()}
    for number in range(2, 200):
        put(store, number)
    store.flush_all()
    store.reclaim("meta", b"", b"\xff")
    assert {path.name: path.read_bytes() for path in (tmp_path / "image").iterdir()} == before
    copy = Store(tmp_path / "image")
    assert [int.from_bytes(key, "big") for key in copy.keys("meta")] == [0, 1]
    put(copy, 2)
    copy.close()


def test_an_image_of_files_that_always_change_is_refused(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = image.store_manifest.current, 0

    def changing(path: Path) -> tuple[int, int]:
        nonlocal calls
        calls += 1
        number, size = real(path)
        return number, size - calls

    monkeypatch.setattr(image.store_manifest, "current", changing)
    with pytest.raises(Unavailable, match="have changed"):
        store.make_image(tmp_path / "image")


def test_a_frozen_log_has_what_was_written_before_and_its_files_are_not_used_again(tmp_path: Path) -> None:
    log = WriteAheadLog(tmp_path / "log", file_bytes=1 << 16).open()
    stream, other = log.stream(0, SERIES), log.stream(1, LOG)
    for number in range(100):
        stream.write([b"before %d " % number, bytes(3000)])
    other.write([b"other"])
    view = tmp_path / "view"
    view.mkdir()
    assert log._files is not None
    log._files.want()
    while not log._files.is_ready():  # a file that is listed and takes no records yet
        time.sleep(0.001)
    listing = log.freeze(lambda path: os.link(path, view / path.name))
    (view / register.NAME).write_bytes(listing)
    for number in range(300):
        position = stream.write([b"after %d " % number, bytes(3000)])
        stream.release(position)
        other.release(position)
    log.sync()
    survey = reading.survey(view)
    records = [bytes(payload[:9]).split()[0] for content in survey.used for _, payload in content.records]
    assert records.count(b"before") == 100 and records.count(b"other") == 1 and len(records) == 101
    assert not survey.losses and not any(content.losses or content.cut for content in survey.used)
    log.close()
    copy = WriteAheadLog(view).open()
    assert len(list(copy.stream(0, SERIES).records())) == 100
    assert copy.losses_of(0) == copy.losses_of(1) == []
    copy.close()
