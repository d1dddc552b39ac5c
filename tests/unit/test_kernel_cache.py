"""The directories of compiled kernels: those of other versions go when nobody has used them for long."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import numba
import pytest

from shared import kernel_cache

DAY_S = 86_400


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of this process, which has none of its own beside it yet."""
    directory = made(tmp_path, "kernels-own", days=0)
    monkeypatch.setattr(kernel_cache, "_own", directory)
    return directory


def made(place: Path, name: str, days: float) -> Path:
    """A directory with a kernel that was last used so many days ago."""
    directory = place / name
    (directory / "sub").mkdir(parents=True)
    (directory / "sub" / "kernel.nbc").write_bytes(b"code")
    used_at = time.time() - days * DAY_S
    os.utime(directory, (used_at, used_at))
    return directory


def names(place: Path) -> set[str]:
    return {path.name for path in place.iterdir()} - {"kernels.lock"}


def test_only_the_kernels_of_other_versions_go_that_were_not_used_for_long(own: Path) -> None:
    for name, days in (("kernels-old", 31), ("kernels-recent", 29), ("others", 99), ("removed-kernels-died-1", 0)):
        made(own.parent, name, days)
    os.utime(own, (0, 0))
    (own.parent / "kernels-file").touch()
    os.utime(own.parent / "kernels-file", (0, 0))
    assert kernel_cache.tidy() == 1
    assert names(own.parent) == {"kernels-own", "kernels-recent", "others", "kernels-file"}
    assert kernel_cache.tidy() == 0


def test_nothing_is_removed_beside_a_directory_that_the_environment_names(
    own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(own.parent, "kernels-old", 99)
    monkeypatch.setattr(kernel_cache, "_own", None)
    assert kernel_cache.tidy() == 0
    assert names(own.parent) == {"kernels-own", "kernels-old"}


def test_a_process_notes_that_it_uses_its_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = made(tmp_path, "kernels-mine", days=99)
    monkeypatch.setattr(kernel_cache, "_own", None)
    monkeypatch.setattr(kernel_cache, "_directory", lambda: mine)
    monkeypatch.setattr(numba.config, "CACHE_DIR", numba.config.CACHE_DIR)
    monkeypatch.setenv(kernel_cache.VARIABLE, "")
    monkeypatch.delenv(kernel_cache.VARIABLE)
    kernel_cache.use()
    assert os.environ[kernel_cache.VARIABLE] == str(mine)
    monkeypatch.setattr(kernel_cache, "_own", made(tmp_path, "kernels-another", days=0))
    assert kernel_cache.tidy() == 0
    assert (mine / "sub" / "kernel.nbc").exists()


def test_a_use_that_is_noted_meanwhile_finds_the_directory_whole_or_gone(
    own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user comes between the look at the directory and its removal, and must wait for the end of both."""
    old = made(own.parent, "kernels-old", 99)
    rename, seen = Path.rename, []

    def slow_rename(path: Path, target: Path) -> Path:
        user.start()
        time.sleep(0.05)
        seen.append(user.is_alive())
        return rename(path, target)

    user = threading.Thread(target=kernel_cache._note_use, args=(old,))
    monkeypatch.setattr(Path, "rename", slow_rename)
    assert kernel_cache.tidy() == 1
    user.join()
    assert seen == [True]
    assert names(own.parent) == {"kernels-own"}


def test_many_may_tidy_at_once(own: Path) -> None:
    for number in range(20):
        made(own.parent, f"kernels-{number}", 99)
    removed: list[int] = []
    threads = [threading.Thread(target=lambda: removed.append(kernel_cache.tidy())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(removed) == 20
    assert names(own.parent) == {"kernels-own"}


def test_a_lock_that_is_never_given_back_holds_nobody_up(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_cache, "LOCK_WAIT_S", 0.02)
    old = made(own.parent, "kernels-old", 99)
    with kernel_cache._locked(own.parent):
        kernel_cache._note_use(old)
        assert kernel_cache.tidy() == 0
    assert kernel_cache.tidy() == 1


def test_a_place_that_cannot_be_written_is_left_as_it_is(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = made(own.parent, "kernels-old", 99)
    (own.parent / "kernels.lock").mkdir()  # nobody can open it, whoever runs this
    kernel_cache._note_use(old)
    assert kernel_cache.tidy() == 0
    assert names(own.parent) == {"kernels-own", "kernels-old"}
