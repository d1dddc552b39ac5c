"""Both kinds of vector index beside each other, in one process and without HTTP: how long they are built, and searched.

    python -m loadtest.bench.vector_indexes [--vectors 100000] [--dimension 128] [--recall 0.95] [--only KIND]

Seeded vectors of three kinds: clustered, along a smooth surface of 20 dimensions as embeddings of texts are, and
without any structure. Each index has all vectors, as one worker has its part. Searches are for the 10 nearest, one
after the other, with the least expansion of `calibration.LADDER` that has the recall against brute force. Indexes are
searched in turns; times are medians of the rounds.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Generator

import numpy as np

import worker  # noqa: F401  (one thread for products of matrices, as in a worker)
from loadtest.bench.vector_data import clustered, gaussian
from shared.messages.vectors import INDEXES, Collection, Floats
from worker.vectors.calibration import LADDER
from worker.vectors.inverted_lists import InvertedLists
from worker.vectors.search import search
from worker.vectors.similarity import Rows, prepared
from worker.vectors.table import Table, TableView

K = 10
QUERIES = 200
ROUNDS = 5
INNER = 20


def along_surface(count: int, dimension: int, seed: int) -> Floats:
    """float32[count, dimension] along a bent surface of `INNER` dimensions that every seed shares, with noise."""
    shared, random = np.random.default_rng(0), np.random.default_rng((8, seed))
    bend = shared.standard_normal((INNER, 256), dtype=np.float32)
    spread = shared.standard_normal((256, dimension), dtype=np.float32) / 16
    inner = random.standard_normal((count, INNER), dtype=np.float32)
    vectors: Floats = np.tanh(0.5 * (inner @ bend)) @ spread
    vectors += 0.1 * random.standard_normal((count, dimension), dtype=np.float32)
    return vectors


KINDS: dict[str, Callable[[int, int, int], Floats]] = {
    "clustered": clustered,
    "along a surface": along_surface,
    "Gaussian": gaussian,
}


def result_of(slices: Generator[None, None, InvertedLists]) -> InvertedLists:
    while True:
        try:
            next(slices)
        except StopIteration as end:
            index: InvertedLists = end.value
            return index


def built(vectors: Floats, index: str) -> tuple[TableView, float]:
    """(a table with all vectors in its index, the seconds that indexing took)."""
    count, dimension = vectors.shape
    table = Table(Collection(1, "c", dimension, "cosine", index=index))
    ids = [b"%d" % row for row in range(count)]
    table.append(ids, vectors, np.arange(count, dtype=np.uint64), 0, [b""] * count, ())
    began = time.perf_counter()
    while table.pending():
        own = table.view.index
        rows, some, end = table.index_slice(own.slice_rows)
        own.add(rows, some)
        table.advance(end)
        if isinstance(own, InvertedLists) and own.is_outgrown():
            table.replace_index(result_of(own.retrained(table.view.vectors, np.arange(end))))
    return table.view, time.perf_counter() - began


def found(view: TableView, queries: Floats, expansion: int) -> list[Rows]:
    return [
        search(view, query[None], K, "cosine", expansion, exhaustive=False, mask=None, check=lambda: None).rows
        for query in queries
    ]


def recall(view: TableView, queries: Floats, expansion: int, expected: list[set[int]]) -> float:
    pairs = zip(found(view, queries, expansion), expected, strict=True)
    return float(np.mean([len(rows & set(own.tolist())) / K for own, rows in pairs]))


def least(view: TableView, queries: Floats, expected: list[set[int]], wanted: float) -> tuple[int, float]:
    """(the least expansion with the wanted recall, else the greatest; its recall)."""
    for expansion in LADDER:
        reached = recall(view, queries, expansion, expected)
        if reached >= wanted:
            break
    return expansion, reached


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vectors", type=int, default=100_000)
    parser.add_argument("--dimension", type=int, default=128)
    parser.add_argument("--recall", type=float, default=0.95)
    parser.add_argument("--only", choices=KINDS, action="append", help="a kind of vectors; may be repeated")
    options = parser.parse_args()
    columns = (
        f"| {options.vectors:,} × {options.dimension} | index | built in | a vector | expansion | recall | a search |"
    )
    sys.stdout.write(f"{columns}\n|---|---|---|---|---|---|---|\n")
    for kind in options.only or KINDS:
        draw = KINDS[kind]
        vectors = prepared(draw(options.vectors, options.dimension, 1), "cosine")
        queries = prepared(draw(QUERIES, options.dimension, 2), "cosine")
        expected = [set(np.argpartition(-(vectors @ query), K)[:K].tolist()) for query in queries]
        tables = {index: built(vectors, index) for index in INDEXES}
        chosen = {index: least(view, queries, expected, options.recall) for index, (view, _) in tables.items()}
        times: dict[str, list[float]] = {index: [] for index in INDEXES}
        for _ in range(ROUNDS):
            for index, (view, _) in tables.items():
                began = time.perf_counter()
                found(view, queries, chosen[index][0])
                times[index].append((time.perf_counter() - began) / QUERIES)
        for index, (view, seconds) in tables.items():
            expansion, reached = chosen[index]
            sys.stdout.write(
                f"| {kind} | {index} | {seconds:.1f} s | {view.index.memory_bytes / options.vectors:.0f} bytes "
                f"| {expansion} | {reached:.3f} | {statistics.median(times[index]) * 1e6:.0f} µs |\n"
            )
            sys.stdout.flush()


if __name__ == "__main__":
    main()
