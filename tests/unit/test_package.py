"""The Makefile chooses a Python, and the wheel has every module and data file."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("coordinator", "worker", "shared", "proto")
NOT_SHIPPED = ("coordinator/ui/vendor/",)
SOURCES = (".proto", ".pyi")
"""Endings of files that only a checkout needs."""


def tracked(folder: str) -> list[Path]:
    listed = subprocess.run(["git", "ls-files", folder], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout")
    return [ROOT / name for name in listed.stdout.splitlines() if not name.startswith(NOT_SHIPPED)]


def test_the_makefile_can_ask_an_interpreter_whether_it_is_optimised() -> None:
    shown = subprocess.run(
        ["make", "--eval", "show:; @printf '%s' '$(IS_OPTIMISED)'", "show"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    asked = subprocess.run([sys.executable, "-c", shown.stdout], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (asked.stderr, asked.returncode in (0, 1)) == ("", True)


@pytest.mark.parametrize("package", PACKAGES)
def test_every_folder_with_modules_is_a_package(package: str) -> None:
    folders = {path.parent for path in tracked(package) if path.suffix == ".py"}
    assert folders and [str(folder) for folder in folders if not (folder / "__init__.py").exists()] == []


@pytest.mark.parametrize("package", PACKAGES)
def test_every_data_file_is_in_the_wheel(package: str) -> None:
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    shipped = {path for pattern in patterns.get(package, ()) for path in (ROOT / package).glob(pattern)}
    data = [path for path in tracked(package) if path.suffix not in (".py", *SOURCES)]
    assert [str(path) for path in data if path not in shipped] == []
