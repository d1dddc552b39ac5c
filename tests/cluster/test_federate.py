"""GET /federate: the newest sample of each chosen series, as a scraper reads it."""

from __future__ import annotations

import gzip
import itertools
import json
import math
import struct
import time
import urllib.parse
import urllib.request
from pathlib import Path

import pytest
import snappy
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.parser import text_string_to_metric_families as plain_families

from loadtest.harness.cluster import Cluster, Response
from loadtest.harness.histogram_messages import histogram_message
from loadtest.harness.ports import free_port
from loadtest.harness.remote_write_bodies import HEADERS, compressed
from proto import remote_write_pb2
from tests.cluster.prometheus import needs_prometheus, prometheus
from tests.remote_read_answers import of_samples, query_of, request_body

OPENMETRICS = {"Accept": "application/openmetrics-text;version=1.0.0;q=0.8,text/plain;version=0.0.4;q=0.5"}
UTF_8 = {"Accept": "text/plain;version=1.0.0;escaping=allow-utf-8"}
STALE = struct.unpack("<d", struct.pack("<Q", 0x7FF0000000000002))[0]
COUNTER, GAUGE, HISTOGRAM = 1, 2, 3
_numbers = itertools.count()


@pytest.fixture
def name() -> str:
    return f"federated_{next(_numbers)}"


def now_ms() -> int:
    return int(time.time() * 1000)


def write(cluster: Cluster, *series: tuple[dict[str, str], list[tuple[int, float]]]) -> None:
    assert cluster.request("POST", "/api/v1/write", compressed(series), HEADERS).status == 204


def federated(cluster: Cluster, *selectors: str, headers: dict[str, str] | None = None, **more: str) -> Response:
    query = urllib.parse.urlencode([*(("match[]", text) for text in selectors), *more.items()])
    return cluster.request("GET", f"/federate?{query}", headers=headers or {})


def test_each_series_has_its_newest_sample_with_its_own_time(cluster: Cluster, name: str) -> None:
    at = now_ms()
    write(
        cluster,
        ({"__name__": name, "job": "b"}, [(at - 20_000, 1.0), (at - 7_123, 2.5)]),
        ({"__name__": name, "job": "a", "instance": "i:1"}, [(at - 1_000, math.inf)]),
        ({"__name__": name, "job": "gone"}, [(at - 9_000, 1.0), (at - 8_000, STALE)]),
        ({"__name__": name, "job": "old"}, [(at - 400_000, 1.0)]),
    )
    answer = federated(cluster, f'{{__name__="{name}"}}')
    assert answer.status == 200
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert answer.body.decode() == (
        f"# TYPE {name} untyped\n"
        f'{name}{{instance="i:1",job="a"}} +Inf {at - 1_000}\n'
        f'{name}{{instance="",job="b"}} 2.5 {at - 7_123}\n'
    )
    older = federated(cluster, name, lookback_delta="10m").body.decode()
    assert 'job="old"' in older


def test_a_series_that_several_selectors_choose_is_there_once(cluster: Cluster, name: str) -> None:
    at = now_ms() - 1_000
    write(cluster, *(({"__name__": f"{name}_{i % 2}", "i": str(i)}, [(at, float(i))]) for i in range(40)))
    text = federated(cluster, f"{name}_0", f'{{__name__=~"{name}_.*"}}', f"{name}_1").body.decode().splitlines()
    assert text.count(f"# TYPE {name}_0 untyped") == text.count(f"# TYPE {name}_1 untyped") == 1
    samples = [line for line in text if not line.startswith("#")]
    assert len(samples) == len(set(samples)) == 40
    assert text.index(f"# TYPE {name}_1 untyped") == 21


def test_openmetrics_is_answered_to_those_who_accept_it(cluster: Cluster, name: str) -> None:
    at = now_ms() - 1_000
    write(
        cluster,
        ({"__name__": f"{name}_requests_total", "path": '/a"b\\c\nd'}, [(at, 3.0)]),
        ({"__name__": f"{name}_size"}, [(at, math.nan)]),
    )
    answer = federated(cluster, f'{{__name__=~"{name}.+"}}', headers=OPENMETRICS)
    assert answer.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    families = list(text_string_to_metric_families(answer.body.decode()))
    assert [family.name for family in families] == [f"{name}_requests_total", f"{name}_size"]
    sample = families[0].samples[0]
    assert sample.labels == {"path": '/a"b\\c\nd', "instance": ""}
    assert float(sample.timestamp) == at / 1000
    plain = list(plain_families(federated(cluster, f"{name}_requests_total").body.decode()))
    assert plain[0].samples[0].labels == sample.labels


