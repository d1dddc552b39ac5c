"""Fills a cluster with samples, records and vectors as fast as it accepts them."""

from __future__ import annotations

import base64
import http.client
import json
import sys

import numpy as np

from loadtest.bench.metrics.payloads import STEP_MS, Workload, requests
from loadtest.bench.metrics.sending import send
from loadtest.bench.vector_data import clustered, write_bodies
from loadtest.harness.cluster import Cluster

SERIES, CHUNK_STEPS = 10_000, 100
DIMENSION = 128
CONNECTIONS = 4
RECORDS_AT_ONCE = 5_000
RECORD_BYTES = 100
KEYS = 1_000
START_MS = 1_700_000_000_000 // STEP_MS * STEP_MS
PROTOBUF = {"Content-Type": "application/protobuf"}
JSON = {"Content-Type": "application/json"}


def write_samples(cluster: Cluster, steps: int, begin: int = 0) -> None:
    """`steps` samples of each of SERIES series, from step `begin` on, as they come from senders that scrape."""
    for first in range(begin, begin + steps, CHUNK_STEPS):
        work = Workload("m", SERIES, CHUNK_STEPS, START_MS + first * STEP_MS)
        send(cluster.port, requests(work, CONNECTIONS, seed=first))
        sys.stdout.write(f"{(first + CHUNK_STEPS) * SERIES:,} samples\r")
        sys.stdout.flush()


def write_records(cluster: Cluster, count: int) -> None:
    """Durable records of RECORD_BYTES random bytes, RECORDS_AT_ONCE in a request."""
    connection = http.client.HTTPConnection("127.0.0.1", cluster.port, timeout=120)
    for number in range(count // RECORDS_AT_ONCE):
        _post(connection, "/api/v1/log/append", append_body(b"key", number, RECORDS_AT_ONCE), JSON)


def write_vectors(cluster: Cluster, count: int) -> None:
    """Vectors of DIMENSION numbers."""
    connection = http.client.HTTPConnection("127.0.0.1", cluster.port, timeout=120)
    for body in write_bodies(clustered(count, DIMENSION, 1)):
        _post(connection, "/api/v1/vector/write", body, PROTOBUF)


def _post(connection: http.client.HTTPConnection, path: str, body: bytes, headers: dict[str, str]) -> bytes:
    connection.request("POST", path, body, headers)
    answer = connection.getresponse()
    content = answer.read()
    if answer.status != 200:
        raise RuntimeError(f"{path} gave {answer.status}: {content[:300]!r}")
    return content


def append_body(what: bytes, number: int, count: int) -> bytes:
    """The body of an append of so many records, whose keys begin with `what`."""
    random = np.random.default_rng((number, len(what)))
    values = random.bytes(count * RECORD_BYTES)
    rows = []
    for n in range(count):
        key = b"%b %d" % (what, (number * count + n) % KEYS)
        value = values[n * RECORD_BYTES : (n + 1) * RECORD_BYTES]
        rows.append({"key": base64.b64encode(key).decode(), "value": base64.b64encode(value).decode()})
    return json.dumps({"records": rows, "awaitDurable": True}).encode()
