"""Requests of remote read, up to the plan that is made of them."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import strategies as st

from coordinator.remote_read.plan import read_plan
from coordinator.remote_read.requests import decode
from proto import remote_read_pb2
from shared.promql.parser import parse_selector
from tests.fuzz.target import Target


def _request(data: bytes) -> None:
    """What is taken has a plan, whose sub-queries are read as they were meant."""
    request = decode(data)
    selectors = [parse_selector(selection.text) for selection in request.selections]
    made = read_plan(request.selections, selectors)
    for leaf, matchers in zip(made.leaves, selectors, strict=True):
        assert parse_selector(leaf.text.rpartition("[")[0]) == matchers


def bodies() -> Iterator[bytes]:
    query = remote_read_pb2.Query(start_timestamp_ms=1_735_689_600_000, end_timestamp_ms=1_735_689_900_000)
    query.matchers.add(name="__name__", value="up")
    query.matchers.add(type=2, name="job", value="a|b.*")
    query.hints.CopyFrom(remote_read_pb2.ReadHints(func="rate", start_ms=1, end_ms=1_735_689_900_000, grouping=["x"]))
    yield remote_read_pb2.ReadRequest(queries=[query]).SerializeToString()
    yield remote_read_pb2.ReadRequest(
        queries=[query, query], accepted_response_types=["STREAMED_XOR_CHUNKS", "SAMPLES"]
    ).SerializeToString()


_TEXTS = st.sampled_from(("__name__", "up", "job", "", "a|b", "(", 'a"b', "é", "\n", "[5m]", "gauge", "x.y"))
_TIMES = st.sampled_from((0, 1, -1, 1_735_689_600_000, 1_735_689_900_000, (1 << 63) - 1, -(1 << 63)))


@st.composite
def _queries(draw: st.DrawFn) -> remote_read_pb2.Query:
    query = remote_read_pb2.Query(start_timestamp_ms=draw(_TIMES), end_timestamp_ms=draw(_TIMES))
    for kind, name, value in draw(st.lists(st.tuples(st.integers(0, 4), _TEXTS, _TEXTS), max_size=3)):
        query.matchers.add(type=kind, name=name, value=value)  # type: ignore[arg-type]
    if draw(st.booleans()):
        hints = remote_read_pb2.ReadHints(func=draw(st.sampled_from(("", "series", "rate"))))
        hints.start_ms, hints.end_ms = draw(_TIMES), draw(_TIMES)
        query.hints.CopyFrom(hints)
    return query


def strategy() -> st.SearchStrategy[bytes]:
    types = st.lists(st.integers(0, 2), max_size=2)
    return st.tuples(st.lists(_queries(), max_size=2), types).map(
        lambda drawn: remote_read_pb2.ReadRequest(
            queries=drawn[0],
            accepted_response_types=drawn[1],  # type: ignore[arg-type]
        ).SerializeToString()
    )


TARGETS = [Target("remote-read", _request, bodies, strategy)]
