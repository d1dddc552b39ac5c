"""The data directory's identity: its manifest, its locks, and where its cluster's socket is."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import tempfile
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash

from shared import identity
from shared.config import Settings
from shared.data_files import numbered
from shared.durable import DIRECTORY_MODE, FILE_MODE, make_directory, write_atomically
from shared.errors import ConfigError
from shared.telemetry import event

FORMAT = 1
"""Of everything in the data directory. Its next: docs/internals/storage.md#format-of-the-data-directory."""
NAME = "manifest.json"
HOLDS_DATA = ("shards", "wal", "sequencer", "vector", "vector-index")
"""Directories that are made after the manifest: where one of them is, there was one."""
SOCKET_PATH_BYTES_MAX = 100
"""A Unix socket's path has room for 107 bytes; longer data directories get a short one in the temporary directory."""


class NewerFormat(ValueError):
    """The data directory is in a format that a later release has introduced."""


@dataclass(frozen=True, slots=True)
class Manifest:
    cluster_id: str
    shards: int

    def encode(self) -> bytes:
        fields = {"format": FORMAT, "cluster_id": self.cluster_id, "shards": self.shards}
        return json.dumps({**fields, "checksum": _checksum(fields)}).encode()

    @staticmethod
    def decode(content: bytes) -> Manifest:
        """Raises ValueError that says what is wrong, NewerFormat."""
        fields: Any = json.loads(content)
        if not isinstance(fields, dict) or not isinstance(fields.get("format"), int):
            raise ValueError("it has no format")
        # First, and the same in every format: a flipped bit must not pass for a newer one.
        if fields.pop("checksum", None) != _checksum(fields):
            raise ValueError("its checksum does not match its content")
        if fields["format"] > FORMAT:
            raise NewerFormat(f"it has format {fields['format']}, and this program reads format {FORMAT}")
        names = {"format", "cluster_id", "shards"}
        if set(fields) != names or fields["format"] != FORMAT:
            raise ValueError(f"it has the fields {', '.join(sorted(fields))} instead of {', '.join(sorted(names))}")
        manifest = Manifest(fields["cluster_id"], fields["shards"])
        if not isinstance(manifest.cluster_id, str) or not isinstance(manifest.shards, int):
            raise ValueError("its fields are of other types")
        return manifest


def _checksum(fields: Mapping[str, Any]) -> str:
    """Of all fields but the checksum itself."""
    return xxhash.xxh3_64_hexdigest(json.dumps(fields, sort_keys=True).encode())


