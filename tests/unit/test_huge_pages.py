"""Memory in use is collapsed into huge pages, where the kernel can, and untouched memory stays untouched."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
import pytest

from shared.process import huge_pages
from shared.process.huge_pages import HUGE_BYTES, Span, collapse, mappings

BLOCKS = 8


def mapping(blocks: int) -> np.ndarray:
    pages = mmap.mmap(-1, blocks * HUGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return np.frombuffer(pages, np.uint8)


def span_of(array: np.ndarray) -> Span:
    return array.ctypes.data, array.ctypes.data + array.nbytes


def measured(array: np.ndarray, name: str) -> int:
    """Bytes of this figure of the mapping with the array."""
    start = span_of(array)[0]
    is_it = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        addresses = line.split()[0].split("-")
        if len(addresses) == 2:
            is_it = int(addresses[0], 16) <= start < int(addresses[1], 16)
        elif is_it and line.startswith(name + ":"):
            return int(line.split()[1]) << 10
    raise AssertionError(f"no {name} of {start:#x}")


def test_used_memory_is_collapsed_and_keeps_its_content() -> None:
    array = mapping(BLOCKS)
    half = array[: len(array) // 2]
    half[:] = np.arange(len(half)) % 251
    whole_blocks = list(collapse(span_of(half)))
    if not any(whole_blocks):
        pytest.skip("this kernel does not collapse memory on demand")
    assert len(whole_blocks) >= BLOCKS // 2 - 1
    assert measured(array, "AnonHugePages") >= sum(whole_blocks) * HUGE_BYTES
    assert (half == np.arange(len(half)) % 251).all() and not array[len(half) :].any()


def test_memory_that_is_about_to_be_filled_gets_huge_pages_at_once() -> None:
    array, other = mapping(BLOCKS), mapping(1)
    if not huge_pages.is_wanted():
        pytest.skip("this machine is told to have no huge pages")
    expected = array[100:-100]  # the ends are in pages with something else
    huge_pages.expect(expected)
    assert measured(array, "Rss") == 0
    expected[:] = 1
    assert measured(array[2 * HUGE_BYTES :], "AnonHugePages") >= (BLOCKS - 3) * HUGE_BYTES
    huge_pages.expect(other[:100])
    assert not array[:100].any()


def test_untouched_memory_stays_without_pages() -> None:
    array = mapping(BLOCKS)
    array[:: 2 * huge_pages.PAGE_BYTES] = 1  # every other page: such a block would take twice as much
    blocks = range(-(-span_of(array)[0] // HUGE_BYTES), span_of(array)[1] // HUGE_BYTES)
    resident = [huge_pages._resident_share(block * HUGE_BYTES) for block in blocks]
    assert not list(collapse(span_of(array)))
    assert resident == [huge_pages._resident_share(block * HUGE_BYTES) for block in blocks] == [0.5] * len(blocks)


def test_freed_memory_is_left_alone() -> None:
    pages = mmap.mmap(-1, BLOCKS * HUGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    array = np.frombuffer(pages, np.uint8)
    span = span_of(array)
    del array
    pages.close()
    assert not list(collapse(span))


def test_arrays_and_heaps_are_found_and_files_are_not(tmp_path: Path) -> None:
    array = mapping(BLOCKS)
    (tmp_path / "file").write_bytes(bytes(2 * HUGE_BYTES))
    filed = np.memmap(tmp_path / "file", np.uint8, "c")
    spans = mappings()
    assert [first <= span_of(array)[0] < last for first, last in spans].count(True) == 1
    assert not any(first <= filed.ctypes.data < last for first, last in spans)
    maps = Path("/proc/self/maps").read_text().splitlines()
    bounds = [line.split()[0].split("-") for line in maps if line.endswith("[heap]")]
    heaps = {(int(first, 16), int(last, 16)) for first, last in bounds}
    assert {(first, last) for first, last in heaps if last - first >= HUGE_BYTES} <= set(spans)


@pytest.mark.parametrize(
    ("setting", "wanted"), [("always [madvise] never", True), ("[always] madvise never", True), ("[never]", False)]
)
def test_they_are_not_wanted_where_the_machine_says_never(
    setting: str, wanted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huge_pages, "_SETTING", str(tmp_path / "enabled"))
    assert not huge_pages.is_wanted()
    (tmp_path / "enabled").write_text(setting)
    assert huge_pages.is_wanted() is wanted
