"""A pytest plugin for recording and trying: the properties of the unit tests are tried with few examples, always the
same ones, so that what they notice counts and a mutant costs seconds."""

from __future__ import annotations

import pytest
from hypothesis import settings

EXAMPLES_MAX = 25
_SETTINGS = "_hypothesis_internal_use_settings"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        function = getattr(item, "obj", None)
        own = getattr(function, _SETTINGS, None)
        if own is not None and "/simulation/" not in item.nodeid:
            few = min(own.max_examples, EXAMPLES_MAX)
            setattr(function, _SETTINGS, settings(own, max_examples=few, derandomize=True, database=None))
