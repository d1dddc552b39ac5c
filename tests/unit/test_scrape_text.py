"""Text expositions: lines that were there before and new ones, numbers, times, exemplars, and what is refused."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families as text_families

from coordinator.prometheus_config import relabelling, yaml_fields
from coordinator.scraping import series_text, target_series, text_lines
from coordinator.scraping.target_series import Labelling, Samples, TargetSeries
from shared import labels
from shared.errors import BadData

NOW = 1_700_000_000_123
Values = dict[str, float]


def new(**target: str) -> TargetSeries:
    return TargetSeries(Labelling(target))


def read(series: TargetSeries, text: str, *, is_openmetrics: bool = False) -> Samples:
    samples = series.read_text(text.encode(), is_openmetrics=is_openmetrics, time_ms=NOW)
    series.accept()
    return samples


def shown(series: TargetSeries, number: int) -> str:
    pairs = dict(labels.decode(series.labels[number]))
    name = pairs.pop("__name__")
    return name + ("{" + ",".join(f"{k}={v}" for k, v in pairs.items()) + "}" if pairs else "")


def values(series: TargetSeries, samples: Samples) -> Values:
    return {shown(series, n): v for n, v in zip(samples.numbers.tolist(), samples.values.tolist(), strict=True)}


TEXT = """# HELP http_requests_total The total number of HTTP requests.
# TYPE http_requests_total counter
http_requests_total{method="post",code="200"} 1027 1395066363000
http_requests_total{method="post",code="400"}    3 1395066363000

# a comment
msdos_file_access_time_seconds{path="C:\\\\DIR\\\\FILE.TXT",error="Cannot find file:\\n\\"FILE.TXT\\""} 1.458255915e9
metric_without_timestamp_and_labels 12.47
something_weird{problem="division by zero"} +Inf -3982045
  padded { a = "b" , c="} #" , }   7
