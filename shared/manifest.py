"""The data directory's identity: its manifest, its locks, and the address of its cluster's socket."""

from __future__ import annotations

import json
import logging
import os
import tempfile
import uuid
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import xxhash

from shared import identity
from shared.control import Control, Lease, Locked
from shared.data_files import numbered
from shared.durable import DIRECTORY_MODE
from shared.errors import ConfigError
from shared.settings import Settings
from shared.telemetry import event

FORMAT = 5
"""The format of everything in the data directory. The next format:
docs/internals/storage.md#format-of-the-data-directory."""
ADDITIONS: Mapping[int, str] = {
    2: "histograms and start timestamps, in the write-ahead logs and in blocks",
    3: "chunks of blocks that have pages",
    4: "times and headers of the log's records",
    5: "labels of new series, in the write-ahead logs",
}
"""What each format adds to the one before. An upgrade rewrites nothing: data in earlier formats is read as it is."""
NAME = "manifest.json"
LOCK = "manifest.lock"
"""Held briefly by processes that start or end."""
SHARDS = "shards"
HOLDS_DATA = (SHARDS, "wal", "sequencer", "vector", "vector-index")
"""Directories that are created after the manifest: if one of them exists, there was a manifest."""
SOCKET_PATH_BYTES_MAX = 100
"""A Unix socket's path has room for 107 bytes. If the data directory's path is longer, the socket is in the temporary
directory, under a short path."""


class NewerFormat(ValueError):
    """The data directory is in a format that a later release introduced."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """The identity of a data directory. `format`: the format of its data, which an upgrade raises."""

    cluster_id: str
    shards: int
    format: int = field(default=FORMAT, compare=False)

    def settled(self, settings: Settings) -> Settings:
        """These settings with the directory's number of shards."""
        return replace(settings, shards=self.shards)

    def encode(self) -> bytes:
        fields = {"format": self.format, "cluster_id": self.cluster_id, "shards": self.shards}
        return json.dumps({**fields, "checksum": _checksum(fields)}).encode()

    @staticmethod
    def decode(content: bytes) -> Manifest:
        """Decode a manifest. Raises ValueError, which says what is wrong with it; NewerFormat."""
        try:
            fields: Any = json.loads(content)
        except RecursionError as error:
            raise ValueError("it is nested too deeply") from error
        if not isinstance(fields, dict) or not isinstance(fields.get("format"), int):
            raise ValueError("it has no format")
        # The checksum is verified first, and is the same in every format, so that a flipped bit is not taken for a
        # newer format.
        if fields.pop("checksum", None) != _checksum(fields):
            raise ValueError("its checksum does not match its content")
        if fields["format"] > FORMAT:
            raise NewerFormat(f"it has format {fields['format']}, and this program reads format {FORMAT}")
        if fields["format"] < 1:
            raise ValueError(f"it has format {fields['format']}, and the first one is 1")
        names = {"format", "cluster_id", "shards"}
        if set(fields) != names:
            raise ValueError(f"it has the fields {', '.join(sorted(fields))} instead of {', '.join(sorted(names))}")
        manifest = Manifest(fields["cluster_id"], fields["shards"], fields["format"])
        if not isinstance(manifest.cluster_id, str) or not isinstance(manifest.shards, int):
            raise ValueError("its fields are of other types")
        return manifest


def _checksum(fields: Mapping[str, Any]) -> str:
    """The checksum of all fields except the checksum itself."""
    return xxhash.xxh3_64_hexdigest(json.dumps(fields, sort_keys=True).encode())


def open_manifest(settings: Settings, control: Control, creating: Callable[[], None] | None = None) -> Manifest:
    """The manifest in `control`, the data directory's documents. It is written if the data directory is new, after
    `creating`, which may raise ConfigError. A copy is kept in `shards/`. A directory in an earlier format is upgraded.

    The coordinator and the supervisor may call this at the same time, so it holds a lock. Raises ConfigError if the
    directory cannot be used, is in a newer format, holds data without a manifest, was created with another number of
    shards or with fewer shards than there are workers, has the directory of another shard or cluster in place of a
    shard's directory, or is in an earlier format and in use. Then nothing is upgraded.
    """
    try:
        control.prepare()
        with control.locked(LOCK):
            manifest = _read_or_write(control, settings, creating)
            _require_fitting(settings, manifest)
            _keep_copy(control, manifest)
            shards = {number: shard_control(control, number) for number in range(manifest.shards)}
            identity.verify(shards, manifest.cluster_id, identity.SHARD)
            return _upgraded(control, manifest)
    except OSError as error:
        if os.path.exists(settings.data) and not os.path.isdir(settings.data):  # the methods of Path may raise OSError
            raise ConfigError(f"TRIPTYCH_DATA is {settings.data}, which is not a directory") from error
        raise _unusable(settings.data, error) from error


