"""The tool that puts mistakes into the code makes the mistakes that it says, and tries them with the right tests."""

from __future__ import annotations

import subprocess
import sys
from argparse import Namespace
from collections.abc import Iterable
from pathlib import Path

import pytest
from cosmic_ray.mutating import mutate_code
from cosmic_ray.operators.operator import Example
from coverage import CoverageData

from tests.mutants.__main__ import _report
from tests.mutants.operators import OPERATORS
from tests.mutants.reasons import UNKNOWN, Reasons
from tests.mutants.recording import Recording, environment
from tests.mutants.running import Outcome
from tests.mutants.sampling import GROUPS, ROOT, Mutant, files, mutants_of, sample
from tests.mutants.selection import CASES_MAX, SECONDS_MAX, Selection, has_kernels

EXAMPLES = [(name, example) for name, operator in OPERATORS.items() for example in operator.examples()]


def in_file(tmp_path: Path, source: str, monkeypatch: pytest.MonkeyPatch) -> list[Mutant]:
    monkeypatch.setattr("tests.mutants.sampling.ROOT", tmp_path)
    path = tmp_path / "module.py"
    path.write_text(source)
    return list(mutants_of("storage", path))


def applied(mutants: Iterable[Mutant], source: str, operator: str) -> list[str]:
    return [mutant.apply(source) for mutant in mutants if mutant.operator == operator]


@pytest.mark.parametrize(("name", "example"), EXAMPLES, ids=[f"{name}-{at}" for at, (name, _) in enumerate(EXAMPLES)])
def test_operator_changes_its_examples_as_they_say(name: str, example: Example) -> None:
    assert not example.operator_args
    assert mutate_code(example.pre_mutation_code, OPERATORS[name], example.occurrence) == example.post_mutation_code


def test_calls_that_are_awaited_or_on_an_attribute_are_left_out_and_uses_of_a_result_are_not() -> None:
    source = "async def f():\n    await self.log.sync()\n    x = g()\n    h()()\n    event(1)\n"
    places = [OPERATORS["LeftOutCall"], source]
    left_out = [mutate_code(source, places[0], occurrence) for occurrence in range(2)]
    assert left_out == [source.replace("await self.log.sync()", "pass"), source.replace("h()()", "pass")]
    assert mutate_code(source, OPERATORS["LeftOutCall"], 2) is None


def test_a_bare_raise_is_left_out_as_well() -> None:
    source = "try:\n    f()\nexcept OSError:\n    raise\n"
    assert mutate_code(source, OPERATORS["LeftOutRaise"], 0) == source.replace("raise", "pass")


def test_a_lock_is_left_out_with_what_it_guards_kept() -> None:
    source = "def f(self):\n    with self._lock:\n        self.count += 1\n    with open(p) as file:\n        pass\n"
    assert mutate_code(source, OPERATORS["LeftOutLock"], 0) == source.replace("with self._lock:", "if True:")
    assert mutate_code(source, OPERATORS["LeftOutLock"], 1) is None


def test_nothing_is_changed_where_nothing_is_promised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = (
        "LIMIT = 5\n"
        "@dataclass(frozen=True)\n"
        "class A:\n"
        "    def __repr__(self): return 'a' + 1\n"
        "def f(*, x: 1 = 2) -> 3:\n"
        "    assert x > 4\n"
        "    event(INFO, 'told', size=x + 5)\n"
        "    if x > 7:\n"
        "        event(INFO, 'told')\n"
        "    zip(a, b, strict=True)\n"
        "    raise ValueError(f'{x + 6} is too many')\n"
    )
    mutants = in_file(tmp_path, source, monkeypatch)
    assert {(mutant.operator, mutant.line) for mutant in mutants} == {
        ("NumberReplacer", 5),
        ("LeftOutCall", 10),
        ("LeftOutRaise", 11),
    }


def test_a_mutant_is_named_by_its_place_among_all_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = "LIMIT = 5\n\n\ndef f() -> int:\n    return 7\n"
    changed = applied(in_file(tmp_path, source, monkeypatch), source, "NumberReplacer")
    assert changed == [source.replace("7", "8"), source.replace("7", "6")]


def test_a_sample_is_the_same_for_the_same_seed_and_spread_over_operators() -> None:
    chosen = sample(3, 40, ["protocol"])
    assert chosen == sample(3, 40, ["protocol"])
    assert chosen != sample(4, 40, ["protocol"])
    assert len({mutant.name for mutant in chosen}) == 40
    assert len({mutant.operator for mutant in chosen}) > 10


