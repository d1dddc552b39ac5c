"""Loads the targets, their code instrumented so that the mutator sees which branches an input reaches."""

from __future__ import annotations

import importlib
import io
import pkgutil
import re
from contextlib import redirect_stderr
from pathlib import Path

from shared import kernels
from tests.fuzz import targets as package
from tests.fuzz.target import Target

_ROOT = Path(__file__).resolve().parents[2]
_INSTRUMENTED = ("coordinator", "shared", "worker")
_COMPILED = re.compile(r"^(@kernel|@inlined|@njit)|^from numba|^import numba", re.MULTILINE)
"""Modules with kernels: numba compiles their bytecode, and cannot compile an instrumented one."""


def load(*, is_instrumented: bool, is_compiled: bool = True) -> dict[str, Target]:
    """All targets by name. To instrument them needs atheris (`pip install '.[fuzz]'`). `is_compiled`: all
    kernels are compiled, so that no input seems slow because it is the first to need one."""
    if is_instrumented:
        import atheris

        with redirect_stderr(io.StringIO()), atheris.instrument_imports(list(_INSTRUMENTED), _with_kernels()):
            modules = _modules()
    else:
        modules = _modules()
    if is_compiled:
        kernels.compile_all()
    found = [target for module in modules for target in module.TARGETS]
    return {target.name: target for target in found}


def _modules() -> list:
    names = sorted(module.name for module in pkgutil.iter_modules(package.__path__))
    return [importlib.import_module(f"{package.__name__}.{name}") for name in names]


def _with_kernels() -> list[str]:
    return [
        ".".join(path.relative_to(_ROOT).with_suffix("").parts)
        for top in _INSTRUMENTED
        for path in (_ROOT / top).rglob("*.py")
        if _COMPILED.search(path.read_text())
    ]
