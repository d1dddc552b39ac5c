"""Memory in use is collapsed into huge pages, where the kernel can, and untouched memory stays untouched."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
import pytest

from shared import huge_pages
from shared.huge_pages import HUGE_BYTES, collapse, mappings, span_of

BLOCKS = 8


def mapping(blocks: int) -> np.ndarray:
    pages = mmap.mmap(-1, blocks * HUGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return np.frombuffer(pages, np.uint8)


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
    resident = measured(array, "Rss")
    whole_blocks = list(collapse(span_of(half)))
    if not any(whole_blocks):
        pytest.skip("this kernel does not collapse memory on demand")
    assert len(whole_blocks) >= BLOCKS // 2 - 1
    assert measured(array, "AnonHugePages") >= sum(whole_blocks) * HUGE_BYTES
    assert (half == np.arange(len(half)) % 251).all() and not array[len(half) :].any()
    assert resident >= len(half)


def test_untouched_memory_stays_without_pages() -> None:
    array = mapping(BLOCKS)
    array[:: 2 * huge_pages.PAGE_BYTES] = 1  # every other page: such a block would take twice as much
    resident = measured(array, "Rss")
    assert not list(collapse(span_of(array)))
    assert measured(array, "Rss") == resident


def test_freed_memory_is_left_alone() -> None:
    pages = mmap.mmap(-1, BLOCKS * HUGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    array = np.frombuffer(pages, np.uint8)
    span = span_of(array)
    del array
    pages.close()
    assert not list(collapse(span))


def test_large_mappings_without_a_name_are_found() -> None:
    array = mapping(BLOCKS)
    start, end = span_of(array)
    spans = mappings()
    assert any(first <= start and end <= last for first, last in spans)
    assert all(last - first >= huge_pages.MAPPING_BYTES_MIN for first, last in spans)
    heap = [line.split("-") for line in Path("/proc/self/maps").read_text().splitlines() if line.endswith("[heap]")]
    assert not {int(first, 16) for first, *_ in heap} & {first for first, _ in spans}


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
