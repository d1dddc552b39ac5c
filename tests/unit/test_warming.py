"""Filling the cache of kernels, ahead of a start and beside requests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from coordinator import warm
from shared.kernels.cache import VARIABLE

ROOT = Path(__file__).resolve().parents[2]
WITHIN_S = 120.0

PROGRAM = """
import os, sys
from shared.kernels import types
from shared import telemetry, warming
from shared.kernels import kernel

@kernel(types.int64(types.int64))
def one(x):
    return x + 1

@kernel(types.int64(types.int64))
def two(x):
    return one(x) + one(x + 1)
"""


def run(directory: Path, text: str) -> subprocess.CompletedProcess[str]:
    path = directory / "program.py"
    path.write_text(PROGRAM + text)
    env = os.environ | {"PYTHONPATH": str(ROOT), VARIABLE: str(directory / "cache")}
    return subprocess.run(
        [sys.executable, str(path)], env=env, capture_output=True, text=True, check=False, timeout=WITHIN_S
    )


def test_filling_says_what_it_does_and_a_second_time_that_nothing_is_left(tmp_path: Path) -> None:
    filling = "warming.fill('tests')\n"
    first, *others, last = run(tmp_path, filling).stdout.splitlines()
    assert first == "2 of 2 kernels of the tests are compiled now, once for this version"
    assert all(line.endswith(" of 2 kernels of the tests") for line in others)
    assert last.startswith("2 kernels of the tests are compiled, in ")
    assert len(list((tmp_path / "cache").glob("__main__.*.code"))) == 2
    assert run(tmp_path, filling).stdout == "2 kernels of the tests are compiled already\n"


def test_a_kernel_that_cannot_be_compiled_ends_the_filling_with_an_error(tmp_path: Path) -> None:
    wrong = "@kernel(types.int64(types.int64))\ndef wrong(x):\n    return x.nothing\n\nwarming.fill('tests')\n"
    done = run(tmp_path, wrong)
    assert done.returncode == 1
    assert done.stderr.endswith("kernels of the tests could not be compiled\n") and "wrong" in done.stderr


@pytest.mark.parametrize(
    ("cache", "why"), [("/sys/kernel", "Permission denied"), ("{directory}/program.py/kernels", "Not a directory")]
)
def test_a_cache_that_cannot_be_written_ends_the_filling_with_an_error_that_names_it(
    tmp_path: Path, cache: str, why: str
) -> None:
    directory = cache.format(directory=tmp_path)
    done = run(tmp_path, f"os.environ['{VARIABLE}'] = '{directory}'\nwarming.fill('tests')\n")
    assert (done.returncode, done.stdout) == (1, "")
    assert (
        f"kernels of the tests cannot be stored: the kernel cache {directory} cannot be written ({why})" in done.stderr
    )


def test_kernels_that_were_compiled_but_not_stored_end_the_filling_with_an_error(tmp_path: Path) -> None:
    full = (
        "import resource\n"
        "compile_kernels = warming._compile\n"
        "def compile_on_a_full_disk():\n"
        "    resource.setrlimit(resource.RLIMIT_FSIZE, (100, -1))\n"
        "    compile_kernels()\n"
        "warming._compile = compile_on_a_full_disk\n"
        "warming.fill('tests')\n"
    )
    done = run(tmp_path, full)
    assert done.returncode == 1
    assert f"2 of 2 kernels of the tests are missing from {tmp_path}/cache" in done.stderr
    assert run(tmp_path, "warming.fill('tests')\n").returncode == 0


def test_beside_requests_kernels_are_compiled_only_while_nothing_else_runs(tmp_path: Path) -> None:
    text = (
        "telemetry.configure('info')\nwarming.fill_beside_requests()\n"
        "print(os.sched_getscheduler(0) == os.SCHED_IDLE, os.nice(0))\n"
    )
    done = run(tmp_path, text)
    assert done.stdout == "True 19\n"
    assert "kernels compiled" in done.stderr
    assert len(list((tmp_path / "cache").glob("__main__.*.code"))) == 2


def test_processes_that_warm_do_not_import_from_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere.py").write_text("")
    monkeypatch.chdir(tmp_path)
    assert warm._started("elsewhere").wait(WITHIN_S) == 1


def test_warming_has_bytecode_written_also_where_processes_are_told_to_write_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "filling.py").write_text("import imported\n")
    (tmp_path / "imported.py").write_text("")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.delenv("PYTHONPYCACHEPREFIX", raising=False)
    assert warm._started("filling").wait(WITHIN_S) == 0
    assert "imported" in {path.name.partition(".")[0] for path in (tmp_path / "__pycache__").iterdir()}


def test_a_process_that_has_to_compile_says_so_once(tmp_path: Path) -> None:
    compiling = "telemetry.configure('info')\nfor each in (one, two):\n    each.compile()\n"
    (line,) = run(tmp_path, compiling).stderr.splitlines()
    assert " info kernels that the cache lacks are compiled, once for this version cache=" in line
    assert run(tmp_path, compiling).stderr == ""
