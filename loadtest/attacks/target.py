"""The cluster that is attacked, as attackers and the bystander know it; the same for both processes and the tests."""

from __future__ import annotations

import base64
from dataclasses import dataclass

HOST = "127.0.0.1"

METRIC = "m"
"""10,000 series with an hour of samples each; labels as in `loadtest.bench.metrics.payloads`."""
GRID_METRIC = "g"
"""4,500 series of one sample each, at `Target.end_s`."""
LONG_METRIC = "long"
"""Series whose label `text` has LONG_VALUE_BYTES."""
LONG_VALUE_BYTES = 60_000
LIGHT_QUERY = 'up{job="bystander"}'
LOG_KEY = "busy"
"""The key that has many records."""
BYSTANDER_KEY = "bystander"
COLLECTION_DIMENSION = 128
"""Of the default collection."""


@dataclass(frozen=True, slots=True)
class Target:
    """A port of this host and the time of the newest samples, in Unix seconds."""

    port: int
    end_s: int

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"


def base64_text(data: bytes) -> str:
    return base64.b64encode(data).decode()
