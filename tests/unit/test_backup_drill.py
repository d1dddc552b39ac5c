"""The comparison of the backup drill finds what differs, and takes no part of the data for equal unread."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from loadtest import backup_drill
from loadtest.bench.filling import CHUNK_STEPS
from loadtest.harness.cluster import Response

STEPS, VECTORS, ROUNDS, RECORDS = 3 * CHUNK_STEPS, 2_500, 4, 25_000


class Stub:
    """Answers as a cluster would. `changed`: time of a query, first record or vector → what the answer has instead."""

    def __init__(self, next_sequence: int = RECORDS, series: str = "ab", changed: dict[str, str] | None = None) -> None:
        self.asked: list[str] = []
        self._next_sequence = next_sequence
        self._series = series
        self._changed = changed or {}

    def get(self, path: str) -> Response:
        assert path == "/api/v1/log/frontier"
        return Response(200, {}, json.dumps({"nextSequence": self._next_sequence}).encode())

    def request(self, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> Response:
        url = urlsplit(path)
        parameters = {name: values[0] for name, values in parse_qs(url.query).items()}
        asked = path if body is None else body.decode()
        self.asked.append(asked)
        content: dict[str, Any]
        if url.path == "/api/v1/query":
            values = [[0, self._changed.get(parameters["time"], "1")]]
            result = [{"metric": {"n": n}, "values": values} for n in self._series]
            content = {"status": "success", "data": {"resultType": "matrix", "result": result}}
        elif url.path == "/api/v1/log/scan":
            value = self._changed.get(parameters["start_seq"], "x")
            content = {"status": "success", "records": [{"value": value}], "nextSequence": self._next_sequence}
        else:
            content = {"vectors": [self._changed.get(number, "v") for number in json.loads(asked)["ids"]]}
        if "warnings" in self._changed:
            content["warnings"] = ["a shard is missing"]
        return Response(int(self._changed.get("status", 200)), {}, json.dumps(content, separators=(",", ":")).encode())


def compare(first: Stub, second: Stub) -> int:
    return backup_drill.compare(first, second, STEPS, VECTORS, ROUNDS)  # type: ignore[arg-type]


def test_equal_clusters_are_read_whole_in_any_order_of_series_and_wherever_the_restored_log_goes_on() -> None:
    first, second = Stub(), Stub(next_sequence=1 << 32, series="ba")
    assert compare(first, second) > 0
    assert sorted(first.asked) == sorted(second.asked)
    ranges = [parse_qs(urlsplit(path).query) for path in first.asked if "log/scan" in path]
    spans = sorted((int(own["start_seq"][0]), int(own.get("end_seq", ["0"])[0])) for own in ranges)
    assert spans == [(0, 10_000), (10_000, 20_000), (20_000, 25_000), (25_000, 0)]
    assert sum("api/v1/query" in path for path in first.asked) == STEPS // CHUNK_STEPS + 1
    ids = [number for body in first.asked if body.startswith("{") for number in json.loads(body)["ids"]]
    assert len(set(ids)) == len(ids) == VECTORS + 10 * ROUNDS + 10


@pytest.mark.parametrize("place", ["1700000000.0", "10000", "25000", "1000", "10000000"])
def test_a_difference_is_found_wherever_it_is(place: str) -> None:
    times = {"1700000000.0": str(backup_drill.START_MS / 1000 + ROUNDS)}
    with pytest.raises(RuntimeError, match="the restored cluster differs"):
        compare(Stub(), Stub(changed={times.get(place, place): "another"}))


@pytest.mark.parametrize("changed", [{"warnings": ""}, {"status": "503"}])
def test_an_answer_that_is_not_whole_is_an_error(changed: dict[str, str]) -> None:
    with pytest.raises(RuntimeError, match="the answer is not whole"):
        compare(Stub(), Stub(changed=changed))


def test_no_series_at_all_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="the answer is not whole"):
        compare(Stub(series=""), Stub(series=""))
