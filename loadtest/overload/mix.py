"""The mix of requests: remote write, range and instant queries, appends, scans and searches."""

from __future__ import annotations

import json
import random
from urllib.parse import urlencode

from loadtest.attacks import target as names
from loadtest.attacks.target import Target, base64_text
from loadtest.bench.metrics.payloads import JOBS
from loadtest.harness.http_messages import message
from loadtest.harness.remote_write_bodies import HEADERS, compressed
from loadtest.overload.client import Request

SHARES = {"write": 15, "range": 15, "instant": 25, "append": 15, "scan": 15, "search": 15}
"""Percent of all requests."""
SIZE = 4_000
"""Requests prepared; they are sent in turn."""
WRITE_SERIES, APPEND_RECORDS, SCAN_RECORDS = 50, 10, 20
RANGE_S, STEP_S = 900, 15
NEIGHBOURS = 10


def requests(target: Target, seed: int = 1) -> list[Request]:
    """The mix in random order, the same for the same seed."""
    chooser = random.Random(seed)
    makers = {
        "write": _write,
        "range": _range_query,
        "instant": _instant_query,
        "append": _append,
        "scan": _scan,
        "search": _search,
    }
    kinds = chooser.choices(list(SHARES), list(SHARES.values()), k=SIZE)
    return [Request(kind, makers[kind](target, number, chooser)) for number, kind in enumerate(kinds)]


def _json(path: str, document: object) -> bytes:
    return message("POST", path, json.dumps(document).encode(), {"Content-Type": "application/json"})


def _write(target: Target, number: int, _: random.Random) -> bytes:
    labels = [{"__name__": "overload", "instance": f"i{i}", "writer": str(number % 20)} for i in range(WRITE_SERIES)]
    at_ms = (target.end_s + number) * 1000
    return message("POST", "/api/v1/write", compressed([(own, [(at_ms, float(number))]) for own in labels]), HEADERS)


def _range_query(target: Target, _: int, chooser: random.Random) -> bytes:
    job, zone = chooser.randrange(JOBS), chooser.randrange(3)
    parameters = {
        "query": f'sum(rate({names.METRIC}{{job="job-{job}",zone="zone-{zone}"}}[5m]))',
        "start": target.end_s - RANGE_S,
        "end": target.end_s,
        "step": STEP_S,
    }
    return message("GET", "/api/v1/query_range?" + urlencode(parameters))


def _instant_query(target: Target, _: int, __: random.Random) -> bytes:
    return message("GET", "/api/v1/query?" + urlencode({"query": names.LIGHT_QUERY, "time": target.end_s}))


def _append(_: Target, number: int, __: random.Random) -> bytes:
    key = base64_text(f"overload-{number % 50}".encode())
    return _json(
        "/api/v1/log/append", {"records": [{"key": key, "value": base64_text(b"value" * 20)}] * APPEND_RECORDS}
    )


def _scan(_: Target, __: int, ___: random.Random) -> bytes:
    return message("GET", f"/api/v1/log/scan?key={names.BYSTANDER_KEY}&limit={SCAN_RECORDS}")


def _search(_: Target, __: int, chooser: random.Random) -> bytes:
    vector = [round(chooser.gauss(0, 1), 4) for _ in range(names.COLLECTION_DIMENSION)]
    return _json("/api/v1/vector/search", {"vector": vector, "k": NEIGHBOURS})
