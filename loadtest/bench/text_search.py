"""Searches by text over HTTP: `python -m loadtest.bench.text_search`.

Documents have words of a Zipf distribution; queries are words and phrases of documents. `--tree` measures the service
of another source tree, `--kinds` only some kinds of search, and `--errors` how far scores of the workers are from those
of one index with all documents.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import psutil
import uvloop

from loadtest.bench.vector_client import Connection, for_seconds
from loadtest.bench.vector_data import CONNECTIONS, clustered
from loadtest.harness.cluster import ROOT, Cluster

DIMENSION = 32
WORDS = 50_000
LENGTHS = (10, 70)  # of a document, in words
ZIPF = 1.2
QUERIES = 500
WRITE_BATCH = 1000
PATH = "/api/v1/vector/"
LETTERS = np.array(list("etaoinshrdlu"))

Documents = list[list[str]]


def documents(count: int) -> Documents:
    """The words of each document. Short words are the frequent ones."""
    random = np.random.default_rng(3)
    distinct: dict[str, None] = {}
    while len(distinct) < WORDS:
        length = 3 + len(distinct).bit_length() // 3
        distinct["".join(LETTERS[random.integers(0, len(LETTERS), length)])] = None
    words = np.array(list(distinct))
    lengths = random.integers(*LENGTHS, count)
    ranks = random.zipf(ZIPF, lengths.sum()) % WORDS
    return [part.tolist() for part in np.split(words[ranks], np.cumsum(lengths)[:-1])]


def queries(texts: Documents) -> dict[str, list[dict[str, Any]]]:
    """The text part of searches, by kind."""
    random = np.random.default_rng(4)
    some = [texts[row] for row in random.integers(0, len(texts), QUERIES)]
    plain = [" ".join(random.choice(words, 3)) for words in some]
    at = random.integers(0, LENGTHS[0] - 2, QUERIES).tolist()
    phrases = [f'"{" ".join(words[first : first + 2])}"' for words, first in zip(some, at, strict=True)]
    prefixes = [f"{max(words[:8], key=len)[:4]}*" for words in some]

    def asked(texts: list[str], **more: Any) -> list[dict[str, Any]]:
        return [{"text": {"field": "body", "query": text, **more}} for text in texts]

    vectors = clustered(QUERIES, DIMENSION, 2).tolist()
    return {
        "plain": asked(plain),
        "and": asked(plain, operator="and"),
        "phrase": asked(phrases),
        "prefix": asked(prefixes),
        "highlighted": asked(plain, highlight={}),
        "hybrid": [{**text, "vector": vector} for text, vector in zip(asked(plain), vectors, strict=True)],
        "vector": [{"vector": vector} for vector in vectors],
    }


def _writes(texts: Documents) -> Iterator[bytes]:
    vectors = np.round(clustered(len(texts), DIMENSION, 1), 4).tolist()
    for first in range(0, len(texts), WRITE_BATCH):
        upserts = [
            {"id": str(row), "attributes": {"vector": vectors[row], "body": " ".join(texts[row])}}
            for row in range(first, min(len(texts), first + WRITE_BATCH))
        ]
        yield json.dumps({"upsertVectors": upserts, "collection": "texts"}).encode()


@dataclass(slots=True)
class Measured:
    """Of one kind of search in each round: searches a second, and microseconds of CPU time of each in all
    processes of the cluster."""

    rates: list[float] = field(default_factory=list)
    processor_us: list[float] = field(default_factory=list)


@contextmanager
def filled(tree: Path, texts: Documents) -> Iterator[Cluster]:
    """A cluster of a source tree with the documents, all indexed, until the block ends."""
    with tempfile.TemporaryDirectory() as directory:
        cluster = Cluster(Path(directory), workers=2, tree=tree)
        try:
            cluster.start()
            settings = json.dumps({"dimension": DIMENSION, "metric": "cosine", "textFields": ["body"]}).encode()
            kind = {"Content-Type": "application/json"}
            assert cluster.request("PUT", f"{PATH}collections/texts", settings, kind).status == 200
            uvloop.run(_write(cluster.url, texts))
            while cluster.get(PATH + "stats").json()["collections"]["texts"]["pending"]:
                time.sleep(0.1)
            yield cluster
        finally:
            cluster.kill()


async def _write(url: str, texts: Documents) -> None:
    connection = Connection(url)
    for body in _writes(texts):
        await connection.send(connection.request(PATH + "write", body))
    connection.close()


def measure(cluster: Cluster, asked: list[dict[str, Any]], seconds: float, into: Measured) -> None:
    """Add a round of these searches."""
    of = Connection(cluster.url)
    bodies = [json.dumps({**one, "k": 10, "includeFields": [], "collection": "texts"}).encode() for one in asked]
    requests = [of.request(PATH + "search", body) for body in bodies]

    async def one(by: Connection, number: int) -> None:
        await by.send(requests[number % len(requests)])

    uvloop.run(for_seconds(seconds / 4, one, cluster.url, CONNECTIONS))  # the first searches load and compile
    used = _processor_s(cluster)
    count = len(uvloop.run(for_seconds(seconds, one, cluster.url, CONNECTIONS)))
    into.rates.append(count / seconds)
    into.processor_us.append((_processor_s(cluster) - used) / count * 1e6)


def _processor_s(cluster: Cluster) -> float:
    assert cluster.coordinator is not None and cluster.supervisor is not None
    workers = psutil.Process(cluster.supervisor.pid).children()
    return sum(sum(process.cpu_times()[:2]) for process in (psutil.Process(cluster.coordinator.pid), *workers))


def errors(count: int, workers: int = 2) -> tuple[dict[str, tuple[float, float]], float]:
    """({name: (median, 99th percentile)}, share of the queries that are asked again).

    It is of how far the score of a worker's best hit is from that of an index with all documents, as a share of it: by
    the worker's "own" word frequencies, and as "served"."""
    from coordinator.vectors.text_calls import informed
    from coordinator.vectors.text_query import parse
    from shared.messages.vector_text import TextField, TextQuery
    from worker.vectors.text import TextIndex

    texts = documents(count)
    indexes = [TextIndex({"body": TextField("body")}) for _ in range(workers + 1)]
    whole, parts = indexes[-1], indexes[:-1]
    for row, words in enumerate(texts):
        packed = msgspec.msgpack.encode({"body": " ".join(words)})
        for index in (whole, parts[row * 2654435761 % (1 << 32) * workers >> 32]):
            index.put(str(row).encode(), packed)
    asked_again = 0
    shares: dict[str, list[float]] = {"own": [], "served": []}
    for one in queries(texts)["plain"]:
        query = TextQuery((("body", 1.0),), parse(one["text"]["query"]))
        counted = [part.statistics(query) for part in parts]
        again = informed(query, counted)
        asked_again += again is not None
        expected = dict(whole.search(query, 1000))
        for name, asked in (("own", query), ("served", again or query)):
            best = [hit for part in parts for hit in part.search(asked, 1)]
            shares[name] += [abs(score / expected[row] - 1) for row, score in best if row in expected]
    found = {name: (float(np.median(of)), float(np.percentile(of, 99))) for name, of in shares.items()}
    return found, asked_again / QUERIES


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tree", type=Path, action="append", help="repeatable; their clusters are measured in turns")
    parser.add_argument("--documents", type=int, default=100_000)
    parser.add_argument("--kinds", default="plain,and,phrase,prefix,highlighted,hybrid,vector")
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--errors", action="store_true")
    options = parser.parse_args()
    show: Callable[[str], object] = print
    if options.errors:
        found, share = errors(options.documents)
        show(f"{share:.1%} of the queries are asked again")
        for name, (median, most) in found.items():
            show(f"{name}: scores off by {median:.2%} (median), {most:.2%} (99th percentile)")
        return
    texts = documents(options.documents)
    asked = queries(texts)
    with ExitStack() as clusters:
        running = {tree: clusters.enter_context(filled(tree, texts)) for tree in options.tree or [ROOT]}
        measured = {(kind, tree): Measured() for kind in options.kinds.split(",") for tree in running}
        for _ in range(options.rounds):
            for (kind, tree), of in measured.items():
                measure(running[tree], asked[kind], options.seconds, of)
    for (kind, tree), of in measured.items():
        rate, processor_us = np.median(of.rates), np.median(of.processor_us)
        show(f"{kind:12} {rate:7.0f} searches/s, {processor_us:6.0f} µs of CPU time each  {tree}")


if __name__ == "__main__":
    main()
