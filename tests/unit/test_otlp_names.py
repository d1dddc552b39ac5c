"""Names of OpenTelemetry in Prometheus's form, in each of the four ways."""

from __future__ import annotations

import pytest

from coordinator.otlp.names import Names, units
from shared.settings import OTLP_STRATEGIES

ESCAPED, ESCAPED_PLAIN, UTF8, UNTOUCHED = map(Names.of, OTLP_STRATEGIES)


@pytest.mark.parametrize(
    ("name", "unit", "kind", "expected"),
    [
        ("http.server.request.duration", "s", "", "http_server_request_duration_seconds"),
        ("system.cpu.time", "s", "counter", "system_cpu_time_seconds_total"),
        ("requests.total", "", "counter", "requests_total"),
        ("requests", "{request}", "counter", "requests_total"),
        ("process.memory.bytes", "By", "gauge", "process_memory_bytes"),
        ("disk.io", "By/s", "gauge", "disk_io_bytes_per_second"),
        ("disk.io", "{operation}/s", "gauge", "disk_io_per_second"),
        ("cpu.utilization", "1", "gauge", "cpu_utilization_ratio"),
        ("cpu.ratio", "1", "counter", "cpu_ratio_total"),
        ("hits", "%", "gauge", "hits_percent"),
        ("a__b..c", "", "", "a_b_c"),
        ("1st", "", "", "_1st"),
        ("rule:sum", "", "", "rule:sum"),
        ("temperature", "Cel", "gauge", "temperature_celsius"),
        ("x", "widgets", "", "x_widgets"),
        ("überlast", "", "", "berlast"),
        ("total", "", "counter", "total"),
    ],
)
def test_the_usual_name_has_unit_and_kind_behind_it(name: str, unit: str, kind: str, expected: str) -> None:
    assert ESCAPED.metric(name, unit, is_counter=kind == "counter", is_gauge=kind == "gauge") == expected


@pytest.mark.parametrize(
    ("name", "unit", "kind", "escaped", "utf8", "untouched"),
    [
        ("http.requests", "s", "counter", "http_requests", "http.requests_seconds_total", "http.requests"),
        ("http.total", "", "counter", "http_total", "http_total", "http.total"),
        ("use", "1", "gauge", "use", "use_ratio", "use"),
        ("io_per_second", "By/s", "gauge", "io_per_second", "io_bytes_per_second", "io_per_second"),
        ("größe", "By", "gauge", "gr_e", "größe_bytes", "größe"),
    ],
)
def test_the_other_ways(name: str, unit: str, kind: str, escaped: str, utf8: str, untouched: str) -> None:
    names = [
        way.metric(name, unit, is_counter=kind == "counter", is_gauge=kind == "gauge")
        for way in (ESCAPED_PLAIN, UTF8, UNTOUCHED)
    ]
    assert names == [escaped, utf8, untouched]


@pytest.mark.parametrize(
    ("name", "escaped"),
    [
        ("http.method", "http_method"),
        ("1st", "key_1st"),
        ("_private", "key_private"),
        ("__reserved__", "__reserved__"),
        ("a..b", "a__b"),
        ("größe", "gr__e"),
    ],
)
def test_labels(name: str, escaped: str) -> None:
    assert ESCAPED.label(name) == ESCAPED_PLAIN.label(name) == escaped
    assert UTF8.label(name) == UNTOUCHED.label(name) == name


def test_units_of_metadata() -> None:
    assert [ESCAPED.unit(unit) for unit in ("s", "By/s", "1", "", "{call}", "{call}/min", "parsecs")] == [
        "seconds", "bytes_per_second", "", "", "", "per_min", "parsecs",
    ]  # fmt: skip
    assert units(" By / s ") == ("bytes", "second")
