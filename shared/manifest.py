"""The data directory's identity: its manifest, its locks, and where its cluster's socket is."""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
import uuid
from dataclasses import dataclass
from pathlib import Path

from shared.config import Settings
from shared.durable import write_atomically
from shared.errors import ConfigError

VERSION = 1
SOCKET_PATH_BYTES_MAX = 100
"""A Unix socket's path has room for 107 bytes; longer data directories get a short one in the temporary directory."""


@dataclass(frozen=True, slots=True)
class Manifest:
    cluster_id: str
    shards: int


def open_manifest(settings: Settings) -> Manifest:
    """The manifest of `settings.data`, written when the directory is new.

    Coordinator and supervisor may both be first, so a lock is held meanwhile. Raises ConfigError when the directory
    cannot be used or was made with another number of shards.
    """
    path = settings.data / "manifest.json"
    try:
        settings.data.mkdir(parents=True, exist_ok=True)
        with open(settings.data / "manifest.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                content = {"version": VERSION, "cluster_id": uuid.uuid4().hex, "shards": settings.shards}
                write_atomically(path, json.dumps(content).encode())
            content = json.loads(path.read_text())
            manifest = Manifest(content["cluster_id"], content["shards"])
            version = content["version"]
    except OSError as error:
        raise ConfigError(f"TRIPTYCH_DATA is {settings.data}, which cannot be used: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} is damaged ({error}); restore it from a copy of the data directory") from error
    if version != VERSION:
        raise ConfigError(f"{path} has version {version}; this program reads version {VERSION}")
    if manifest.shards != settings.shards:
        raise ConfigError(
            f"TRIPTYCH_SHARDS is {settings.shards}, but {settings.data} was made with {manifest.shards} shards; "
            f"set TRIPTYCH_SHARDS={manifest.shards} or use another TRIPTYCH_DATA"
        )
    return manifest


def lock(settings: Settings, role: str) -> int:
    """Take the data directory's lock for a role ("coordinator" or "workers") until this process ends.

    Returns the lock's file descriptor. Raises ConfigError when another process has it.
    """
    path = settings.data / f"{role}.lock"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        owner = os.read(descriptor, 32).decode(errors="replace").strip() or "unknown"
        os.close(descriptor)
        raise ConfigError(
            f"TRIPTYCH_DATA is {settings.data}, which another cluster is using (its {role} has process id {owner})"
        ) from None
    os.ftruncate(descriptor, 0)
    os.write(descriptor, str(os.getpid()).encode())
    return descriptor


def endpoint(settings: Settings, manifest: Manifest) -> str:
    """The ZeroMQ address at which this cluster's coordinator and workers meet: a socket in a directory only the
    owner may enter."""
    directory = settings.data.resolve() / "run"
    if len(os.fsencode(directory / "cluster.sock")) > SOCKET_PATH_BYTES_MAX:
        directory = Path(tempfile.gettempdir()) / f"triptych-{os.getuid()}-{manifest.cluster_id[:12]}"
    directory.mkdir(mode=0o700, exist_ok=True)
    status = directory.stat()
    if status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise ConfigError(
            f"{directory} must belong to this user with mode 0700; it has mode {status.st_mode & 0o777:o}"
        )
    return f"ipc://{directory}/cluster.sock"
