"""What the table of functions says of each of them, and that each has an implementation."""

from __future__ import annotations

import pytest

from shared.promql.ast import ValueType
from shared.promql.engine.functions import INSTANT_FUNCTIONS
from shared.promql.engine.range_functions import RANGE_FUNCTIONS
from shared.promql.functions import ALIASES, FUNCTIONS, Scope, Signature, functions_with

SERIES_TYPES = (ValueType.VECTOR, ValueType.MATRIX)


def test_every_function_has_one_implementation() -> None:
    of_ranges = {name for name, signature in FUNCTIONS.items() if signature.takes_range}
    assert set(RANGE_FUNCTIONS) == of_ranges
    assert set(INSTANT_FUNCTIONS) == set(FUNCTIONS) - of_ranges


def test_an_older_name_stands_for_a_function_and_is_none_itself() -> None:
    assert set(ALIASES.values()) <= set(FUNCTIONS)
    assert not set(ALIASES) & set(FUNCTIONS)


@pytest.mark.parametrize("signature", FUNCTIONS.values(), ids=FUNCTIONS)
def test_every_function_is_classified_by_the_series_it_must_see(signature: Signature) -> None:
    of_series = [arg for arg in signature.args if arg in SERIES_TYPES]
    assert (signature.scope is Scope.NONE) == (not of_series)
    assert (signature.scope is Scope.BEYOND_ARGUMENT) == (len(of_series) > 1)
    if signature.scope in (Scope.ONE, Scope.RELABELLED):
        assert signature.returns is ValueType.VECTOR


@pytest.mark.parametrize(
    ("scope", "names"),
    [
        (Scope.NONE, "end max_of min_of pi range start step time vector"),
        (Scope.RELABELLED, "label_join label_replace"),
        (
            Scope.ARGUMENT,
            "absent absent_over_time histogram_fraction histogram_quantile histogram_quantiles scalar sort "
            "sort_by_label sort_by_label_desc sort_desc",
        ),
        (Scope.BEYOND_ARGUMENT, "info"),
    ],
)
def test_all_other_functions_look_at_one_series_at_a_time(scope: Scope, names: str) -> None:
    assert sorted(name for name, signature in FUNCTIONS.items() if signature.scope is scope) == names.split()


def test_facts_about_arguments_fit_the_types_of_the_arguments() -> None:
    for signature in FUNCTIONS.values():
        assert signature.takes_range or not (signature.modifiers or signature.keeps_name)
        assert not signature.of_samples or signature.args == (ValueType.VECTOR,)
        assert signature.unevaluated_from is None or 0 < signature.unevaluated_from < len(signature.args)


def test_extended_selectors_are_for_functions_of_increases() -> None:
    assert functions_with("anchored") == ["changes", "delta", "increase", "rate", "resets"]
    assert functions_with("smoothed") == ["delta", "increase", "rate"]
