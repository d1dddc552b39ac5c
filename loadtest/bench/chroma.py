"""Chroma's server on the same data, if its `chroma` command is installed, for `loadtest.bench.vector`."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import uvloop

from loadtest.bench.vector_client import Connection, for_seconds
from loadtest.bench.vector_data import CONNECTIONS, WRITE_BATCH, Data, K, recall

READY_WITHIN_S = 60.0
ANSWER_WITHIN_S = 120.0
DATABASE = "/api/v2/tenants/default_tenant/databases/default_database/collections"


def installed() -> bool:
    return shutil.which("chroma") is not None


@contextmanager
def running(data: Data) -> Iterator[Server]:
    """Chroma's server with the data, until the block ends."""
    program = shutil.which("chroma")
    assert program is not None
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as directory:
        process = subprocess.Popen(
            [program, "run", "--path", directory, "--host", "127.0.0.1", "--port", str(port)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            yield Server(f"http://127.0.0.1:{port}", data)
        finally:
            process.terminate()
            process.wait()


class Server:
    """Chroma at a URL, given the data: `upsert` vectors a second, `recall` of its answers."""

    def __init__(self, url: str, data: Data) -> None:
        self._url, self._data = url, data
        self._wait_ready()
        made = self._post(DATABASE, json.dumps({"name": "bench", "metadata": {"hnsw:space": "cosine"}}).encode())
        self._path = f"{DATABASE}/{made['id']}"
        self.upsert = self._write()
        of = Connection(self._url)
        self._searches = [
            of.request(
                f"{self._path}/query",
                json.dumps({"query_embeddings": [query.tolist()], "n_results": K, "include": []}).encode(),
            )
            for query in self._data.queries
        ]
        self.recall = recall(uvloop.run(self._answers()), self._data.expected)

    def _wait_ready(self) -> None:
        give_up = time.monotonic() + READY_WITHIN_S
        while True:
            try:
                urllib.request.urlopen(self._url + "/api/v2/heartbeat", timeout=1).close()
                return
            except (urllib.error.URLError, TimeoutError):
                assert time.monotonic() < give_up, "chroma did not start"
                time.sleep(0.1)

    def _post(self, path: str, body: bytes) -> dict:
        request = urllib.request.Request(self._url + path, body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=ANSWER_WITHIN_S) as answer:
            return json.load(answer)

    def _write(self) -> float:
        vectors = self._data.vectors
        contents = [
            {
                "ids": [str(row) for row in range(start, min(start + WRITE_BATCH, len(vectors)))],
                "embeddings": vectors[start : start + WRITE_BATCH].tolist(),
            }
            for start in range(0, len(vectors), WRITE_BATCH)
        ]
        bodies = [json.dumps(content).encode() for content in contents]
        started = time.perf_counter()
        for body in bodies:
            self._post(f"{self._path}/upsert", body)
        return len(vectors) / (time.perf_counter() - started)

    async def _answers(self) -> list[list[int]]:
        connection = Connection(self._url)
        answers = [json.loads(await connection.send(search)) for search in self._searches]
        connection.close()
        return [[int(name) for name in answer["ids"][0]] for answer in answers]

    def searches(self, seconds: float) -> float:
        """Single searches a second by some connections at once."""

        async def one(by: Connection, number: int) -> None:
            await by.send(self._searches[number % len(self._searches)])

        return len(uvloop.run(for_seconds(seconds, one, self._url, CONNECTIONS))) / seconds
