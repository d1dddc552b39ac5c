"""OpenMetrics text is read by a kernel as one reads it line by line."""

from __future__ import annotations

import re
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.transfer import openmetrics, openmetrics_walk
from coordinator.transfer.sample_files import sources_of
from shared import labels

Found = dict[bytes, list[tuple[int, bytes]]]
LINE = re.compile(rb'([^\s{#]*+(?:\{(?:[^"}]++|"(?:[^"\\]++|\\.)*+")*+\})?+)[ \t]+(\S+)[ \t]+(\S+)[ \t]*(?:#.*)?\r?')

HEADS = (
    b"up", b"up{}", b'up{job="a"}', b'up{job="a",}', b'up{job="b"}', b"upper", b"u", b'up{job="}\\" # 1 1"}',
    b'{"n.m",x="y"}', b'{"up",job="a"}', b'up{ job = "a" }', "up{job=\"ü\"}".encode(), b"x1", b"x2", b"x3",
    b'{x="y"}', b'up{job="a",job="a"}', b'up{job="a"', b"{", b"", b'up{job="\\n\\\\"}', b"up{job}", b'up{job="\xff"}',
)  # fmt: skip
NUMBERS = (
    b"0", b"1", b"-1.5", b"+2", b"1e3", b"1.5E-7", b"NaN", b"nan", b"-nan", b"+Inf", b"-inf", b"Infinity", b"1_0", b"x",
    b".5", b"5.", b".", b"-", b"1e", b"1e+", b"1e400", b"1e-400", b"0.1234567890123456789", b"123456789012345678",
    b"0.30000000000000004", b"1700000000.123", b"1700000000.1235", b"-0", b"-0.001", b"1e12", b"999999999999.9994",
    b"inf", b"1#x", b"0x1", b"\xc2\xb2",
)  # fmt: skip
BLANKS = st.sampled_from([b" "] * 8 + [b"  ", b"\t", b"", b"\x0b", b" \t "])
TAILS = st.sampled_from(
    [b""] * 8 + [b"\r", b" ", b' # {a="b"} 1', b"# {}", b" #", b" 1", b"\r\r", b"\x0c", b" # x\r", b" \r"]
)
SAMPLES = st.tuples(
    st.sampled_from(HEADS[:15] * 3 + HEADS), BLANKS, st.sampled_from(NUMBERS[:10] * 3 + NUMBERS), BLANKS,
    st.sampled_from((b"1700000000", b"1700000015.5") * 20 + NUMBERS), TAILS,
).map(b"".join)  # fmt: skip
TIMES = st.sampled_from([b"0", b"1.5", b"1700000000.123", b"1700000000.1235", b"-0.001", b"1.7e9"])
PLAIN = st.tuples(st.sampled_from(HEADS[:15]), st.sampled_from(NUMBERS[:8]), TIMES).map(b" ".join)
OTHERS = st.sampled_from(
    [
        b"",
        b" ",
        b"# HELP up x",
        b"# EOF",
        b" # EOF \r",
        b"# EOF.",
        b"#",
        b"\x0b",
        b"\r",
        b"# E",
        b"  up 1 1",
        b"nonsense",
    ]
)


def held(arrays: openmetrics.SeriesArrays) -> Found:
    found: Found = {}
    for label_bytes, first, count in zip(arrays.labels, arrays.firsts.tolist(), arrays.counts.tolist(), strict=True):
        own = slice(first, first + count)
        words = [struct.pack("<d", value) for value in arrays.values[own].tolist()]
        assert label_bytes not in found
        found[label_bytes] = list(zip(arrays.times_ms[own].tolist(), words, strict=True))
    return found


def line_by_line(text: bytes) -> tuple[Found, int]:
    """(The samples of each series, 0), or of a text that is wrong (nothing, the number of the wrong line)."""
    found: Found = {}
    has_ended, late = False, 0
    for number, line in enumerate(text.split(b"\n"), 1):
        fields = LINE.fullmatch(line)
        if fields is None:
            has_ended |= line.strip() == b"# EOF"
            if line.strip() and not line.strip().startswith(b"#"):
                return {}, number
            continue
        try:
            label_bytes = labels.encode(tuple(openmetrics._labels(fields[1].decode()).items()))
            value, seconds = float(fields[2]), float(fields[3])
        except ValueError:
            return {}, number
        if has_ended:
            return {}, number
        if not abs(seconds) < 1e12:
            late = late or number
            continue
        found.setdefault(label_bytes, []).append((int(np.rint(seconds * 1000)), struct.pack("<d", value)))
    return ({}, late) if late else (found, 0)