def _require_fitting(settings: Settings, manifest: Manifest) -> None:
    """Raise ConfigError if the settings have another number of shards than the directory, or more workers than
    shards."""
    if settings.shards not in (0, manifest.shards):
        raise ConfigError(
            f"TRIPTYCH_SHARDS is {settings.shards}, but {settings.data} was made with {manifest.shards} shards; "
            "leave it out, or use another TRIPTYCH_DATA"
        )
    if settings.workers > manifest.shards:
        raise ConfigError(
            f"TRIPTYCH_WORKERS is {settings.workers}; it must be at most {manifest.shards}, the number of shards of "
            f"{settings.data}, which is fixed"
        )


def _upgraded(control: Control, manifest: Manifest) -> Manifest:
    """Upgrade the directory to FORMAT, one format at a time. Returns its manifest.

    Both locks are held, so nothing else writes to the directory meanwhile. Each step replaces the manifest atomically,
    then its copy. A crash leaves the format before or after the step; the next start writes a copy that is missing or
    outdated. Raises ConfigError if processes of an earlier release still run; OSError.
    """
    if manifest.format == FORMAT:
        return manifest
    try:
        with closing(control.lock("coordinator.lock")), closing(control.lock("workers.lock")):
            for following in range(manifest.format + 1, FORMAT + 1):
                manifest = replace(manifest, format=following)
                for documents in (control, control.within(SHARDS)):
                    documents.replace(NAME, manifest.encode())
                event(
                    logging.INFO,
                    "data directory upgraded",
                    directory=control.location(),
                    format=following,
                    before=following - 1,
                    rewritten="nothing",
                    added=ADDITIONS[following],
                )
    except Locked as error:
        raise ConfigError(
            f"{control.location()} is in format {manifest.format}, and would be upgraded to format {FORMAT}, but the "
            f"process {error.holder} of an earlier release uses it; stop its coordinator and its workers first"
        ) from None
    return manifest


def copy_of(path: Path) -> Path:
    """The path of the copy of the manifest `path`."""
    return path.parent / SHARDS / NAME


def _read_or_write(control: Control, settings: Settings, creating: Callable[[], None] | None) -> Manifest:
    location = control.location(NAME)
    if not control.exists(NAME):
        _refuse_without(control)
        if creating is not None:
            creating()
        manifest = Manifest(uuid.uuid4().hex, settings.shard_count())
        control.replace(NAME, manifest.encode())
        _warn_of_unusual_shards(settings)
        return manifest
    try:
        return Manifest.decode(control.read(NAME))
    except NewerFormat as error:
        raise ConfigError(
            f"{location}: {error}; start the release that wrote it, or use another TRIPTYCH_DATA"
        ) from error
    except ValueError as error:
        raise ConfigError(f"{location} is damaged ({error}); {_remedy(control)}") from error


def _warn_of_unusual_shards(settings: Settings) -> None:
    """Log a warning if the number of workers gives the new directory more shards than usual."""
    if settings.has_unusual_shards():
        event(
            logging.WARNING,
            f"TRIPTYCH_WORKERS is {settings.workers}, so the new data directory has {settings.shard_count()} shards, "
            "and this number cannot be changed later; to choose another one, remove the directory and set "
            "TRIPTYCH_SHARDS",
            directory=settings.data,
        )


def _refuse_without(control: Control) -> None:
    """Raise ConfigError if there is data but its manifest has been lost."""
    present = [name for name in HOLDS_DATA if control.exists(name)]
    if present:
        raise ConfigError(
            f"{control.location(NAME)} is missing, but {control.location()} holds data ({', '.join(present)}); "
            f"{_remedy(control)}"
        )


def _remedy(control: Control) -> str:
    """How an operator can restore the manifest: from its copy, or from the identities of the shards."""
    shards = control.within(SHARDS)
    try:
        Manifest.decode(shards.read(NAME))
    except (OSError, ValueError):
        count = sum(name.isdigit() for name in shards.names())
        content = Manifest(_cluster_of(shards), count).encode().decode()
        return f"restore it from a backup, or write a new one; from {shards.location()}, that would be {content}"
    return f"restore it from its copy: cp {shards.location(NAME)} {control.location(NAME)}"


def _cluster_of(shards: Control) -> str:
    """The cluster id that a shard's directory names; a new one if none does."""
    for name in shards.names():
        if name.isdigit() and shards.is_place(name):
            with suppress(OSError, ValueError):
                if shard_identity := identity.read(shards.within(name)):
                    return shard_identity[0]
    return uuid.uuid4().hex


def shard_directory(data: Path, shard: int) -> Path:
    """The directory of a shard's store and blocks."""
    return data / SHARDS / _shard_name(shard)


def shard_control(control: Control, shard: int) -> Control:
    """The documents of a shard's directory; `control` has those of the data directory."""
    return control.within(SHARDS).within(_shard_name(shard))


def _shard_name(shard: int) -> str:
    return f"{shard:04d}"