def test_types_are_those_that_senders_reported(new_cluster) -> None:
    cluster = new_cluster(shards=2, workers=1).start()
    request = remote_write_pb2.WriteRequest()
    for family, kind in (("hits", COUNTER), ("size", GAUGE), ("took", HISTOGRAM)):
        request.metadata.add(metric_family_name=family, type=kind)
    raw = snappy.compress(request.SerializeToString())
    assert cluster.request("POST", "/api/v1/write", raw, HEADERS).status == 204
    names = ("hits_total", "size", "took_bucket", "took_count", "took_sum", "took_other")
    write(cluster, *(({"__name__": own, "le": "+Inf"}, [(now_ms(), 1.0)]) for own in names))
    text = federated(cluster, '{le!=""}').body.decode()
    types = [line.split()[2:] for line in text.splitlines() if line.startswith("#")]
    assert types == [["hits_total", "counter"], ["size", "gauge"], ["took", "histogram"], ["took_other", "untyped"]]
    text = federated(cluster, '{le!=""}', headers=OPENMETRICS).body.decode()
    types = [line.split()[2:] for line in text.splitlines() if line.startswith("# TYPE")]
    assert types[:3] == [["hits", "counter"], ["size", "gauge"], ["took_bucket", "unknown"]]
    list(text_string_to_metric_families(text))


def test_names_in_utf_8_are_escaped_unless_the_scraper_takes_them(cluster: Cluster, name: str) -> None:
    at = now_ms() - 1_000
    write(cluster, ({"__name__": f"{name}.größe", "a.b": "1"}, [(at, 1.0)]))
    selector = f'{{"{name}.größe"}}'
    escaped = federated(cluster, selector).body.decode().splitlines()[1]
    assert escaped == f'U__{name.replace("_", "__")}_2e_gr_f6__df_e{{U__a_2e_b="1",instance=""}} 1.0 {at}'
    kept = federated(cluster, selector, headers=UTF_8)
    assert "escaping=allow-utf-8" in kept.headers["content-type"]
    assert kept.body.decode().splitlines()[1] == f'{{"{name}.größe","a.b"="1",instance=""}} 1.0 {at}'
    underscored = federated(cluster, selector, headers={"Accept": "text/plain;version=1.0.0;escaping=underscores"})
    assert underscored.body.decode().splitlines()[1].startswith(f"{name}_gr__e{{a_b=")


def test_native_histograms_are_left_out_and_counted(cluster: Cluster, name: str) -> None:
    request = remote_write_pb2.WriteRequest()
    message = histogram_message(timestamp=now_ms() - 1_000, count_int=3, positive_spans=[(1, 1)], positive_deltas=[3])
    entry = request.timeseries.add(histograms=[message])
    entry.labels.add(name="__name__", value=f"{name}_native")
    raw = snappy.compress(request.SerializeToString())
    assert cluster.request("POST", "/api/v1/write", raw, HEADERS).status == 204
    write(cluster, ({"__name__": f"{name}_float"}, [(now_ms() - 1_000, 1.0)]))
    lines = federated(cluster, f'{{__name__=~"{name}_.+"}}').body.decode().splitlines()
    assert lines[0] == "# native histograms, which this format does not have, are left out: 1"
    assert len(lines) == 3
    assert lines[2].startswith(f"{name}_float")


def test_a_long_answer_comes_in_pieces_and_compressed(cluster: Cluster, name: str) -> None:
    at = now_ms() - 1_000
    write(cluster, *(({"__name__": name, "i": f"{i:05}", "text": "x" * 60}, [(at, 1 / 3)]) for i in range(9_000)))
    answer = federated(cluster, name)
    lines = answer.body.decode().splitlines()
    assert len(lines) == 9_001
    assert lines[1:] == sorted(lines[1:])
    assert answer.headers.get("transfer-encoding") == "chunked"
    zipped = federated(cluster, name, headers={"Accept-Encoding": "gzip"})
    assert zipped.headers["content-encoding"] == "gzip"
    assert gzip.decompress(zipped.body) == answer.body


