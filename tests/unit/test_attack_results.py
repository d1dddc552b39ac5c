"""What the attack harness counts as missed, and its selection of attacks."""

from __future__ import annotations

import pytest

from loadtest.attacks.bystander import Waits
from loadtest.attacks.catalogue import ATTACKS, Attack, named
from loadtest.attacks.running import Result
from loadtest.attacks.sending import Answers, Prepare
from loadtest.attacks.watching import Faults, Memory

NOTHING = Faults(restarts=0, down=())
QUICK = Waits(sent=100, p50_ms=3.0, p99_ms=9.0, max_ms=80.0, errors={})


def prepare(*_: object) -> Prepare:
    raise AssertionError("no attack is made here")


ATTACK = Attack("some", "an attack", prepare, wait_s=0.1, growth_mb=200.0, refused=True)  # type: ignore[arg-type]


def result(
    waits: Waits = QUICK, peak: float = 1100.0, faults: Faults = NOTHING, answers: Answers | None = None
) -> Result:
    refused = answers or Answers(count={"422": 3})
    return Result(ATTACK, {"query": QUICK, "scan": waits}, Memory(1000.0, peak, 1000.0, 600.0, 600.0), faults, refused)


def test_targets_are_met_when_waits_and_growth_stay_below_them() -> None:
    assert result().missed() == []


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (result(waits=Waits(100, 3.0, 9.0, 120.0, {})), "0.12 s, target 0.1 s"),
        (result(waits=Waits(100, 3.0, 9.0, 20.0, {"status 503": 2})), "2 errors"),
        (result(peak=1201.0), "+201 MB, target +200 MB"),
        (result(faults=Faults(1, ())), "workers restarted or down"),
        (result(faults=Faults(0, ("worker is gone",))), "workers restarted or down"),
        (result(answers=Answers(count={"422": 1, "200": 1})), "answered with 200 instead of 4xx"),
    ],
)
def test_each_target_that_is_missed_is_named(bad: Result, said: str) -> None:
    assert bad.missed() == [said]


def test_slack_widens_waits_and_growth_but_forgives_no_error() -> None:
    assert result(waits=Waits(100, 3.0, 9.0, 120.0, {}), peak=1300.0).missed(slack=2.0) == []
    assert result(waits=Waits(100, 3.0, 9.0, 120.0, {"status 503": 1})).missed(slack=2.0) == ["1 errors"]


def test_attacks_are_chosen_by_name_or_pattern() -> None:
    assert named([]) == list(ATTACKS)
    assert [attack.name for attack in named(["regex", "bodies-f*"])] == ["regex", "bodies-forms"]
    with pytest.raises(ValueError, match="no attack has a name like 'rgx'"):
        named(["rgx"])