def shard_directories(data: Path) -> list[Path]:
    """The shard directories that exist, by number."""
    return numbered(data / SHARDS)


def _keep_copy(control: Control, manifest: Manifest) -> None:
    """Write the manifest's copy in `shards/` unless it exists. The shards' directories are created before the copy, so
    if the copy exists, a missing directory has been lost. Raises OSError; ConfigError if a directory has been lost or
    the copy belongs to another data directory."""
    shards = control.within(SHARDS)
    copy = shards.location(NAME)
    missing = [name for number in range(manifest.shards) if not shards.is_place(name := _shard_name(number))]
    try:
        copied = Manifest.decode(shards.read(NAME))
    except FileNotFoundError:
        _refuse_without_shards(control)
        shards.prepare()
    except NewerFormat as error:
        raise ConfigError(f"{copy}: {error}; start the release that wrote it") from error
    except ValueError as error:
        event(logging.ERROR, "the manifest's copy is damaged and is rewritten", file=copy, reason=str(error))
    else:
        if copied == manifest and missing:
            lost = shards.location(missing[0])
            raise ConfigError(
                f"{lost} is missing, with all that its shard held; restore it from a copy of the data directory, "
                f"or accept the loss and let it start empty: mkdir {lost}"
            )
        if copied != manifest:
            raise ConfigError(
                f"{control.location(NAME)} says cluster {manifest.cluster_id} with {manifest.shards} shards, but its "
                f"copy {copy} says {copied.cluster_id} with {copied.shards}; remove the one that "
                "does not belong to this directory's data"
            )
        if copied.format == manifest.format:
            return
    for name in missing:
        shards.within(name).prepare()
    shards.replace(NAME, manifest.encode())


def _refuse_without_shards(control: Control) -> None:
    """Raise ConfigError if `shards/` is missing although directories that are created after it exist."""
    others = [name for name in HOLDS_DATA if name != SHARDS and control.exists(name)]
    if others and not control.exists(SHARDS):
        shards = control.location(SHARDS)
        raise ConfigError(
            f"{shards} is missing, with the data of all shards, but {control.location()} holds {', '.join(others)}; "
            f"restore it from a copy of the data directory, or accept the loss and let it start empty: mkdir {shards}"
        )


def lock(control: Control, role: str) -> Lease:
    """Take the data directory's lock for a role ("coordinator" or "workers") until this process ends. Raises
    ConfigError if another process holds it."""
    try:
        with control.locked(LOCK):  # waits for a `leave` in progress
            return control.lock(f"{role}.lock")
    except Locked as error:
        raise ConfigError(
            f"TRIPTYCH_DATA is {control.location()}, which another cluster is using (process {error.holder} "
            f"holds the lock of its {role})"
        ) from None
    except OSError as error:
        raise _unusable(control.location(), error) from error


def _unusable(data: object, error: OSError) -> ConfigError:
    return ConfigError(f"TRIPTYCH_DATA is {data}, which cannot be used: {error.strerror or error}")


def endpoint(settings: Settings, manifest: Manifest) -> str:
    """The ZeroMQ address of this cluster's coordinator: a socket in a directory that only its owner may enter. Each
    data directory has its own, because a copy, such as a restored backup, has the same cluster id and may run at the
    same time. Raises ConfigError if other users may enter the directory, or if it cannot be created."""
    directory = settings.data.resolve() / "run"
    if len(os.fsencode(directory / "cluster.sock")) > SOCKET_PATH_BYTES_MAX:
        digest = xxhash.xxh3_64_hexdigest(os.fsencode(directory) + manifest.cluster_id.encode())
        directory = Path(tempfile.gettempdir()) / f"triptych-{os.getuid()}-{digest}"
    try:
        directory.mkdir(mode=DIRECTORY_MODE, exist_ok=True)
        status = directory.stat()
    except OSError as error:
        raise ConfigError(f"{directory}, for the sockets of the cluster, cannot be used: {error.strerror}") from error
    if status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise ConfigError(
            f"{directory} must belong to this user with mode 0700; it has mode {status.st_mode & 0o777:o}"
        )
    return f"ipc://{directory}/cluster.sock"


def leave(address: str, control: Control, other_role: str) -> None:
    """Remove the directory of an `endpoint` in the temporary directory, unless the other role still runs. If both end
    at the same moment, the directory stays. Call this after closing the sockets, while holding the lock of the own
    role.

    The directory must stay while workers wait for a coordinator: another user could create one of that name.
    """
    directory = Path(address.removeprefix("ipc://")).parent
    if directory.parent != Path(tempfile.gettempdir()):
        return
    with suppress(OSError, Locked), control.locked(LOCK), closing(control.lock(f"{other_role}.lock")):
        for socket in directory.glob("cluster*.sock"):  # ZeroMQ may be about to remove them itself
            socket.unlink(missing_ok=True)
        directory.rmdir()