@pytest.mark.parametrize("group", GROUPS)
def test_every_place_of_a_group_exists(group: str) -> None:
    assert all(path.is_file() for path in files(group))


def test_what_only_sounds_like_a_lock_is_none() -> None:
    for text, is_lock in (("self._gather_lock", 1), ("_locked(path)", 1), ("decoding('blocks')", 0), ("block", 0)):
        assert (mutate_code(f"with {text}:\n    x\n", OPERATORS["LeftOutLock"], 0) is not None) == is_lock


# Reasons


def test_a_reason_is_for_a_line_or_for_what_it_becomes_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.mutants.reasons.ROOT", tmp_path)
    first, second, third, *_ = in_file(tmp_path, "def f():\n    return 7, 8\n", monkeypatch)
    entry = '[[survivor]]\npath = "module.py"\noperator = "NumberReplacer"\nline = "return 7, 8"\nreason = "%s"\n'
    listed = tmp_path / "survivors.toml"
    listed.write_text(entry % "any" + '\nbecomes = "return 6, 8"\n')
    reasons = Reasons(listed)
    assert [reasons.of(mutant) for mutant in (first, second, third)] == [UNKNOWN, "any", UNKNOWN]
    listed.write_text(entry % "any")
    assert Reasons(listed).of(third) == "any"


def outcome(mutant: Mutant, verdict: str) -> Outcome:
    return Outcome(mutant, verdict)


def test_equivalent_mutants_count_neither_way_and_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tests.mutants.reasons.ROOT", tmp_path)
    killed, timeout, other, alike, *_ = in_file(tmp_path, "def f():\n    return 7, 8\n", monkeypatch)
    monkeypatch.setattr(Reasons, "of", lambda self, mutant: "equivalent: so" if mutant is alike else UNKNOWN)
    outcomes = [outcome(killed, "killed"), outcome(timeout, "timeout"), outcome(other, "survived")]
    arguments = Namespace(seed=1, groups=["storage"], least=0.6)
    assert _report([*outcomes, outcome(alike, "survived")], 4, arguments) == 0
    told = capsys.readouterr().out
    assert "67% noticed (2 of 3)" in told and "50% noticed of all 4" in told
    assert f"equivalent {alike.name}" in told
    assert _report([*outcomes, outcome(alike, "killed")], 4, Namespace(seed=1, groups=["storage"], least=0.76)) == 1
    assert "75% noticed (3 of 4)" in capsys.readouterr().out


# Selection


def recorded(tmp_path: Path, contexts: dict[str, dict[str, list[int]]], seconds: dict[str, float]) -> Selection:
    """`contexts`: test → path → lines, in a tree with one module."""
    data = CoverageData(str(tmp_path / "coverage"))
    for test, lines in contexts.items():
        data.set_context(f"{test}|run")
        data.add_lines(lines)
    data.write()
    return Selection(tmp_path, [Recording(tmp_path / "coverage", seconds)])


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "worker").mkdir()
    (tmp_path / "worker" / "a.py").write_text("x = 1\ny = (\n    2,\n    3,\n)\nz = 4\n")
    (tmp_path / "worker" / "kernel.py").write_text("from numba import njit\n\ndef k():\n    return 1\n")
    (tmp_path / "worker" / "user.py").write_text("from worker.kernel import k\n\nk()\n")
    return tmp_path


def at(path: str, line: int) -> Mutant:
    return Mutant("storage", path, "NumberReplacer", 0, line)


def test_the_tests_that_execute_the_line_are_chosen_the_most_specific_first(tree: Path) -> None:
    contexts = {"t.py::wide": {"worker/a.py": [1, 2, 6]}, "t.py::narrow": {"worker/a.py": [1]}, "t.py::other": {}}
    selection = recorded(tree, contexts, {"t.py::wide": 1.0, "t.py::narrow": 1.0, "t.py::other": 1.0})
    assert selection.tests_of(at("worker/a.py", 1)).tests == ["t.py::narrow", "t.py::wide"]
    assert selection.tests_of(at("worker/a.py", 6)).tests == ["t.py::wide"]


