from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SCRIPT = "import shared, os; print(os.environ['NUMBA_CACHE_DIR'])"


def directory(root: Path, **environment: str) -> str:
    inherited = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        cwd=root,
        env={**inherited, **environment, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def test_the_directory_changes_with_a_kernel_and_with_what_it_imports(tmp_path: Path) -> None:
    for package in ("shared", "coordinator", "worker"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    seen = [directory(tmp_path), directory(tmp_path)]
    assert seen[0] == seen[1]
    for changed in ("shared/xxh64.py", "shared/promql/model.py"):
        with open(tmp_path / changed, "a") as file:
            file.write("\n# another text\n")
        seen.append(directory(tmp_path))
    assert len(set(seen)) == 3
    with open(tmp_path / "shared" / "manifest.py", "a") as file:
        file.write("\n# no kernel here\n")
    assert directory(tmp_path) == seen[-1]


def test_the_environment_wins(tmp_path: Path) -> None:
    assert directory(ROOT, NUMBA_CACHE_DIR=str(tmp_path)) == str(tmp_path)
