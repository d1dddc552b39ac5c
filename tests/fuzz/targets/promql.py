"""PromQL: any text through parser, printer, planner and evaluation."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from hypothesis import strategies as st

from coordinator.queries.planner import plan
from loadtest.harness import local_queries
from loadtest.harness.memory_source import MemorySource
from shared.labels import Labels
from shared.promql import durations, parser, printer
from shared.promql.functions import FUNCTIONS
from shared.promql.model import Grid
from tests.conformance.generation import queries
from tests.fuzz.target import Target
from tests.sharded import evaluate_sharded, split

SCRIPTS = Path(__file__).parents[2] / "conformance" / "scripts"
SEEDS_MAX = 400
GRID = Grid(60_000, 300_000, 60_000)
SAMPLES_MAX = 100_000
DEADLINE_S = 1.0


def _data() -> dict[Labels, tuple[list[int], list[float]]]:
    times = list(range(0, 301_000, 15_000))
    data = {}
    for number, metric in enumerate(("gauge", "up_total", "req_total", "lat_bucket", "target_info")):
        for instance in "12":
            for bound in ("0.5", "+Inf") if metric == "lat_bucket" else ("",):
                labels = {"__name__": metric, "instance": instance, "job": "a", "le": bound}
                values = [float((number + 2) * i % 7) for i in range(len(times))]
                data[tuple(sorted((name, text) for name, text in labels.items() if text))] = (times, values)
    return data


_SOURCE = MemorySource(_data())
_SHARDS = split(_data(), 2)


def _parsed(data: bytes) -> None:
    """What is parsed is printed as text that means the same, and planned."""
    text = data.decode(errors="replace")
    expr = parser.parse(text)
    printed = printer.to_text(expr)
    again = printer.to_text(parser.parse(printed))
    assert again == printed, f"{printed!r} is printed anew as {again!r}"
    printer.to_json(expr)
    printer.pretty(expr)
    plan(text, GRID)


def _evaluated(data: bytes) -> None:
    text = data.decode(errors="replace")
    limits = {"samples_max": SAMPLES_MAX, "deadline": time.monotonic() + DEADLINE_S}
    local_queries.range_query(text, _SOURCE, GRID, **limits)


def _sharded(data: bytes) -> None:
    text = data.decode(errors="replace")
    evaluate_sharded(text, _SHARDS, GRID, samples_max=SAMPLES_MAX, deadline=time.monotonic() + DEADLINE_S)


def _selected(data: bytes) -> None:
    parser.parse_selector(data.decode(errors="replace"))


def _duration(data: bytes) -> None:
    durations.resolve_durations(parser.parse(f"gauge[{data.decode(errors='replace')}]"), GRID)


def _seeds() -> Iterator[bytes]:
    """The queries of the conformance scripts: an even choice of them."""
    texts = [
        line.split(" ", 1)[1]
        for path in sorted(SCRIPTS.glob("*.test"))
        for line in path.read_text().splitlines()
        if line.startswith("eval") and " " in line
    ]
    for text in texts[:: max(1, len(texts) // SEEDS_MAX)]:
        words = text.split(" ")
        query = words[3:] if words[0] == "instant" else words[7:]
        yield " ".join(query).encode()
    yield b'sum by (job) (rate(up_total{instance=~"1|2"}[1m:15s] @ end() offset -1m)) / on (job) group_left gauge'
    yield b'label_replace(gauge, "a", "$1", "job", "(.*)") > bool 1 or absent(nothing)'


def _strategy() -> st.SearchStrategy[bytes]:
    return queries().map(str.encode)


def _selectors() -> Iterator[bytes]:
    yield b'gauge{job="a",instance!~"1.*",le=~"",x!=""}'
    yield b'{__name__=~"up_.+", "quoted name"=\'b\'}'


_TOKENS = (
    *FUNCTIONS, "sum", "avg", "topk", "quantile", "count_values", "by", "without", "on", "ignoring", "group_left",
    "offset", "bool", "start()", "end()", "[1m]", "[1m:15s]", "=~", "!~", "@", "inf", "nan", "0x1", "1e308", "__name__",
    "gauge", "up_total", "lat_bucket", "and", "or", "unless", "atan2", "step()", "range()", "limitk",
    "anchored", "smoothed",
)  # fmt: skip

TARGETS = [
    Target("promql-parse", _parsed, _seeds, _strategy, tokens=_TOKENS, bytes_max=2048),
    Target("promql-evaluate", _evaluated, _seeds, _strategy, tokens=_TOKENS, bytes_max=512),
    Target("promql-sharded", _sharded, _seeds, _strategy, tokens=_TOKENS, bytes_max=512),
    Target("promql-selector", _selected, _selectors, tokens=_TOKENS, bytes_max=512),
    Target("promql-duration", _duration, lambda: [b"5m", b"(1m + step()) * 2", b"max(1h, range())"], bytes_max=256),
]
