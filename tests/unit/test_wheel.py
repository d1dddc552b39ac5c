"""The wheel has every module and data file, and nothing of what the page's vendor.js is made of."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from coordinator.ui.files import load

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("coordinator", "proto", "shared", "worker")
VENDOR = "coordinator/ui/vendor/"
CHECKOUT_ONLY = (".proto",)
"""Endings of files that the installed service does not need."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built of a copy of the sources, in which somebody has made vendor.js."""
    pytest.importorskip("setuptools")
    source = tmp_path_factory.mktemp("source")
    for name in SOURCES:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__", "node_modules"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    package = source / VENDOR / "node_modules" / "some-package"
    package.mkdir(parents=True)
    for name in ("index.js", "module.py"):
        (package / name).write_text("")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index", "--no-build-isolation"]
    subprocess.run([*command, "--wheel-dir", str(source), str(source)], check=True, capture_output=True)
    (made,) = source.glob("*.whl")
    return made


def test_the_wheel_serves_the_page_that_the_sources_serve(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    code = "from coordinator.ui.files import load; print(load().version)"
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    answer = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=tmp_path, check=True, capture_output=True, text=True
    )
    assert answer.stdout.strip() == load().version  # a digest of all files
    assert len(load().files) > 20


def test_the_wheel_has_every_module_and_data_file(wheel: Path) -> None:
    paths = (path for name in SOURCES for path in (ROOT / name).rglob("*") if path.is_file())
    names = {str(path.relative_to(ROOT)) for path in paths if "__pycache__" not in path.parts}
    needed = {name for name in names if not name.startswith(VENDOR) and not name.endswith(CHECKOUT_ONLY)}
    with zipfile.ZipFile(wheel) as archive:
        assert needed - set(archive.namelist()) == set()
    assert {"shared/promql/grammar.lark", "shared/kernels/cache.py", "coordinator/ui/index.html"} < needed


def test_the_wheel_has_nothing_of_what_vendor_js_is_made_of(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert "coordinator/ui/vendor.js" in names
    assert [name for name in names if name.startswith(VENDOR)] == []
