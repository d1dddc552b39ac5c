"""Kernels: one declared signature each, compiled when asked, called from Python and from each other by many threads."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import worker.warm
from coordinator.warm import import_kernels
from shared import kernels
from shared.kernels import sources as kernel_sources
from shared.kernels.cache import VARIABLE
from shared.kernels.sources import PACKAGES
from tests.forked_programs import Programs, prepared

ROOT = Path(__file__).resolve().parents[2]
WITHIN_S = 120.0
COMPILERS = {"njit", "jit", "vectorize", "guvectorize", "cfunc", "stencil", "generated_jit"}

assert worker.warm
import_kernels()

CHAIN = """
import sys
from threading import Barrier, Thread
import numpy as np
from shared.kernels import types
from shared import kernels
from shared.kernels import inlined, kernel

INTS = types.Array(types.int64, 1, "C", readonly=True)

@inlined
def twice(x):
    return 2 * x

@kernel(types.int64(types.int64))
def one(x):
    return twice(x) + 1

@kernel(types.int64(types.int64))
def two(x):
    return one(x) + one(x + 1)

@kernel(types.int64(INTS), first=True)
def three(values):
    total = 0
    for value in values:
        total += two(value) + one(value)
    return total

CALLS = {
    "one": (lambda: one(1), 3), "two": (lambda: two(1), 8), "three": (lambda: three(np.arange(3)), 33),
    "compile": (lambda: kernels.compile_all(), 3),
}
"""
THREADS = """
orders = [order.split() for order in sys.argv[1:]]
barrier, answers = Barrier(len(orders)), []

def run(order):
    barrier.wait()
    answers.extend(CALLS[name][0]() == CALLS[name][1] for name in order)

threads = [Thread(target=run, args=(order,)) for order in orders]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(len(answers), all(answers), [called.is_ready() for called in (one, two, three)])
"""


PREPARATION = """
import numba
from shared import kernels

numba.njit("int64(int64)")(lambda x: x)  # imports and sets up the compiler
"""


def environment(directory: Path) -> dict[str, str]:
    """Of a process that compiles its kernels into a cache of its own."""
    return {**os.environ, "PYTHONPATH": str(ROOT), VARIABLE: str(directory / "cache"), "NUMBA_DISABLE_JIT": "0"}


def run_alone(directory: Path, program: str, *arguments: str) -> str:
    """What a program prints in a process that has imported nothing."""
    path = directory / "program.py"
    path.write_text(program)
    return subprocess.run(
        [sys.executable, str(path), *arguments],
        env=environment(directory),
        capture_output=True,
        text=True,
        check=True,
        timeout=WITHIN_S,
    ).stdout


Run = Callable[..., str]


@pytest.fixture(scope="module")
def programs() -> Iterator[Programs]:
    with prepared(PREPARATION) as programs:
        yield programs


@pytest.fixture
def run(programs: Programs, tmp_path: Path) -> Run:
    """`run(program, *arguments)`: what a program prints that compiles its kernels into a cache of the test's own."""

    def run(program: str, *arguments: str) -> str:
        path = tmp_path / "program.py"
        path.write_text(program)
        own = environment(tmp_path)
        return programs.run(tmp_path, str(path), *arguments, environment=own, within_s=WITHIN_S)

    return run


def test_every_kernel_is_compiled_for_its_declared_signature_and_no_other() -> None:
    count = kernels.compile_all()
    assert count == len(kernels._registry) > 0
    for declared in kernels._registry:
        assert declared.signature is not None
        assert declared.dispatcher.signature == declared.signature


def test_the_registry_has_the_kernels_of_all_modules() -> None:
    declaring = {
        path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".")
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if "\n@kernel(" in path.read_text()
    }
    assert {declared.__module__ for declared in kernels._registry} == declaring


def test_the_name_of_a_kernel_in_the_cache_is_made_of_its_module_and_of_those_that_it_imports() -> None:
    sources = kernel_sources.dependencies("shared.histograms.merging")
    assert {"shared.histograms.merging", "shared.histograms.schemas", "shared.kernels"} <= sources
    for declared in kernels._registry:
        assert declared.__module__ in kernel_sources.dependencies(declared.__module__)
    names = [declared.name() for declared in kernels._registry]
    assert None not in names and len(set(names)) == len(names)


