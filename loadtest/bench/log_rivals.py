"""The same appends to Redis Streams with an fsync of every write, and to NATS JetStream, with one where it can: its
setting `sync_interval: always` came with 2.10; older ones sync every two minutes, and are shown as that."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from loadtest.bench.log_load import CONNECTIONS, KEYS, RECEIVE_BYTES, VALUE_BYTES, in_threads, keys_from
from loadtest.harness.ports import free_port

STARTS_WITHIN_S = 10.0

Load = Callable[[int, float], float]
"""(port, seconds) → records a second."""


def connect(port: int) -> socket.socket:
    give_up = time.monotonic() + STARTS_WITHIN_S
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port))
        except ConnectionRefusedError:
            if time.monotonic() > give_up:
                raise
            time.sleep(0.05)


def _counting(connection: socket.socket, mark: bytes, wanted: int) -> None:
    """Receive until `mark` has come as many times."""
    found, rest = 0, b""
    while found < wanted:
        chunk = connection.recv(RECEIVE_BYTES)
        assert chunk, "the server closed the connection"
        data = rest + chunk
        found += data.count(mark)
        rest = data[-(len(mark) - 1) :]


def _pipelines(port: int, seconds: float, prepare: Callable[[socket.socket, int], bytes], mark: bytes) -> float:
    """Records a second of CONNECTIONS, each sending a pipeline of KEYS records and waiting for `mark` from each."""
    sent: list[int] = []
    stop_at = 0.0

    def send(number: int) -> None:
        with connect(port) as connection:
            pipeline = prepare(connection, number)
            count = 0
            while time.perf_counter() < stop_at:
                connection.sendall(pipeline)
                _counting(connection, mark, KEYS)
                count += KEYS
            sent.append(count)

    connect(port).close()
    stop_at = time.perf_counter() + seconds
    took = in_threads(CONNECTIONS, send)
    return sum(sent) / took


def redis_load(port: int, seconds: float) -> float:
    """XADD to 1,000 streams; an answer is the id's length and the id, such as `$15\\r\\n1700000000000-0`."""
    value = os.urandom(VALUE_BYTES)
    pipeline = b"".join(
        b"*5\r\n$4\r\nXADD\r\n$%d\r\n%b\r\n$1\r\n*\r\n$1\r\nv\r\n$%d\r\n%b\r\n" % (len(key), key, len(value), value)
        for key in keys_from(0, KEYS)
    )
    return _pipelines(port, seconds, lambda connection, number: pipeline, b"$")


def nats_load(port: int, seconds: float) -> float:
    """Publish to a stream of 1,000 subjects and wait for its acknowledgement of every message."""
    with connect(port) as connection:
        _nats_hello(connection, "setup")
        stream = json.dumps({"name": "LOG", "subjects": ["log.*"], "storage": "file"}).encode()
        connection.sendall(b"PUB $JS.API.STREAM.CREATE.LOG _INBOX.setup %d\r\n%b\r\n" % (len(stream), stream))
        answer = connection.recv(RECEIVE_BYTES)
        while b'"type"' not in answer:
            answer += connection.recv(RECEIVE_BYTES)
        assert b'"error"' not in answer, answer
    value = os.urandom(VALUE_BYTES)

    def prepare(connection: socket.socket, number: int) -> bytes:
        inbox = f"c{number}"
        _nats_hello(connection, inbox)
        return b"".join(
            b"PUB log.%b _INBOX.%b %d\r\n%b\r\n" % (key, inbox.encode(), len(value), value)
            for key in keys_from(0, KEYS)
        )

    return _pipelines(port, seconds, prepare, b'"seq":')


def _nats_hello(connection: socket.socket, inbox: str) -> None:
    connection.sendall(f'CONNECT {{"verbose":false,"pedantic":false}}\r\nSUB _INBOX.{inbox} 1\r\nPING\r\n'.encode())
    _counting(connection, b"PONG", 1)


def _redis_command(program: str, port: int, directory: str) -> list[str]:
    listen = ["--port", str(port), "--bind", "127.0.0.1", "--dir", directory]
    return [program, *listen, "--appendonly", "yes", "--appendfsync", "always", "--save", ""]


def _nats_command(program: str, port: int, directory: str) -> list[str]:
    sync = "sync_interval: always" if _nats_syncs(program) else ""
    configuration = Path(directory) / "nats.conf"
    configuration.write_text(f'listen: "127.0.0.1:{port}"\njetstream {{ store_dir: "{directory}/js" {sync} }}\n')
    return [program, "-c", str(configuration)]


def _nats_syncs(program: str) -> bool:
    return _version(program) >= (2, 10)


def _version(program: str) -> tuple[int, ...]:
    text = subprocess.run([program, "--version"], capture_output=True, text=True, check=True, timeout=10).stdout
    found = re.search(r"(\d+)\.(\d+)\.(\d+)", text)
    assert found is not None, text
    return tuple(map(int, found.groups()))


@dataclass(frozen=True, slots=True)
class Rival:
    program: str
    name: str
    command: Callable[[str, int, str], list[str]]
    load: Load
    syncs: Callable[[str], bool]

    @property
    def path(self) -> str | None:
        return shutil.which(self.program) or shutil.which(self.program, path="/usr/sbin")

    @property
    def title(self) -> str:
        """Its name, version, and whether every write is on the disk when it is answered."""
        assert self.path is not None
        version = ".".join(map(str, _version(self.path)))
        return f"{self.name} {version}, {'fsync of every write' if self.syncs(self.path) else 'no fsync of its own'}"

    def rate(self, seconds: float) -> float:
        """Records a second of a server started for this."""
        assert self.path is not None
        with tempfile.TemporaryDirectory() as directory:
            port = free_port()
            command = self.command(self.path, port, directory)
            server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=directory)
            try:
                return self.load(port, seconds)
            finally:
                server.terminate()
                server.wait()


RIVALS = (
    Rival("redis-server", "Redis Streams", _redis_command, redis_load, lambda path: True),
    Rival("nats-server", "NATS JetStream", _nats_command, nats_load, _nats_syncs),
)
