"""Compiled kernels on disk: whole or not there, made by one process at a time, and removed when nobody uses them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from shared.kernels import cache as kernel_cache

ROOT = Path(__file__).resolve().parents[2]
DAY_S = 86_400


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The directory of this process, empty."""
    monkeypatch.setenv(kernel_cache.VARIABLE, str(tmp_path / "kernels"))
    cached = (kernel_cache.directory, kernel_cache._claims_file)
    for function in cached:
        function.cache_clear()
    yield tmp_path / "kernels"
    for function in cached:
        function.cache_clear()


def names(place: Path) -> set[str]:
    return {path.name for path in place.iterdir()}


def age(path: Path, days: float) -> None:
    os.utime(path, (time.time() - days * DAY_S,) * 2)


def test_what_was_written_is_read_again(own: Path) -> None:
    assert kernel_cache.read("one", "code") is None and not kernel_cache.has("one", "code")
    kernel_cache.write("one", "code", b"machine code")
    assert kernel_cache.read("one", "code") == b"machine code" and kernel_cache.has("one", "code")
    assert kernel_cache.read("one", "types") is None
    kernel_cache.write("one", "code", b"other code")
    assert kernel_cache.read("one", "code") == b"other code"
    assert names(own) == {"one.code"}


@pytest.mark.parametrize("content", [b"", b"\0\0\0\0", b"abc", b"\0" * 64])
def test_a_file_that_is_not_whole_is_as_none(own: Path, content: bytes) -> None:
    kernel_cache.write("one", "code", b"machine code")
    (own / "one.code").write_bytes(content)
    assert kernel_cache.read("one", "code") is None
    whole = (kernel_cache.write("one", "code", b"machine code"), (own / "one.code").read_bytes())[1]
    for length in range(len(whole)):
        (own / "one.code").write_bytes(whole[:length])
        assert kernel_cache.read("one", "code") is None
    (own / "one.code").write_bytes(whole[:-1] + b"!")
    assert kernel_cache.read("one", "code") is None


def test_a_place_that_cannot_be_written_costs_no_request(own: Path) -> None:
    own.write_bytes(b"a file where the directory should be")
    kernel_cache.write("one", "code", b"machine code")
    assert kernel_cache.read("one", "code") is None
    with kernel_cache.claimed("one") as is_mine:
        assert is_mine
    assert kernel_cache.tidy() == 0


def test_only_files_go_that_no_process_has_read_for_long(own: Path) -> None:
    for name, days in (("old", 31), ("recent", 29), ("read", 31)):
        for kind in ("code", "types"):
            kernel_cache.write(name, kind, b"x")  # type: ignore[arg-type]
            age(own / f"{name}.{kind}", days)
    (own / "others").touch()
    age(own / "others", 99)
    (own / "died.17.tmp").touch()
    age(own / "died.17.tmp", 99)
    kernel_cache.read("read", "code")
    assert kernel_cache.tidy() == 4
    assert names(own) == {"recent.code", "recent.types", "read.code", "others"}
    assert kernel_cache.tidy() == 0


CLAIM = """
import sys
from shared.kernels import cache as kernel_cache
with kernel_cache.claimed(sys.argv[1]) as is_mine:
    print(is_mine, flush=True)
    sys.stdin.read()
"""


def claimer(name: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", CLAIM, name],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_one_process_at_a_time_claims_a_kernel_until_it_is_done_or_dead(own: Path) -> None:
    for end in (subprocess.Popen.kill, lambda other: other.stdin.close()):
        other = claimer("one")
        try:
            assert other.stdout is not None and other.stdout.readline() == "True\n"
            with kernel_cache.claimed("one") as is_mine:
                assert not is_mine
            with kernel_cache.claimed("two") as is_mine:
                assert is_mine
        finally:
            end(other)
            other.wait(30)
        with kernel_cache.claimed("one") as is_mine:
            assert is_mine
            third = claimer("one")
            assert third.communicate(timeout=30)[0] == "False\n"