@pytest.mark.parametrize("package", PACKAGES)
def test_only_one_module_makes_dispatchers(package: str) -> None:
    for path in (ROOT / package).rglob("*.py"):
        nodes = list(ast.walk(ast.parse(path.read_text())))
        imports = [node for node in nodes if isinstance(node, ast.Import)]
        assert not any(alias.name.partition(".")[0] == "numba" for node in imports for alias in node.names), path
        names = {
            alias.name
            for node in nodes
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "numba"
            for alias in node.names
        }
        assert not names & COMPILERS or path == ROOT / "shared" / "kernels" / "compiler.py", path


def test_a_kernel_is_compiled_by_its_first_call_whichever_of_two_threads_makes_it(run: Run) -> None:
    assert run(CHAIN + THREADS, "one", "one") == "2 True [True, False, False]\n"


def test_threads_compile_kernels_that_call_each_other_in_any_order(run: Run) -> None:
    orders = ("one two three", "three two one", "two one three", "compile", "three", "compile three")
    assert run(CHAIN + THREADS, *orders) == "13 True [True, True, True]\n"
    # And again with what is in the cache on disk.
    assert run(CHAIN + THREADS, *orders) == "13 True [True, True, True]\n"


def test_what_is_needed_first_is_compiled_with_all_that_it_calls_and_nothing_else(run: Run) -> None:
    program = CHAIN + (
        "unused = kernel(types.int64(types.int64))(lambda x: x)\n"
        "print(kernels.compile_first(), [k.is_ready() for k in kernels._registry])\n"
    )
    assert run(program) == "1 [True, True, True, False]\n"


def test_arguments_of_another_type_are_refused_and_not_compiled_for(run: Run) -> None:
    program = CHAIN + (
        "try:\n    three(np.zeros(2))\nexcept TypeError as error:\n    print(type(error).__name__)\n"
        "writable = np.arange(3)\nwritable.setflags(write=False)\nprint(three(writable), three(np.arange(3)))\n"
        "print(three.is_ready())\n"
    )
    assert run(program) == "TypeError\n33 33\nTrue\n"


OPTIONS = """
import sys
from shared.kernels import types
from shared import kernels
from shared.kernels import cache as kernel_cache
from shared.kernels import kernel

@kernel(types.float64(types.float64), fastmath={"reassoc", "contract", "nnan", "ninf"})
def halved(x):
    return x / 2

print(halved.load(), halved(3.0), kernel_cache.has(halved.name(), "code"))
"""


def test_a_kernel_is_found_again_by_any_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "1")
    assert run_alone(tmp_path, OPTIONS) == "False 1.5 True\n"
    for seed in range(2, 6):
        monkeypatch.setenv("PYTHONHASHSEED", str(seed))
        assert run_alone(tmp_path, OPTIONS) == "True 1.5 True\n"


LOADED = """
before = set(sys.modules)
print([k.load() for k in kernels._registry], "numba.core.typeinfer" in set(sys.modules) - before)
for name in sys.argv[1:]:
    print(CALLS[name][0]() == CALLS[name][1], [k.is_ready() for k in kernels._registry])
"""


def kept(directory: Path, kernel_name: str, kind: str) -> Path:
    (path,) = (directory / "cache").glob(f"__main__.{kernel_name}-*.{kind}")
    return path


def test_a_kernel_is_loaded_without_the_compiler(tmp_path: Path) -> None:
    assert run_alone(tmp_path, CHAIN + LOADED, "three").splitlines()[1] == "True [True, True, True]"
    loaded, *calls = run_alone(tmp_path, CHAIN + LOADED, "three", "one").splitlines()
    assert loaded == "[True, True, True] False"
    assert calls == ["True [True, True, True]"] * 2


@pytest.mark.parametrize("lost", [["three"], ["two", "three"], ["one"], ["two"]])
@pytest.mark.parametrize("how", [Path.unlink, lambda path: path.write_bytes(path.read_bytes()[:-9])])
def test_a_kernel_that_the_cache_lacks_is_compiled_with_those_that_it_has(
    run: Run, tmp_path: Path, lost: list[str], how: Callable[[Path], object]
) -> None:
    run(CHAIN + LOADED, "three")
    for name in lost:
        how(kept(tmp_path, name, "code"))
    loaded, called = run(CHAIN + LOADED, "three").splitlines()
    assert loaded.startswith(str([name not in lost for name in ("one", "two", "three")]))
    assert called.startswith("True")
    for name in lost:  # those that only compiled code calls were not needed
        if name == "three":
            assert kept(tmp_path, name, "code").stat().st_size > 100
    assert run(CHAIN + LOADED, "one", "two", "three").count("\nTrue") == 3
    assert run(CHAIN + LOADED).startswith("[True, True, True]")


