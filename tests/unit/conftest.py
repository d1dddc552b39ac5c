"""What the unit tests of several subjects ask for."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module")
def power_stays_on() -> Iterator[None]:
    """Syncs take no time, for tests that kill processes and not the system; a test that needs one to fail patches it
    again. What is lost with the power is found by `tests/powerloss`."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("fsync", "fdatasync"):
            patch.setattr(os, name, lambda descriptor: None)
        yield
