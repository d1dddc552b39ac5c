"""The lines of `triptych write`: text and JSON, up to the messages that are sent."""

from __future__ import annotations

from collections.abc import Iterator

from coordinator.commands.sample_lines import Samples
from coordinator.commands.write import requests
from proto import remote_write_pb2
from tests.fuzz.target import Target

NOW_MS = 1_700_000_000_000


def _sent(data: bytes) -> None:
    """The messages have as many samples as the lines."""
    samples = Samples()
    for line in data.split(b"\n"):
        samples.read(line, NOW_MS, {"job": "fuzz"})
    count = 0
    for message, _ in requests(samples):
        read = remote_write_pb2.WriteRequest.FromString(message)
        count += sum(len(series.samples) for series in read.timeseries)
    assert count == samples.count


def _lines() -> Iterator[bytes]:
    yield b'# TYPE m counter\n# HELP m What\\nit is\nm{a="1",b="q\\"\\n"} 2.5 1700000000000\nm NaN\n'
    yield b'{"my.metric","a.b"="c"} -Inf -5'
    yield b'{"metric": {"__name__": "m", "a": "1"}, "values": [1, null, "Infinity"], "timestamps": [1, 2, 3]}'
    yield b'{"metric": {"__name__": "m"}, "value": 1.5}'


_TOKENS = ('{"metric":{', '"value":', '"values":[', '"timestamps":[', "# TYPE ", "# HELP ", "NaN", "1e999", "\\ud800")

TARGETS = [Target("sample-lines", _sent, _lines, refusals=(ValueError,), tokens=_TOKENS)]
