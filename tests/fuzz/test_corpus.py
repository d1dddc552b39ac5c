"""What once failed fails no more; and every target accepts a seed of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.loading import load
from tests.fuzz.shrinking import shrunk
from tests.fuzz.target import CORPUS, Target, run

TARGETS = load(is_instrumented=False, is_compiled=False)
FAILED_ONCE = [
    pytest.param(TARGETS[path.parent.name], path, id=f"{path.parent.name}-{path.name}")
    for path in sorted(CORPUS.glob("*/*"))
]


@pytest.mark.parametrize(("target", "path"), FAILED_ONCE)
def test_what_failed_once_fails_no_more(target: Target, path: Path) -> None:
    run(target, b"")  # compiles what the target needs, which is no part of the input's time
    with target.service():
        failure = run(target, path.read_bytes())
    assert failure is None, failure.text


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_the_seeds_of_a_target_do_not_fail_and_the_first_is_accepted(target: Target) -> None:
    seeds = list(target.seeds())
    with target.service():
        run(target, seeds[0])
        for seed in seeds[:20]:
            failure = run(target, seed)
            assert failure is None or failure.kind == "slow", f"{seed!r}: {failure.text}"
        target.check(seeds[0])


def test_an_exception_that_is_not_declared_is_a_failure() -> None:
    def check(data: bytes) -> None:
        raise KeyError(data)

    failure = run(Target("example", check, list), b"x")
    assert failure is not None and failure.kind.startswith("KeyError@")


def test_a_smaller_input_that_fails_alike_is_found() -> None:
    assert shrunk(b"many bytes before ab and behind", lambda data: b"ab" in data, 5.0) == b"ab"
