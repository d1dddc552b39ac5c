"""Remote-write requests with everything that a series may have: samples and their start timestamps, histograms that are
valid or broken in any one way, exemplars, references into a table of symbols and past it."""

from __future__ import annotations

from random import Random
from typing import Any

from hypothesis import strategies as st

from loadtest.harness.histogram_messages import histogram_message
from proto import remote_write_pb2, remote_write_v2_pb2
from shared.frames.samples import TIME_MS_MAX, TIME_MS_MIN
from shared.protobuf_fields import delimited_head
from tests.histogram_strategies import WHOLE, custom, exponential
from tests.unit.test_histograms_decoding import REFUSED, encode

SYMBOLS = ("", "__name__", "m", "a", "b", "é", "x" * 300, "n")
"""The table of a request of version 2.0."""
PAIRS = [(1, 2), (3, 4), (3, 0), (4, 3), (5, 6), (1, 7)]
"""Labels, as places in SYMBOLS."""
_LONG = 200
"""A histogram that is broken by its size is not made larger than this: 10,000 buckets would be all that a run does."""

_times = st.sampled_from(
    (0, 1, 2, 3, 1_735_689_600_000, -1, TIME_MS_MIN, TIME_MS_MAX) * 3
    + (TIME_MS_MIN - 1, TIME_MS_MAX + 1, -(1 << 63), (1 << 63) - 1)
)
_starts = st.just(0) | _times
_counts = st.sampled_from((0.0, 1.0, 2.5, -1.0, 1e308, float("inf"), float("-inf"), float("nan")))
_deltas = st.sampled_from((0, 0, 1, 2, -1, (1 << 63) - 1, -(1 << 63)))
_spans = st.lists(
    st.tuples(
        st.sampled_from((0, 0, 1, 2, -1, 1023, 1025, (1 << 31) - 1, -(1 << 31))),
        st.sampled_from((0, 1, 1, 2, 3, 1 << 31, (1 << 32) - 1)),
    ),
    max_size=4,
)
_bounds = st.lists(st.sampled_from((-1.0, 0.0, 0.5, 1.0, 1.0, 2.0, float("inf"), float("nan"))), max_size=4)


def _valid() -> st.SearchStrategy[bytes]:
    whole = st.tuples(exponential(WHOLE) | custom(WHOLE), st.integers(0, 1 << 30), st.booleans())
    fractional = st.tuples(exponential() | custom(), st.integers(0, 1 << 30), st.just(True))
    return (whole | fractional).map(lambda drawn: encode(drawn[0], Random(drawn[1]), is_float=drawn[2]))


def _broken() -> st.SearchStrategy[bytes]:
    """Each broken in one way, as `REFUSED` lists them."""
    small = [fields for *_, fields in REFUSED if all(_length(value) <= _LONG for value in fields.values())]
    return st.sampled_from(small).map(lambda fields: histogram_message(**fields))


def _length(value: Any) -> int:
    return len(value) if hasattr(value, "__len__") else 1


@st.composite
def _free(draw: st.DrawFn) -> bytes:
    """Fields that need not fit each other."""
    fields: dict[str, Any] = {"schema": draw(st.sampled_from((0, 0, 3, -4, 8, -53, -53, 9, 52, -5, (1 << 31) - 1)))}
    for side in ("positive", "negative"):
        if draw(st.booleans()):
            fields[f"{side}_spans"] = draw(_spans)
            fields[f"{side}_deltas"] = draw(st.lists(_deltas, max_size=4))
        elif draw(st.booleans()):
            fields[f"{side}_spans"] = draw(_spans)
            fields[f"{side}_counts"] = draw(st.lists(_counts, max_size=4))
    for name in ("count", "zero_count"):
        kind = draw(st.sampled_from(("int", "float", "")))
        if kind:
            fields[f"{name}_{kind}"] = draw(st.sampled_from((0, 1, 3, (1 << 64) - 1)) if kind == "int" else _counts)
    for name, values in (("sum", _counts), ("zero_threshold", _counts), ("custom_values", _bounds)):
        if draw(st.booleans()):
            fields[name] = draw(values)
    return histogram_message(
        reset_hint=draw(st.integers(-1, 5)), is_packed=draw(st.booleans()), **fields
    )  # fmt: skip


@st.composite
def histograms(draw: st.DrawFn) -> bytes:
    """A message of a histogram, valid or not. Fields behind others of the same number take their place."""
    kind = draw(st.integers(0, 9))
    message = draw(_valid() if kind < 5 else _broken() if kind < 7 else _free())
    if kind == 8:
        return message[: draw(st.integers(0, len(message)))]
    if kind == 9:
        return draw(st.binary(max_size=12))
    return message + histogram_message(timestamp=draw(_times), start_timestamp=draw(_starts))


_label_sets = st.sampled_from([PAIRS[:1], PAIRS[:2], PAIRS[1::-1]]) | st.lists(st.sampled_from(PAIRS), max_size=3)
_series = st.tuples(
    _label_sets,
    st.lists(st.tuples(_times, st.floats(), _starts), max_size=3),
    st.lists(histograms(), max_size=3),
    st.lists(st.tuples(st.lists(st.sampled_from(PAIRS), max_size=2), st.floats(), _times), max_size=3),
)


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    """Requests of version 1.0."""
    request = remote_write_pb2.RawWriteRequest()
    for pairs, samples, messages, exemplars in draw(st.lists(_series, max_size=4)):
        entry = remote_write_pb2.TimeSeries(histograms=messages)
        for target, own in [(entry, pairs)] + [
            (entry.exemplars.add(value=value, timestamp=time), own) for own, value, time in exemplars
        ]:
            for name, value in own:
                target.labels.add(name=SYMBOLS[name], value=SYMBOLS[value])
        for time, value, start in samples:
            entry.samples.add(timestamp=time, value=value, start_timestamp=start)
        request.timeseries.append(entry.SerializeToString())
    return request.SerializeToString()


_odd_references = st.lists(
    st.integers(0, len(SYMBOLS) + 1) | st.sampled_from((127, 1 << 21, (1 << 32) - 1)), max_size=5
)


@st.composite
def bodies_v2(draw: st.DrawFn) -> bytes:
    """Requests of version 2.0."""
    request = remote_write_v2_pb2.Request(symbols=SYMBOLS[: draw(st.sampled_from((8, 8, 8, 8, 7, 2, 0)))])
    body = [request.SerializeToString()]
    references = st.lists(st.sampled_from(PAIRS), max_size=3).map(lambda pairs: [ref for pair in pairs for ref in pair])
    for pairs, samples, messages, exemplars in draw(st.lists(_series, max_size=4)):
        own = [ref for pair in pairs for ref in pair]
        is_odd = draw(st.integers(0, 5)) == 5
        entry = remote_write_v2_pb2.RawTimeSeries(
            labels_refs=draw(_odd_references) if is_odd else own,
            histograms=messages,
            created_timestamp=draw(_starts),
        )
        for _, value, time in exemplars:
            drawn = draw(references | _odd_references)
            exemplar = remote_write_v2_pb2.Exemplar(labels_refs=drawn, value=value, timestamp=time)
            entry.exemplars.append(exemplar.SerializeToString())
        for time, value, start in samples:
            entry.samples.add(timestamp=time, value=value, start_timestamp=start)
        if draw(st.integers(0, 5)) == 5:
            entry.metadata.type, entry.metadata.help_ref = draw(st.integers(-1, 9)), draw(st.integers(0, 9))
        content = entry.SerializeToString()
        body.append(delimited_head(5, len(content)) + content)
    return b"".join(body)
