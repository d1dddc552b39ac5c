"""Runs tests against one mutant, in a copy of the tree."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.sampling import ROOT, Mutant
from tests.mutants.selection import Selection, environment

MUTANT_TIMEOUT_S = 150.0
TEST_TIMEOUT_S = 40
FAILED = 1
"""pytest's exit status when a test has failed."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """`verdict`: killed, timeout (killed by an endless loop or a deadlock), survived, or untested."""

    mutant: Mutant
    verdict: str
    by: str = ""


def copy_tree(directory: Path) -> Path:
    """The files that git knows, as they are now, and the new ones; beside them what tests read from outside."""
    tree = directory / "tree"
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    for name in listed.stdout.decode().split("\0"):
        if name and (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name)
    return tree


class Runner:
    """One copy of the tree, in which one mutant at a time is tried."""

    def __init__(self, tree: Path) -> None:
        self.tree = tree

    def try_out(self, mutant: Mutant, selection: Selection) -> Outcome:
        tests = selection.tests_of(mutant)
        if not tests:
            return Outcome(mutant, "untested")
        path = self.tree / mutant.path
        source = path.read_text()
        try:
            path.write_text(mutant.apply(source))
            verdict, by = self._run(tests, self._kernels(mutant, selection))
        finally:
            path.write_text(source)
        if verdict == "killed" and by and self._run([by], None)[0] != "survived":
            # A test that fails without the mutant too says nothing about it.
            others = [test for test in tests if test != by]
            path.write_text(mutant.apply(source))
            try:
                verdict, by = self._run(others, None) if others else ("survived", "")
            finally:
                path.write_text(source)
        return Outcome(mutant, verdict, by)

    def _kernels(self, mutant: Mutant, selection: Selection) -> Path | None:
        """A cache of kernels without those that the mutant may be in, for a mutant of a file that has kernels."""
        if "njit" not in (self.tree / mutant.path).read_text():
            return None
        cache = Path(environment(self.tree)["NUMBA_CACHE_DIR"])
        copy = Path(tempfile.mkdtemp(prefix="kernels-", dir=self.tree.parent))
        if cache.exists():
            shutil.copytree(cache, copy, dirs_exist_ok=True)
        stems = {Path(path).stem for path in (mutant.path, *selection.importers(mutant.path))}
        for file in copy.rglob("*.nb?"):
            if file.name.partition(".")[0] in stems:
                file.unlink()
        return copy

    def _run(self, tests: list[str], kernels: Path | None) -> tuple[str, str]:
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--tb=no", "-rf"]
        command += [f"--timeout={TEST_TIMEOUT_S}", *tests]
        env = environment(self.tree) | ({"NUMBA_CACHE_DIR": str(kernels)} if kernels else {})
        try:
            done = subprocess.run(
                command, cwd=self.tree, env=env, capture_output=True, text=True, timeout=MUTANT_TIMEOUT_S, check=False
            )
        except subprocess.TimeoutExpired:
            return "timeout", ""
        finally:
            if kernels is not None:
                shutil.rmtree(kernels, ignore_errors=True)
        if done.returncode == 0:
            return "survived", ""
        failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))]
        by = failed[0].split(" ", 1)[1].split(" - ")[0] if failed else ""
        if done.returncode != FAILED and "Timeout" in done.stdout + done.stderr:
            return "timeout", by
        return "killed", by
