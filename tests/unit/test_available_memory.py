"""Memory that is left in control groups of both versions."""

from __future__ import annotations

import errno
from pathlib import Path

import psutil
import pytest

from coordinator.limits.available_memory import Memory, control_groups

V1 = {"memory.limit_in_bytes": "1000", "memory.usage_in_bytes": "700", "memory.stat": "cache 9\ntotal_inactive_file 50"}
V2 = {"memory.max": "1000", "memory.current": "700", "memory.stat": "anon 1\ninactive_file 50\nactive_file 9"}


def tree(tmp_path: Path, own: str, **directories: dict[str, str]) -> tuple[Path, Path]:
    """(The file that names the groups of this process, the root of all groups); `_` stands for the root itself."""
    for name, files in directories.items():
        directory = tmp_path / "root" / name.replace("__", "/").replace("_", "")
        directory.mkdir(parents=True, exist_ok=True)
        for file, text in files.items():
            (directory / file).write_text(text + "\n")
    (tmp_path / "own").write_text(own)
    return tmp_path / "own", tmp_path / "root"


def available(own: Path, root: Path) -> list[int | None]:
    return [group.available_bytes() for group in control_groups(own, root)]


def test_what_is_left_is_the_limit_less_what_is_used_but_for_contents_of_files(tmp_path: Path) -> None:
    assert available(*tree(tmp_path, "0::/a/b\n", a__b=V2)) == [350]


def test_groups_around_the_own_one_count_too(tmp_path: Path) -> None:
    outer = V2 | {"memory.max": "2000", "memory.current": "1900"}
    assert available(*tree(tmp_path, "0::/a/b\n", a__b=V2, a=outer, _={"memory.max": "max"})) == [350, 150]


def test_in_a_container_the_path_is_the_hosts_and_the_top_group_is_the_own_one(tmp_path: Path) -> None:
    assert available(*tree(tmp_path, "0::/host/path\n", _=V2)) == [350]


def test_version_1_has_other_files_and_a_number_for_no_limit(tmp_path: Path) -> None:
    own = "5:cpu:/x\n4:memory,hugetlb:/a\n"
    assert available(*tree(tmp_path, own, memory__a=V1, cpu__x=V1)) == [350]
    unlimited = V1 | {"memory.limit_in_bytes": str((1 << 63) - 4096)}
    assert available(*tree(tmp_path, own, memory__a=unlimited)) == []


def test_without_limits_or_groups_there_are_none(tmp_path: Path) -> None:
    assert available(*tree(tmp_path, "0::/a\n", a=V2 | {"memory.max": "max"})) == []
    assert control_groups(tmp_path / "missing", tmp_path) == []


def test_the_least_of_all_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    memory = Memory()
    memory._groups = control_groups(*tree(tmp_path, "0::/a\n", a=V2))
    assert memory.available_bytes() == 350
    assert memory.total_bytes() == 1000
    memory._groups = []
    assert memory.total_bytes() == psutil.virtual_memory().total


def test_a_machine_that_does_not_tell_has_what_it_had(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused() -> None:
        raise OSError(errno.EMFILE, "Too many open files", "/proc/meminfo")

    memory = Memory()
    memory._groups = []
    available = memory.available_bytes()
    monkeypatch.setattr(psutil, "virtual_memory", refused)
    assert memory.available_bytes() == available
