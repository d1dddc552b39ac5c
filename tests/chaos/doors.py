"""The ways by which samples come in, each with what it answers when they are stored."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from loadtest.harness.remote_write_bodies import HEADERS, compressed
from tests.chaos.client import JSON

Series = Sequence[tuple[Mapping[str, str], Sequence[tuple[int, float]]]]
"""Label sets, and the samples of each: (Unix ms, value)."""


@dataclass(frozen=True, slots=True)
class Door:
    path: str
    headers: Mapping[str, str]
    body: Callable[[Series], bytes]
    stored: int
    """The status of an answer that acknowledges all samples."""


def _otlp(series: Series) -> bytes:
    """Gauges; without a resource, data points have no labels but their attributes."""
    metrics = [
        {
            "name": labels["__name__"],
            "gauge": {
                "dataPoints": [
                    {
                        "timeUnixNano": str(time_ms * 1_000_000),
                        "asDouble": value,
                        "attributes": [
                            {"key": name, "value": {"stringValue": text}}
                            for name, text in labels.items()
                            if name != "__name__"
                        ],
                    }
                    for time_ms, value in samples
                ]
            },
        }
        for labels, samples in series
    ]
    return json.dumps({"resourceMetrics": [{"scopeMetrics": [{"metrics": metrics}]}]}).encode()


def _json_lines(series: Series) -> bytes:
    lines = [
        {"metric": dict(labels), "timestamps": [time for time, _ in samples], "values": [value for _, value in samples]}
        for labels, samples in series
    ]
    return b"\n".join(json.dumps(line).encode() for line in lines)


DOORS = (
    Door("/api/v1/write", HEADERS, compressed, 204),
    Door("/v1/metrics", JSON, _otlp, 200),
    Door("/api/v1/import", JSON, _json_lines, 204),
)