@pytest.mark.parametrize(
    ("query", "status", "why"),
    [
        ("", 400, "match[]"),
        ("match[]=up%7B", 400, "match[]"),
        ("match[]=%7B%7D", 400, "match[]"),
        ("match[]=up+offset+5m", 400, "modifiers"),
        ("match[]=up&lookback_delta=0", 400, "lookback_delta"),
        ("match[]=up&timeout=-1s", 400, "timeout"),
        ("match[]=up&partial_response=maybe", 400, "partial_response"),
        ("&".join(f"match[]=m{i}" for i in range(501)), 400, "limit is 500"),
        ("match[]=nothing_has_this_name", 200, ""),
    ],
)
def test_what_is_wrong_is_named(cluster: Cluster, query: str, status: int, why: str) -> None:
    answer = cluster.request("GET", f"/federate?{query}")
    assert answer.status == status, answer.body
    assert why in answer.body.decode()


@pytest.mark.parametrize("path", ["/metrics", "/federate?match[]=nothing_has_this_name"])
@pytest.mark.parametrize("accept", ["application/openmetrics-text;version=abc", "text/plain;version=1.x", ";;,=;q=nan"])
def test_an_accept_header_that_means_nothing_gets_the_text(cluster: Cluster, path: str, accept: str) -> None:
    answer = cluster.request("GET", path, None, {"Accept": accept})
    assert answer.status == 200, answer.body
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"


def test_a_missing_shard_is_no_answer_unless_a_part_is_welcome(new_cluster) -> None:
    cluster = new_cluster(shards=4, workers=2).start()
    write(cluster, *(({"__name__": "m", "i": str(i)}, [(now_ms(), 1.0)]) for i in range(100)))
    with cluster.without_worker():
        refused = federated(cluster, "m")
        assert refused.status == 503
        assert refused.json()["errorType"] == "unavailable"
        part = federated(cluster, "m", partial_response="true")
        assert part.status == 200
        assert 10 < len(part.body.splitlines()) < 90
        wanted = request_body(query_of([("__name__", "=", "m")], 0, now_ms()))
        refused = cluster.request("POST", "/api/v1/read", wanted, HEADERS)
        assert refused.status == 503
        assert "shard" in refused.json()["error"]
        part = cluster.request("POST", "/api/v1/read?partial_response=true", wanted, HEADERS)
        (found,) = of_samples(part.body)
        assert 10 < len(found) < 90


@needs_prometheus
def test_a_prometheus_federates_from_it(cluster: Cluster, name: str, tmp_path: Path) -> None:
    at = now_ms() - 500
    own = [{"__name__": name, "job": "own", "instance": "i:1"}, {"__name__": f"{name}_bare"}]
    write(cluster, *((labels, [(at, 7.25)]) for labels in own))
    port = free_port()
    job = {
        "job_name": "federate",
        "honor_labels": True,
        "metrics_path": "/federate",
        "params": {"match[]": [f'{{__name__=~"{name}.*"}}']},
        "static_configs": [{"targets": [f"127.0.0.1:{cluster.port}"]}],
    }
    config = {"global": {"scrape_interval": "1s"}, "scrape_configs": [job]}

    def values() -> list[dict]:
        query = urllib.parse.quote(f'{{__name__=~"{name}.*"}}[5m]')
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/query?query={query}", timeout=5) as answer:
                return json.load(answer)["data"]["result"]
        except OSError:
            return []

    with prometheus(tmp_path, config, feature="exemplar-storage", port=port) as running:
        found = running.wait_for(values)
    by_name = {series["metric"]["__name__"]: series for series in found}
    assert by_name[name]["metric"] == own[0]
    assert by_name[f"{name}_bare"]["metric"] == {"__name__": f"{name}_bare", "job": "federate"}
    assert all(series["values"] == [[at / 1000, "7.25"]] for series in found)