def test_a_line_within_a_statement_has_the_tests_of_the_statement(tree: Path) -> None:
    selection = recorded(tree, {"t.py::one": {"worker/a.py": [2]}}, {"t.py::one": 1.0})
    assert selection.tests_of(at("worker/a.py", 4)).tests == ["t.py::one"]
    assert selection.tests_of(at("worker/a.py", 6)).tests == []


def test_a_compiled_kernel_has_the_tests_of_those_who_import_it(tree: Path) -> None:
    selection = recorded(tree, {"t.py::one": {"worker/user.py": [3]}}, {"t.py::one": 1.0})
    assert selection.tests_of(at("worker/kernel.py", 4)).tests == ["t.py::one"]


def test_a_compiled_kernel_has_the_tests_of_those_who_call_it_also_by_way_of_another(tree: Path) -> None:
    kernels = "from numba import njit\n\ndef inner():\n    return 1\n\ndef outer():\n    return inner()\n"
    (tree / "worker" / "kernel.py").write_text(kernels)
    (tree / "worker" / "user.py").write_text(
        "from worker.kernel import outer\n\ndef use():\n    return (\n        outer()\n    )\n\n"
        "def other():\n    pass\n"
    )
    contexts = {"t.py::used": {"worker/user.py": [4]}, "t.py::other": {"worker/user.py": [9]}}
    selection = recorded(tree, contexts, {"t.py::used": 1.0, "t.py::other": 1.0})
    assert selection.tests_of(at("worker/kernel.py", 4)).tests == ["t.py::used"]
    assert selection.tests_of(at("worker/kernel.py", 7)).tests == ["t.py::used"]


def test_a_test_that_failed_when_it_was_recorded_is_never_chosen(tree: Path) -> None:
    selection = recorded(tree, {"t.py::failed": {"worker/a.py": [1]}}, {})
    assert selection.tests_of(at("worker/a.py", 1)).tests == []


def test_few_cases_of_one_test_and_not_too_many_seconds_are_chosen(tree: Path) -> None:
    cases = [f"t.py::many[{number}]" for number in range(9)]
    slow = [f"{number}.py::slow" for number in range(9)]
    contexts = {test: {"worker/a.py": [1]} for test in [*cases, *slow]}
    chosen = recorded(tree, contexts, dict.fromkeys(cases, 0.1) | dict.fromkeys(slow, 9.0)).tests_of(
        at("worker/a.py", 1)
    )
    assert len([test for test in chosen.tests if test in cases]) == CASES_MAX
    assert 0 < chosen.seconds <= SECONDS_MAX


def test_a_signature_has_the_tests_of_its_function(tree: Path) -> None:
    (tree / "worker" / "a.py").write_text("def f(x=1):\n    if x:\n        return 2\n    return 3\n")
    selection = recorded(tree, {"t.py::one": {"worker/a.py": [2, 4]}}, {"t.py::one": 1.0})
    assert selection.tests_of(at("worker/a.py", 1)).tests == ["t.py::one"]


def test_a_field_of_a_class_has_the_tests_of_its_file(tree: Path) -> None:
    (tree / "worker" / "a.py").write_text("class A:\n    size: int = 1\n\n    def f(self):\n        return 2\n")
    selection = recorded(tree, {"t.py::one": {"worker/a.py": [5]}}, {"t.py::one": 1.0})
    assert selection.tests_of(at("worker/a.py", 2)).tests == ["t.py::one"]


PLAIN_KERNEL = """
from numba import njit
from shared.kernels import types
from tests.mutants import plain_kernels
plain_kernels.pytest_configure()
from shared.kernels import kernel
inner = njit(cache=True)(lambda x: type(x).__name__)
@kernel(types.int64(types.int64))
def half(x):
    return inner(x), x / 2
print(half(3))
"""


def test_kernels_of_a_plain_group_run_as_python(tmp_path: Path) -> None:
    env = environment(tmp_path / "tree", plain=True) | {"PYTHONPATH": str(ROOT)}
    told = subprocess.run(
        [sys.executable, "-c", PLAIN_KERNEL], env=env, capture_output=True, text=True, check=True, timeout=60
    )
    assert told.stdout == "('int', 1.5)\n"
    assert environment(tmp_path / "tree")["NUMBA_DISABLE_JIT"] == "0"


def test_a_module_with_kernels_is_known_by_them() -> None:
    assert has_kernels("@kernel\ndef f(): ...") and has_kernels("from shared.kernels import kernel")
    assert not has_kernels("def kernel(): ...")
