"""Answers as Arrow streams: far faster to read than JSON where there are many samples or vectors. Needs pyarrow."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from triptych.calls import ARROW, ServerResponse
from triptych.errors import ServerError
from triptych.hits import VECTOR, Hit, SearchResult
from triptych.remarks import announce
from triptych.series import QueryResult, Series
from triptych.tables import required


def is_arrow(answer: ServerResponse) -> bool:
    """Whether the answer is an Arrow stream. Values that Arrow cannot hold are answered as JSON even if Arrow was asked
    for; so is everything from a server without pyarrow."""
    return answer.headers.get("content-type", "").partition(";")[0] == ARROW


def table_of(answer: ServerResponse) -> Any:
    """Raises ServerError."""
    arrow = required("pyarrow", "arrow")
    try:
        return arrow.ipc.open_stream(answer.body).read_all().combine_chunks()
    except (arrow.ArrowInvalid, OSError) as error:
        raise ServerError(f"the answer is not an Arrow stream: {error}") from error


def query_result(answer: ServerResponse) -> QueryResult:
    """A row for each series: labels, timestamps, values."""
    table = table_of(answer)
    metadata = _metadata(table)
    series: list[Series] = []
    if len(table):
        lists = table.column("values").chunk(0)
        places = lists.offsets.to_numpy()
        values = lists.values.to_numpy()
        seconds = table.column("timestamps").chunk(0).values.cast("int64").to_numpy() / 1000
        for labels, start, end in zip(table.column("labels").to_pylist(), places, places[1:]):
            series.append(Series(dict(labels), seconds[start:end], values[start:end]))
    return QueryResult(
        metadata["resultType"], series, warnings=_texts(metadata, "warnings"), infos=_texts(metadata, "infos")
    )


def search_results(answer: ServerResponse, queries: int) -> list[SearchResult]:
    """A row for each hit, with the number of its query."""
    table = table_of(answer)
    metadata = _metadata(table)
    hits: list[list[Hit]] = [[] for _ in range(queries)]
    vectors: Any = None
    if VECTOR in table.column_names and len(table):
        column = table.column(VECTOR).chunk(0)
        vectors = column.values.to_numpy().reshape(len(table), -1)
    columns = [table.column(name).to_pylist() for name in ("query", "id", "score", "attributes")]
    for row, (query, name, score, attributes) in enumerate(zip(*columns)):
        vector = None if vectors is None else vectors[row]
        hits[query].append(Hit(name, vector, json.loads(attributes) if attributes else {}, score))
    remarks = _texts(metadata, "warnings"), _texts(metadata, "infos")
    return [SearchResult(of_query, [], *remarks) for of_query in hits]


def _metadata(table: Any) -> dict[str, str]:
    """The metadata of the schema, whose warnings are passed on to the caller."""
    metadata = {name.decode(): text.decode() for name, text in (table.schema.metadata or {}).items()}
    announce(_texts(metadata, "warnings"))
    return metadata


def _texts(metadata: Mapping[str, str], name: str) -> Any:
    return tuple(json.loads(metadata.get(name, "[]")))
