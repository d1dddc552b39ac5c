"""Runs tests against one mutant, in a copy of the tree."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.mutants import kernels
from tests.mutants.recording import PLAIN, environment
from tests.mutants.sampling import ROOT, Mutant
from tests.mutants.selection import Chosen, Selection, has_kernels

START_S = 30.0
"""For the interpreter, its imports, and a machine that does something else too."""
COMPILING_S = 60.0
SLOWNESS = 3.0
"""How much longer than when it was recorded a test may take."""
TEST_TIMEOUT_S = 30
_FAILURES = ("FAILED ", "ERROR ")
NOTICED = ("killed", "timeout")


@dataclass(frozen=True, slots=True)
class Outcome:
    """`verdict`: killed, timeout (killed by an endless loop or a deadlock), survived, or untested."""

    mutant: Mutant
    verdict: str
    by: str = ""


def copy_tree(directory: Path) -> Path:
    """The files that git knows, as they are now, and the new ones. Times are kept, for what is compiled."""
    tree = directory / "tree"
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    shutil.rmtree(tree, ignore_errors=True)
    for name in listed.stdout.decode().split("\0"):
        if name and (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name)
    kernels.take_over(Path(environment(tree)["NUMBA_CACHE_DIR"]))
    return tree


class Runner:
    """One copy of the tree, in which one mutant at a time is tried."""

    def __init__(self, tree: Path) -> None:
        self.tree = tree
        self._sound: set[str] = set()
        self._zygote = Zygote()

    def close(self) -> None:
        self._zygote.close()

    def try_out(self, mutant: Mutant, selection: Selection) -> Outcome:
        """A test that fails, or does not end, without the mutant too says nothing about it."""
        chosen = selection.tests_of(mutant)
        tests = chosen.tests
        while tests:
            verdict, by = self._with_mutant(mutant, tests, selection, chosen)
            if verdict == "survived" or self._is_sound(by, tests, chosen, plain=mutant.group in PLAIN):
                return Outcome(mutant, verdict, by)
            # A file of tests that cannot even be read is named as a whole.
            tests = [test for test in tests if by not in (test, test.partition("::")[0])] if by else []
        return Outcome(mutant, "survived" if chosen.tests else "untested")

    def _is_sound(self, by: str, tests: list[str], chosen: Chosen, *, plain: bool) -> bool:
        alone = [test for test in tests if by in (test, test.partition("::")[0])] or tests
        if not self._sound.issuperset(alone):
            if self._run(alone, None, _timeout_s(chosen), plain=plain)[0] != "survived":
                return False
            self._sound.update(alone)
        return True

    def _with_mutant(self, mutant: Mutant, tests: list[str], selection: Selection, chosen: Chosen) -> tuple[str, str]:
        path = self.tree / mutant.path
        source, stat = path.read_text(), path.stat()
        plain = mutant.group in PLAIN
        compiled_kernels = self._kernels() if has_kernels(source) and not plain else None
        try:
            path.write_text(mutant.apply(source))
            timeout_s = _timeout_s(chosen) + (COMPILING_S if compiled_kernels else 0.0)
            return self._run(tests, compiled_kernels, timeout_s, plain=plain)
        finally:
            path.write_text(source)
            os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
            for compiled in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
                compiled.unlink()
            if compiled_kernels:
                shutil.rmtree(compiled_kernels, ignore_errors=True)

    def _kernels(self) -> Path:
        """A copy of the compiled kernels, to which those of one mutant are added."""
        cache = Path(environment(self.tree)["NUMBA_CACHE_DIR"])
        copy = Path(tempfile.mkdtemp(prefix="kernels-", dir=self.tree.parent))
        if cache.exists():
            shutil.copytree(cache, copy, dirs_exist_ok=True)
        return copy

    def _run(self, tests: list[str], compiled: Path | None, timeout_s: float, *, plain: bool) -> tuple[str, str]:
        arguments = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:cov", "--tb=no", "-rfE"]
        arguments += ["-p", "tests.mutants.plain_kernels", "-p", "tests.mutants.examples"]
        arguments += [f"--timeout={TEST_TIMEOUT_S}", *tests]
        env = environment(self.tree, plain=plain) | ({"NUMBA_CACHE_DIR": str(compiled)} if compiled else {})
        output = self.tree.with_name("output")
        status = self._zygote.run(self.tree, env, arguments, output, timeout_s)
        if status == "timeout":
            return "timeout", ""
        failed = [line for line in output.read_text(errors="replace").splitlines() if line.startswith(_FAILURES)]
        if status == "0":
            return "survived", ""
        return "killed", failed[0].split(" ", 1)[1].split(" - ")[0].strip() if failed else ""


class Zygote:
    """See `zygote`."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("zygote.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, tree: Path, env: dict[str, str], arguments: list[str], output: Path, timeout_s: float) -> str:
        """pytest's exit status as text, or "timeout"."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps([str(tree), env, arguments, str(output), timeout_s]) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline().strip()
        assert answer, "the process that runs the tests has ended"
        return answer

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def _timeout_s(chosen: Chosen) -> float:
    return START_S + SLOWNESS * chosen.seconds
