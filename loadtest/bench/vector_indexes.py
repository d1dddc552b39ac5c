"""Both kinds of vector index beside each other, in one process and without HTTP: how long they are built, and searched.

    python -m loadtest.bench.vector_indexes [--vectors 100000] [--dimension 128] [--recall 0.95] [--only KIND]
                                            [--index lists]

Seeded vectors of three kinds: clustered, along a smooth surface of 20 dimensions as embeddings of texts are, and
without any structure. Each index has all vectors, as one worker has its part. Searches are for the 10 nearest, one
after the other, with the least expansion of `calibration.LADDER` that has the recall against brute force. Indexes are
searched in turns; times are medians of the rounds. A second table has, for each of them, searches behind filters that
leave 1, 10 and 50 % of the vectors, and compactions of the table without every fourth row: the first, in memory that
was not used before, and the median of the following.
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
from worker.vectors.compaction import copy_table
from worker.vectors.inverted_lists import InvertedLists
from worker.vectors.row_filter import Bits
from worker.vectors.search import search
from worker.vectors.similarity import Rows, prepared
from worker.vectors.table import Table, TableView

K = 10
QUERIES = 200
ROUNDS = 5
INNER = 20
LEFT_PERCENT = (100, 1, 10, 50)
COMPACTIONS = 4


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


def found(view: TableView, queries: Floats, expansion: int, bits: Bits | None = None) -> list[Rows]:
    return [
        search(view, query[None], K, "cosine", expansion, exhaustive=False, bits=bits, check=lambda: None).rows
        for query in queries
    ]


def search_s(view: TableView, queries: Floats, expansion: int, bits: Bits | None = None) -> float:
    """Seconds of one search."""
    began = time.perf_counter()
    found(view, queries, expansion, bits)
    return (time.perf_counter() - began) / len(queries)


def compaction_s(view: TableView, dimension: int, index: str) -> list[float]:
    """Seconds a row of each of some compactions."""
    rows, seconds = np.flatnonzero(np.arange(view.size) % 4), []
    for _ in range(COMPACTIONS):
        fresh = Table(Collection(1, "c", dimension, "cosine", index=index), len(rows))
        began = time.perf_counter()
        for _ in copy_table(view, fresh, rows):
            pass
        seconds.append((time.perf_counter() - began) / len(rows))
    return seconds


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


def measure(kind: str, options: argparse.Namespace) -> tuple[list[str], list[str]]:
    """The lines of both tables for vectors of one kind."""
    vectors = prepared(KINDS[kind](options.vectors, options.dimension, 1), "cosine")
    queries = prepared(KINDS[kind](QUERIES, options.dimension, 2), "cosine")
    expected = [set(np.argpartition(-(vectors @ query), K)[:K].tolist()) for query in queries]
    tables = {index: built(vectors, index) for index in options.index or INDEXES}
    chosen = {index: least(view, queries, expected, options.recall) for index, (view, _) in tables.items()}
    drawn = np.random.default_rng(4).integers(0, 100, options.vectors)
    filters = {percent: None if percent == 100 else Bits.of(drawn < percent) for percent in LEFT_PERCENT}
    times: dict[tuple[str, int], list[float]] = {(index, percent): [] for index in tables for percent in filters}
    for _ in range(ROUNDS):
        for index, (view, _) in tables.items():
            for percent, bits in filters.items():
                times[index, percent].append(search_s(view, queries, chosen[index][0], bits))
    searches, others = [], []
    for index, (view, seconds) in tables.items():
        expansion, reached = chosen[index]
        plain, *filtered = [f"{statistics.median(times[index, percent]) * 1e6:.0f} µs" for percent in LEFT_PERCENT]
        searches.append(
            f"| {kind} | {index} | {seconds:.1f} s | {view.index.memory_bytes / options.vectors:.0f} bytes "
            f"| {expansion} | {reached:.3f} | {plain} |"
        )
        first, *later = compaction_s(view, options.dimension, index)
        compacted = f"{first * 1e6:.1f} µs | {statistics.median(later) * 1e6:.1f} µs"
        others.append(f"| {kind} | {index} | {' | '.join(filtered)} | {compacted} |")
    return searches, others


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vectors", type=int, default=100_000)
    parser.add_argument("--dimension", type=int, default=128)
    parser.add_argument("--recall", type=float, default=0.95)
    parser.add_argument("--only", choices=KINDS, action="append", help="a kind of vectors; may be repeated")
    parser.add_argument("--index", choices=INDEXES, action="append", help="a kind of index; may be repeated")
    options = parser.parse_args()
    size = f"{options.vectors:,} × {options.dimension}"
    say(f"| {size} | index | built in | a vector | expansion | recall | a search |", "|---" * 7 + "|")
    second: list[str] = []
    for kind in options.only or KINDS:
        searches, others = measure(kind, options)
        say(*searches)
        second += others
    filtered = " | ".join(f"filtered to {percent} %" for percent in LEFT_PERCENT[1:])
    say("", f"| {size} | index | {filtered} | compacted, a row: the first | later |", "|---" * 7 + "|", *second)


def say(*lines: str) -> None:
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()


if __name__ == "__main__":
    main()
