"""The method `debug.profile`: where a worker spends its time. The reply has the text as its only frame."""

from __future__ import annotations

import msgspec


class ProfileBody(msgspec.Struct, array_like=True, frozen=True):
    """See `shared.process.profiling.profile`."""

    seconds: float
    by_processor: bool