def require_same(text: bytes) -> None:
    expected, wrong = line_by_line(text)
    reader = openmetrics.Reader()
    if wrong:
        with pytest.raises(ValueError, match=rf"^line {wrong}\b"):
            reader.read(text)
    else:
        found = held(reader.read(text))
        assert found == expected
        assert list(found) == list(expected)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.one_of(PLAIN, PLAIN, SAMPLES, OTHERS), max_size=12), st.sampled_from([b"", b"\n"]))
def test_any_lines_are_read_as_line_by_line(lines: list[bytes], end: bytes) -> None:
    require_same(b"\n".join(lines) + end)


@settings(max_examples=150, deadline=None)
@given(st.one_of(SAMPLES, OTHERS))
def test_any_line_is_read_as_by_itself(line: bytes) -> None:
    require_same(line)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(PLAIN, max_size=5), max_size=4))
def test_slices_are_read_as_the_whole(slices: list[list[bytes]]) -> None:
    reader, found = openmetrics.Reader(), dict[bytes, list[tuple[int, bytes]]]()
    for lines in slices:
        for label_bytes, pairs in held(reader.read(b"".join(line + b"\n" for line in lines))).items():
            found.setdefault(label_bytes, []).extend(pairs)
    assert found == line_by_line(b"\n".join(line for lines in slices for line in lines))[0]
    with pytest.raises(ValueError, match=rf"^line {sum(map(len, slices)) + 2} "):
        reader.read(b"# EOF\nup 1 1\n")


def in_any_order(series: int, samples: int) -> bytes:
    numbers = np.random.default_rng(1).integers(0, series, samples).tolist()
    return "".join(f'metric_{i % 7}{{i="{i}"}} {k} {k}\n' for k, i in enumerate(numbers)).encode()


def test_series_in_any_order_are_found_again() -> None:
    require_same(in_any_order(300, 3000))


def test_lines_that_are_plain_need_no_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    def fields(*_: object) -> list[bytes]:
        raise AssertionError("a line was read by interpreted code")

    monkeypatch.setattr(openmetrics.Reader, "_fields", fields)
    numbers = (b"1", b"-1.5", b"NaN", b"+Inf", b"0.30000000000000004", b"5e-324", b"1e22")
    lines = [b'up{i="%d"} %b 1700000000.123 # {a="b"} 1\r\n' % (k % 3, number) for k, number in enumerate(numbers)]
    with pytest.raises(AssertionError, match="interpreted"):
        openmetrics.Reader().read(b"up 5e-324 1\n")
    found = held(openmetrics.Reader().read(b"".join(lines[:5])))
    assert [len(pairs) for pairs in found.values()] == [2, 2, 1]


def test_a_file_is_sent_in_batches_that_go_on_at_any_position(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coordinator.transfer.sample_files.SAMPLE_LINES_MAX", 3)
    path = tmp_path / "a.om"
    path.write_bytes(b"# TYPE a gauge\n" + b"".join(b"a %d %d\n" % (k, k) for k in range(10)) + b"# EOF\n")
    (source,) = sources_of(path)
    batches = list(source.batches(0))
    assert [batch.size for batch in batches] == [15 + 12, 18, 18, 12 + 6]
    assert batches[-1].position == source.size == sum(batch.size for batch in batches)
    for number, batch in enumerate(batches):
        assert [own.body for own in source.batches(batch.position)] == [own.body for own in batches[number + 1 :]]


def test_a_text_that_finds_no_slot_counts_as_another_series() -> None:
    text = in_any_order(40, 400)
    rows, firsts = np.empty((401, openmetrics_walk.COLUMNS), np.int64), np.empty(401, np.int64)
    summary, slots = np.empty(3, np.int64), np.full(1, -1)  # one slot, which is taken
    data = np.frombuffer(text, np.uint8)
    openmetrics_walk.walk(data, False, slots, rows, firsts, np.empty(401), np.empty(401), summary)
    assert summary[openmetrics_walk.ROWS] == 400
    assert 40 < summary[openmetrics_walk.TEXTS] < 400
