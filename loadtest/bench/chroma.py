"""Chroma's server on the same data, where its `chroma` command is installed: for `loadtest.bench.vector`."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable

import aiohttp
import numpy as np

from loadtest.bench.vector_client import Connection, for_seconds

READY_WITHIN_S = 60.0
WRITE_BATCH = 1000
DATABASE = "/api/v2/tenants/default_tenant/databases/default_database/collections"

CONNECTIONS = 8


def command() -> str | None:
    return shutil.which("chroma")


def measure(
    program: str,
    vectors: np.ndarray,
    queries: np.ndarray,
    k: int,
    seconds: float,
    recall: Callable[[list[list[int]]], float],
) -> dict[str, float]:
    """Upserts and searches a second, and recall."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as directory:
        server = subprocess.Popen(
            [program, "run", "--path", directory, "--host", "127.0.0.1", "--port", str(port)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            return asyncio.run(_measure(f"http://127.0.0.1:{port}", vectors, queries, k, seconds, recall))
        finally:
            server.terminate()
            server.wait()


async def _post(session: aiohttp.ClientSession, path: str, body: bytes) -> dict:
    async with session.post(path, data=body, headers={"Content-Type": "application/json"}) as answer:
        assert answer.status < 300, await answer.text()
        return await answer.json()


async def _measure(
    url: str,
    vectors: np.ndarray,
    queries: np.ndarray,
    k: int,
    seconds: float,
    recall: Callable[[list[list[int]]], float],
) -> dict[str, float]:
    async with aiohttp.ClientSession(url) as session:
        give_up = time.monotonic() + READY_WITHIN_S
        while True:
            try:
                async with session.get("/api/v2/heartbeat"):
                    break
            except aiohttp.ClientConnectionError:
                assert time.monotonic() < give_up, "chroma did not start"
                await asyncio.sleep(0.1)
        made = await _post(
            session, DATABASE, json.dumps({"name": "bench", "metadata": {"hnsw:space": "cosine"}}).encode()
        )
        path = f"{DATABASE}/{made['id']}"
        bodies = [
            json.dumps(
                {
                    "ids": [str(row) for row in range(start, min(start + WRITE_BATCH, len(vectors)))],
                    "embeddings": vectors[start : start + WRITE_BATCH].tolist(),
                }
            ).encode()
            for start in range(0, len(vectors), WRITE_BATCH)
        ]
        started = time.perf_counter()
        for body in bodies:
            await _post(session, f"{path}/upsert", body)
        upsert = len(vectors) / (time.perf_counter() - started)
    connection = Connection(url)
    asked = [
        connection.request(
            f"{path}/query",
            json.dumps({"query_embeddings": [query.tolist()], "n_results": k, "include": []}).encode(),
        )
        for query in queries
    ]

    async def search(by: Connection, number: int) -> list[int]:
        return [int(name) for name in json.loads(await by.send(asked[number % len(asked)]))["ids"][0]]

    found = [await search(connection, number) for number in range(len(asked))]
    connection.close()
    latencies = await for_seconds(seconds, search, url, CONNECTIONS)
    return {"upsert": upsert, "search": len(latencies) / seconds, "recall": recall(found)}
