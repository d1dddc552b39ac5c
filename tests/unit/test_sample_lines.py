"""Lines of samples: Prometheus's text format and JSON."""

from __future__ import annotations

import io
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.command_client import CommandError
from coordinator.commands import lines
from coordinator.commands.sample_lines import Samples, parse

NOW_MS = 1_700_000_000_000


def read(*texts: str, **labels: str) -> Samples:
    samples = Samples()
    for text in texts:
        samples.read(text.encode(), NOW_MS, labels)
    return samples


@pytest.mark.parametrize(
    ("text", "labels", "time_ms", "value"),
    [
        ("up 1", {"__name__": "up"}, None, 1.0),
        ("up 1e3 1700000000000", {"__name__": "up"}, 1_700_000_000_000, 1000.0),
        ("a:b{} -Inf -5", {"__name__": "a:b"}, -5, -math.inf),
        ('m{a="1",b="x y",} 2', {"__name__": "m", "a": "1", "b": "x y"}, None, 2.0),
        ('m { a = "1" , b = "2" } +2.5 7', {"__name__": "m", "a": "1", "b": "2"}, 7, 2.5),
        ('m{a="q\\"u\\\\o\\nte}"} 2', {"__name__": "m", "a": 'q"u\\o\nte}'}, None, 2.0),
        ('{"my.metric","my.label"="é",c="1"} 3', {"__name__": "my.metric", "my.label": "é", "c": "1"}, None, 3.0),
        ("\tup\t1\t2\t", {"__name__": "up"}, 2, 1.0),
    ],
)
def test_a_line_of_text(text: str, labels: dict[str, str], time_ms: int | None, value: float) -> None:
    assert parse(text) == (labels, time_ms, value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("up", "'' is not a value"),
        ("up one", "'one' is not a number"),
        ("up 1_0", "is not a value"),
        ("up-1", "'-1' is not a value"),
        ("up 1 2 3", "is not a value"),
        ("up 1 2.5", "is not a value"),
        ("1 2", "no metric name"),
        ('{a="b"} 1', "no metric name"),
        ("m{a=b} 1", "'a=b} 1' is not a label"),
        ('m{a="b" 1', "is not a label"),
        ("m{a} 1", "'a' has no value"),
        ('m{"n"} 1', "'__name__' appears twice"),
        ('m{a="1",a="2"} 1', "'a' appears twice"),
        ('m{a="\\x"} 1', "is not an escape"),
        ("up 1 9999999999999999999", "must be Unix milliseconds"),
        ("up 1 1" + "0" * 5000, "an optional time in Unix milliseconds"),
        ('{"metric": {"a": 1}, "value": 1}', "$.metric"),
        ('{"metric": {}}', "neither"),
        ('{"metric": {}, "values": [1], "timestamps": []}', "1 values and 0 timestamps"),
        ('{"metric": {}, "value": "x"}', "could not convert"),
        ('{"metric": ' + "[" * 5000 + "}", "$.metric"),
        ('{"a"}', "malformed"),
    ],
)
def test_a_wrong_line_is_refused_with_what_is_wrong(text: str, says: str) -> None:
    samples = Samples()
    with pytest.raises(ValueError) as refused:
        samples.read(text.encode(), NOW_MS, {})
    assert says in str(refused.value)
    assert (samples.series, samples.count) == ({}, 0)


def test_json_has_one_sample_or_many() -> None:
    samples = read(
        '{"metric": {"__name__": "a", "b": "1"}, "values": [1, null, "Infinity"], "timestamps": [1, 2, 3]}',
        '{"metric": {"__name__": "a"}, "value": 5, "timestamp": 9}',
        '{"metric": {"__name__": "a"}, "value": 6}',
    )
    (first, many), (second, two) = samples.series.items()
    assert first == (("__name__", "a"), ("b", "1"))
    assert [time_ms for time_ms, _ in many] == [1, 2, 3]
    assert many[0][1] == 1 and math.isnan(many[1][1]) and many[2][1] == math.inf
    assert (second, two) == ((("__name__", "a"),), [(9, 5.0), (NOW_MS, 6.0)])
    assert samples.count == 5


def test_samples_of_a_series_are_together_and_get_the_labels_of_the_command() -> None:
    samples = read("a 1 1", 'b{job="own"} 2 2', "", "a 3 3", job="backup")
    assert samples.series == {
        (("__name__", "a"), ("job", "backup")): [(1, 1.0), (3, 3.0)],
        (("__name__", "b"), ("job", "backup")): [(2, 2.0)],
    }


def test_comments_say_type_and_help_of_families() -> None:
    samples = read("# HELP a What it\\nis", "# TYPE a counter", '# TYPE "b.c" gauge', "# EOF", "# TYPE d odd")
    families = {name: (family.type, family.help) for name, family in samples.families.items()}
    assert families == {"a": (1, "What it\nis"), "b.c": (2, ""), "d": (0, "")}
    later = Samples(samples.known)
    later.read(b"# TYPE a gauge", NOW_MS, {})
    assert {name: family.help for name, family in later.families.items()} == {"a": "What it\nis"}


@pytest.mark.parametrize(
    ("written", "text"),
    [
        (r"in C:\\new\\table", r"in C:\new\table"),
        (r"a\nb\\n", "a\nb\\n"),
        (r"a\\\nb", "a\\\nb"),
        (r"a \"b\" \c \\", 'a \\"b\\" \\c \\'),
    ],
)
def test_a_help_is_unescaped_once(written: str, text: str) -> None:
    assert read(f"# HELP a {written}").families["a"].help == text


@given(st.text('ab_:1. -{}",=\\né\t', max_size=30))
def test_any_text_is_read_or_refused(text: str) -> None:
    for line in (text, f"m{{{text}}} 1", f'm{{a="{text}"}} 1', f"m {text}"):
        try:
            labels, _, _ = parse(line)
        except ValueError:
            continue
        assert labels["__name__"]


class Trickle(io.BytesIO):
    """Gives what was written at a time, as a pipe does."""

    def __init__(self, *parts: bytes) -> None:
        super().__init__()
        self._parts = list(parts)

    def read1(self, size: int | None = -1, /) -> bytes:
        return self._parts.pop(0) if self._parts else b""


def test_lines_come_as_soon_as_they_are_complete() -> None:
    stream = Trickle(b"one\ntw", b"o", b"\nthree\n", b"four")
    assert list(lines.read_lines(stream)) == [[(1, b"one")], [], [(2, b"two"), (3, b"three")], [], [(4, b"four")]]


def test_a_line_without_an_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "LINE_BYTES_MAX", 1 << 20)
    stream = Trickle(b"a\n", *[b"x" * (1 << 19)] * 4)
    with pytest.raises(CommandError, match="line 2 has more than 1 MiB"):
        list(lines.read_lines(stream))