def test_types_that_are_lost_are_made_anew_by_who_needs_them(run: Run, tmp_path: Path) -> None:
    run(CHAIN + LOADED, "three")
    for name, kind in (("one", "types"), ("two", "types"), ("three", "code")):
        kept(tmp_path, name, kind).unlink()
    assert run(CHAIN + LOADED, "one", "three").count("\nTrue") == 2
    assert kept(tmp_path, "one", "types").exists() and kept(tmp_path, "three", "code").exists()


def test_many_processes_that_compile_at_once_share_the_work(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(CHAIN + "print(kernels.compile_all(), three(np.arange(3)))\n")
    env = environment(tmp_path)
    processes = [subprocess.Popen([sys.executable, str(path)], env=env, stdout=subprocess.PIPE) for _ in range(3)]
    assert [process.communicate(timeout=WITHIN_S)[0] for process in processes] == [b"3 33\n"] * 3
    assert {file.suffix for file in (tmp_path / "cache").iterdir()} == {".code", ".types", ""}


OVERTAKEN = """
import os
from shared.kernels import compiler as kernel_compiler

compile_kernel = kernel_compiler.compile_kernel

def overtaken(kernel):
    kernel_compiler.compile_kernel = compile_kernel
    if not (process := os.fork()):
        kernel.compile()
        os._exit(0)
    os.waitpid(process, 0)
    return compile_kernel(kernel)

kernel_compiler.compile_kernel = overtaken
print(one(1), three(np.arange(3)))
"""


def test_a_kernel_that_another_process_has_compiled_in_the_meantime_is_called(run: Run) -> None:
    assert run(CHAIN + OVERTAKEN) == "3 33\n"


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A tree of sources in which `worker.a` imports `shared.b`, which imports `shared.deep.c`; `shared.d` is alone."""
    files = {
        "worker/a.py": "from shared.b import (\n    X,\n)\n",
        "shared/b.py": "from shared.deep import c\nX = c.Y + 1\n",
        "shared/deep/__init__.py": "",
        "shared/deep/c.py": "Y = 1\n",
        "shared/d.py": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(kernel_sources, "ROOT", tmp_path)
    forget_sources()
    yield tmp_path
    forget_sources()


def forget_sources() -> None:
    for function in (kernel_sources.digest, kernel_sources._source):
        function.cache_clear()


@pytest.mark.parametrize(
    ("changed", "concerns"),
    [("worker/a.py", True), ("shared/b.py", True), ("shared/deep/c.py", True), ("shared/d.py", False)],
)
def test_a_change_of_a_source_concerns_those_who_import_it(tree: Path, changed: str, concerns: bool) -> None:
    before = kernel_sources.digest("worker.a")
    (tree / changed).write_text((tree / changed).read_text() + "# other\n")
    forget_sources()
    assert (kernel_sources.digest("worker.a") != before) == concerns


def test_a_function_whose_source_is_in_no_file_is_not_kept(tmp_path: Path) -> None:
    program = "import runpy, sys\nexec(compile(sys.stdin.read(), '<typed>', 'exec'), {'__name__': 'typed'})\n"
    env = os.environ | {"PYTHONPATH": str(ROOT), VARIABLE: str(tmp_path / "cache")}
    told = subprocess.run(
        [sys.executable, "-c", program],
        input=OPTIONS.replace(', kernel_cache.has(halved.name(), "code")', ""),
        env=env,
        capture_output=True,
        text=True,
        check=False,
        timeout=WITHIN_S,
    )
    assert told.stdout == "False 1.5\n", told.stderr
    assert not list((tmp_path / "cache").glob("*.code"))


PREPARED = """
import threading
from shared import kernels
from shared.promql import parser
from worker import warm

assert warm.prepare()
print(all(k.is_ready() for k in kernels._registry), parser._lark.cache_info().currsize, threading.active_count())
"""


def test_workers_are_forked_from_a_process_that_has_all_that_their_first_requests_need() -> None:
    kernels.compile_all()
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    told = subprocess.run(
        [sys.executable, "-c", PREPARED], env=env, capture_output=True, text=True, check=True, timeout=WITHIN_S
    )
    assert told.stdout == "True 1 1\n"