def open_manifest(settings: Settings) -> Manifest:
    """The manifest of `settings.data`, written when the directory is new. A copy is kept in `shards/`.

    Coordinator and supervisor may both be first, so a lock is held meanwhile. Raises ConfigError when the directory
    cannot be used, is in a newer format, holds data without a manifest, was made with another number of shards, or has
    the directory of another shard or cluster in a shard's place.
    """
    path = settings.data / NAME
    try:
        make_directory(settings.data)
        descriptor = os.open(settings.data / "manifest.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        with open(descriptor, "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            manifest = _read_or_write(path, settings)
            if manifest.shards == settings.shards:
                _keep_copy(path, manifest)
                shards = [shard_directory(settings.data, n) for n in range(manifest.shards)]
                identity.verify(shards, manifest.cluster_id, identity.SHARD)
    except OSError as error:
        raise ConfigError(f"TRIPTYCH_DATA is {settings.data}, which cannot be used: {error.strerror}") from error
    if manifest.shards != settings.shards:
        raise ConfigError(
            f"TRIPTYCH_SHARDS is {settings.shards}, but {settings.data} was made with {manifest.shards} shards; "
            f"set TRIPTYCH_SHARDS={manifest.shards} or use another TRIPTYCH_DATA"
        )
    return manifest


def copy_of(path: Path) -> Path:
    """Where the copy of the manifest `path` lies."""
    return path.parent / "shards" / NAME


def _read_or_write(path: Path, settings: Settings) -> Manifest:
    if not path.exists():
        _refuse_without(path)
        manifest = Manifest(uuid.uuid4().hex, settings.shards)
        write_atomically(path, manifest.encode())
        return manifest
    try:
        return Manifest.decode(path.read_bytes())
    except NewerFormat as error:
        raise ConfigError(f"{path}: {error}; start the release that wrote it, or use another TRIPTYCH_DATA") from error
    except ValueError as error:
        raise ConfigError(f"{path} is damaged ({error}); {_remedy(path)}") from error


def _refuse_without(path: Path) -> None:
    """Raises ConfigError when there is data whose manifest has been lost."""
    there = [name for name in HOLDS_DATA if (path.parent / name).exists()]
    if there:
        raise ConfigError(f"{path} is missing, but {path.parent} holds data ({', '.join(there)}); {_remedy(path)}")


def _remedy(path: Path) -> str:
    copy = copy_of(path)
    try:
        Manifest.decode(copy.read_bytes())
    except (OSError, ValueError):
        shards = sum(entry.name.isdigit() for entry in copy.parent.glob("*"))
        content = Manifest(_cluster_of(copy.parent), shards).encode().decode()
        return f"restore it from a backup, or write it anew; from what is in {copy.parent} that would be {content}"
    return f"restore it from its copy: cp {copy} {path}"


def _cluster_of(shards: Path) -> str:
    """The cluster that a shard's directory says it belongs to; a new one when none does."""
    for directory in shard_directories(shards.parent):
        with suppress(OSError, ValueError):
            if found := identity.read(directory):
                return found[0]
    return uuid.uuid4().hex


def shard_directory(data: Path, shard: int) -> Path:
    """Where the shard's store and blocks are."""
    return data / "shards" / f"{shard:04d}"


def shard_directories(data: Path) -> list[Path]:
    """Those that are there, by number."""
    return numbered(data / "shards")


def _keep_copy(path: Path, manifest: Manifest) -> None:
    """Have the copy beside the shards, whose directories are made before it: where there is a copy, a directory that is
    not there has been lost. Raises OSError, ConfigError when one is lost, or the copy is that of another data
    directory."""
    copy = copy_of(path)
    missing = [own for n in range(manifest.shards) if not (own := shard_directory(path.parent, n)).is_dir()]
    try:
        kept = Manifest.decode(copy.read_bytes())
    except FileNotFoundError:
        _refuse_without_shards(path)
        make_directory(copy.parent)
    except NewerFormat as error:
        raise ConfigError(f"{copy}: {error}; start the release that wrote it") from error
    except ValueError as error:
        event(logging.ERROR, "the manifest's copy is damaged and is written anew", file=str(copy), reason=str(error))
    else:
        if kept == manifest and missing:
            raise ConfigError(
                f"{missing[0]} is missing, with all that its shard held; restore it from a copy of the data directory, "
                f"or accept the loss and have it begin anew: mkdir {missing[0]}"
            )
        if kept == manifest:
            return
        raise ConfigError(
            f"{path} says cluster {manifest.cluster_id} with {manifest.shards} shards, but its copy {copy} says "
            f"{kept.cluster_id} with {kept.shards}; the one that does not belong to this directory's data must go"
        )
    for directory in missing:
        make_directory(directory)
    write_atomically(copy, manifest.encode())


def _refuse_without_shards(path: Path) -> None:
    """Raises ConfigError when there is what is made after the shards' directories, and not these."""
    shards = copy_of(path).parent
    others = [name for name in HOLDS_DATA if name != shards.name and (path.parent / name).exists()]
    if others and not shards.exists():
        raise ConfigError(
            f"{shards} is missing, with the data of all shards, but {path.parent} holds {', '.join(others)}; restore "
            f"it from a copy of the data directory, or accept the loss and have it begin anew: mkdir {shards}"
        )


def lock(settings: Settings, role: str) -> int:
    """Take the data directory's lock for a role ("coordinator" or "workers") until this process ends.

    Returns the lock's file descriptor. Raises ConfigError when another process has it.
    """
    path = settings.data / f"{role}.lock"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
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
    directory.mkdir(mode=DIRECTORY_MODE, exist_ok=True)
    status = directory.stat()
    if status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise ConfigError(
            f"{directory} must belong to this user with mode 0700; it has mode {status.st_mode & 0o777:o}"
        )
    return f"ipc://{directory}/cluster.sock"