"""


def test_lines_are_samples_with_their_labels_values_and_times() -> None:
    series = new()
    samples = read(series, TEXT)
    assert values(series, samples) == {
        "http_requests_total{code=200,method=post}": 1027,
        "http_requests_total{code=400,method=post}": 3,
        'msdos_file_access_time_seconds{error=Cannot find file:\n"FILE.TXT",path=C:\\DIR\\FILE.TXT}': 1.458255915e9,
        "metric_without_timestamp_and_labels": 12.47,
        "something_weird{problem=division by zero}": math.inf,
        "padded{a=b,c=} #}": 7,
    }
    assert samples.times_ms.tolist() == [1395066363000, 1395066363000, NOW, NOW, -3982045, NOW]
    assert samples.is_timed.tolist() == [True, True, False, False, True, False]
    assert samples.families is not None
    assert samples.families["http_requests_total"].type == "counter"
    assert samples.families["http_requests_total"].help == "The total number of HTTP requests."


def test_series_of_the_last_scrape_are_not_parsed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    series = new()
    lines = [f'metric_{i % 7}{{number="{i}"}} ' for i in range(100)]
    read(series, "".join(f"{line}{i}\n" for i, line in enumerate(lines)))
    parsed: list[bytes] = []
    real = series_text.series
    monkeypatch.setattr(series_text, "series", lambda text: (parsed.append(text), real(text))[1])
    changed = [*lines[:10], 'new{a="b"} ', *lines[12:]]
    samples = read(series, "".join(f"{line}{i * 0.5}\n" for i, line in enumerate(changed)))
    assert parsed == [b'new{a="b"}']
    found = values(series, samples)
    assert found["metric_5{number=12}"] == 5.5 and found["new{a=b}"] == 5.0 and len(found) == 99
    shuffled = list(reversed(changed))
    again = read(series, "".join(f"{line}{i}\n" for i, line in enumerate(shuffled)))
    assert len(parsed) == 1 and values(series, again)["new{a=b}"] == shuffled.index('new{a="b"} ')


def test_a_name_that_begins_like_the_last_one_is_another_series() -> None:
    series = new()
    read(series, "a 1\nab 2\n")
    assert values(series, read(series, 'a {x="y"} 3\nab{x="y"} 4\na 5\nabc 6\n')) == {
        "a{x=y}": 3,
        "ab{x=y}": 4,
        "a": 5,
        "abc": 6,
    }


NUMBERS = ["0", "-0", "1e3", "+1.5", ".5", "5.", "1e-07", "123456789012345678", "1.7976931348623157e308", "4.9e-324",
           "0.1", "9007199254740993", "1e22", "1e23", "123456789.123456", "-Inf", "inf", "+INF", "1e400"]  # fmt: skip


@pytest.mark.parametrize("text", NUMBERS)
def test_numbers_are_those_of_the_nearest_float(text: str) -> None:
    assert struct.pack("<d", read(new(), f"a {text}\n").values[0]) == struct.pack("<d", float(text))


@given(st.floats(allow_nan=False))
def test_every_number_that_is_written_is_read(value: float) -> None:
    assert read(new(), f"a {value!r}\n").values.tolist() == [value]


@pytest.mark.parametrize("text", ["nan", "NaN", "NAN"])
def test_not_a_number_is_no_staleness_marker(text: str) -> None:
    assert struct.pack("<d", read(new(), f"a {text}\n").values[0]) == struct.pack("<d", math.nan)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a\n", "line 1 is 'a'"),
        ("ok 1\na b\n", "line 2 is 'a b': 'b' is not a number"),
        ("a 0x10\n", "'0x10' is not a number"),
        ("a 1_0\n", "'1_0' is not a number"),
        ("a 1 2 3\n", "not a sample"),
        ("a 1 2.5\n", "not a sample"),
        ('a{b="c} 1\n', "not a sample"),
        ("a{b=c} 1\n", "no label"),
        ('a{b="c" d="e"} 1\n', "no label"),
        ('a{b="c",b="d"} 1\n', "appears twice"),
        ('{a="b"} 1\n', "no metric name"),
        ('a{"b"} 1\n', "without a value"),
        ("1a 1\n", "not a metric name"),
        ("ä 1\n", "stands in quotes"),
        ('a # {b="c"} 1\n', "not a sample"),
        ('a 1 # {b="c"} 1\n', "not a sample"),
    ],
)
def test_the_first_line_that_is_no_sample_is_named(text: str, why: str) -> None:
    with pytest.raises(BadData) as refused:
        read(new(), text)
    assert why in str(refused.value)


def test_text_that_is_not_utf8_is_refused() -> None:
    with pytest.raises(BadData, match="not UTF-8"):
        new().read_text(b'a{b="\xff"} 1\n', is_openmetrics=False, time_ms=NOW)


def test_names_in_quotes_may_have_any_character() -> None:
    series = new()
    assert values(series, read(series, '{"my.metric","a b"="c",d="e"} 1\n{"x"} 2\n')) == {
        "my.metric{a b=c,d=e}": 1,
        "x": 2,
    }


OPENMETRICS = """# TYPE requests counter
# UNIT requests requests
requests_total{path="/"} 5 # {trace_id="abc"} 0.5 1700000000.25
requests_created{path="/"} 1699999999.5
# TYPE latency histogram
latency_bucket{le="1"} 2 # {trace_id="x}y"} 0.7
latency_bucket{le="+Inf"} 3
latency_count 3
latency_sum 4.5
latency_created 1.6e9
# TYPE other gauge
other 1 1700000000.5
# EOF
"""


def test_openmetrics_has_exemplars_creation_times_and_seconds() -> None:
    series = new()
    samples = read(series, OPENMETRICS, is_openmetrics=True)
    found = values(series, samples)
    assert found["requests_total{path=/}"] == 5 and found["latency_bucket{le=1.0}"] == 2
    assert found["requests_created{path=/}"] == 1699999999.5
    names = [shown(series, number) for number in samples.numbers.tolist()]
    assert samples.starts_ms is not None
    starts = dict(zip(names, samples.starts_ms.tolist(), strict=True))
    assert starts["requests_total{path=/}"] == 1699999999500
    assert starts["latency_bucket{le=1.0}"] == starts["latency_sum"] == 1_600_000_000_000
    assert starts["other"] == starts["latency_created"] == 0
    assert dict(zip(names, samples.times_ms.tolist(), strict=True))["other"] == 1700000000500
    first, second = (exemplar for _, exemplar in samples.exemplars)
    assert (first.labels, first.value, first.time_ms) == ((("trace_id", "abc"),), 0.5, 1700000000250)
    assert (second.labels, second.time_ms) == ((("trace_id", "x}y"),), NOW)
    assert samples.families is not None and samples.families["requests"].suffix == "_total"
    again = read(series, OPENMETRICS, is_openmetrics=True)
    assert again.exemplars == [] and again.families is None
    assert again.starts_ms is not None and again.starts_ms.tolist() == samples.starts_ms.tolist()


def test_creation_times_may_come_later_than_the_series() -> None:
    series = new()
    read(series, "# TYPE a counter\na_total 1\n# EOF\n", is_openmetrics=True)
    samples = read(series, "# TYPE a counter\na_total 1\na_created 5.5\n# EOF\n", is_openmetrics=True)
    assert samples.starts_ms is not None and samples.starts_ms.tolist() == [5500, 0]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a 1\n", "does not end with # EOF"),
        ("a 1\n# EOF\nb 1\n", "line 3"),
        ("a 1 # nothing\n# EOF\n", "no exemplar"),
        ('a 1 # {b="c"} x\n# EOF\n', "not a number"),
        ("a 1 1e30\n# EOF\n", "not a time"),
        ('b 1\na{b="c"}.5\n# EOF\n', "line 2 is 'a{b=\"c\"}.5'"),  # which a reader may take for 5
    ],
)
def test_openmetrics_that_is_cut_off_or_wrong_is_refused(text: str, why: str) -> None:
    with pytest.raises(BadData) as refused:
        read(new(), text, is_openmetrics=True)
    assert why in str(refused.value)


def test_labels_of_the_target_win_and_the_exposed_ones_are_renamed() -> None:
    series = TargetSeries(Labelling({"job": "j", "exported_job": "k"}))
    assert values(series, read(series, 'a{job="own",b="c"} 1\n')) == {
        "a{b=c,exported_exported_job=own,exported_job=k,job=j}": 1
    }


def test_honored_labels_win_also_when_they_are_empty() -> None:
    series = TargetSeries(Labelling({"job": "j", "instance": "i"}, honor_labels=True))
    assert values(series, read(series, 'a{job="own",instance=""} 1\nb 2\n')) == {
        "a{job=own}": 1,
        "b{instance=i,job=j}": 2,
    }


@pytest.mark.parametrize(
    ("labelling", "why"),
    [
        (Labelling({}, labels_max=2), "has 3 labels; the limit is 2"),
        (Labelling({}, name_bytes_max=8), "longer than 8 bytes"),
        (Labelling({}, value_bytes_max=3), "longer than 3 bytes"),
        (Labelling({}, only_plain_names=True), "not plain"),
    ],
)
def test_labels_beyond_the_limits_fail_the_scrape(labelling: Labelling, why: str) -> None:
    with pytest.raises(BadData) as refused:
        TargetSeries(labelling).read_text(
            'abcd{long_name="xyz!","ä"="y"} 1\n'.encode(), is_openmetrics=False, time_ms=NOW
        )
    assert why in str(refused.value)


def test_metric_names_are_plain_where_the_job_requires_it() -> None:
    with pytest.raises(BadData, match=r"'my\.metric' is not plain"):
        read(TargetSeries(Labelling({}, only_plain_names=True)), '{"my.metric"} 1\n')


def test_a_rule_that_would_set_a_name_that_is_not_plain_is_passed_over_where_the_job_requires_plain_ones() -> None:
    (section,) = yaml_fields.parse(b"rules: [{target_label: my.label, replacement: x}]", "a.yml").sections("rules")
    labelling = Labelling({}, rules=relabelling.read([section]), only_plain_names=True)
    series = TargetSeries(labelling)
    assert values(series, read(series, "a 1\n")) == {"a": 1}


def test_what_targets_no_longer_have_is_forgotten() -> None:
    series = new()
    for turn in range(20):
        samples = read(series, "".join(f'a{{turn="{turn}",i="{i}"}} 1\n' for i in range(200)))
        series.live = samples.numbers
    live = {series.labels[number] for number in series.live.tolist()}
    assert len(live) == 200 and len(series.labels) <= 2 * 200 + target_series.SPARE_SERIES + 200
    assert all(("turn", "19") in labels.decode(label_bytes) for label_bytes in live)


def test_the_lines_of_one_answer_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target_series, "LINES_MAX", 10)
    with pytest.raises(BadData, match="the limit is 10"):
        read(new(), "\n" * 10)


def test_labels_end_at_the_brace_outside_quotes() -> None:
    import numpy as np

    data = np.frombuffer(b'{a="}\\"}"} 1', np.uint8)
    assert text_lines.labels_end(data, 0) == 10


NAMES = st.sampled_from(["a", "ab", "a:b", "_x", "B9", "foo_total", "foo_created", "foo_bucket"])
LABEL_NAMES = st.sampled_from(["a", "b9", "le", "quantile", "Z_"])
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
FLOATS = st.floats().map(repr)


@st.composite
def expositions(draw: st.DrawFn) -> str:
    lines = {}
    for _ in range(draw(st.integers(0, 6))):
        own = draw(st.dictionaries(LABEL_NAMES, TEXTS, max_size=3))
        pairs = ",".join(f'{k}="{_escaped(v)}"' for k, v in sorted(own.items()))
        lines[f"{draw(NAMES)}{'{' + pairs + '}' if pairs else ''}"] = draw(FLOATS)
    return "".join(f"{series} {value}\n" for series, value in lines.items())


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(expositions(), min_size=1, max_size=3), st.booleans())
def test_what_the_client_library_reads_is_read_the_same(texts: list[str], is_openmetrics: bool) -> None:
    """One scrape after another, so that lines are compared with those before."""
    series = new()
    for text in texts:
        text += "# EOF\n" if is_openmetrics else ""
        parse = openmetrics_families if is_openmetrics else text_families
        try:
            expected = [sample for family in parse(text) for sample in family.samples]
        except (ValueError, KeyError, IndexError, TypeError):
            continue
        samples = read(series, text, is_openmetrics=is_openmetrics)
        pairs = [dict(labels.decode(series.labels[number])) for number in samples.numbers.tolist()]
        assert [_named(sample.name, sample.labels) for sample in expected] == pairs
        ours, theirs = samples.values.tolist(), [float(sample.value) for sample in expected]
        assert all(a == b or (math.isnan(a) and math.isnan(b)) for a, b in zip(ours, theirs, strict=True))


def _named(name: str, own: Mapping[str, str]) -> dict[str, str]:
    return {"__name__": name, **{k: v for k, v in own.items() if v}}
