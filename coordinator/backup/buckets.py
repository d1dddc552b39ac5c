"""Backups in a bucket behind the S3 protocol. Needs the extra `s3`: `pip install 'triptych[s3]'`.

The library takes endpoint, region and credentials from the environment (`AWS_ENDPOINT_URL`, `AWS_REGION`,
`AWS_ACCESS_KEY_ID`, …), uploads large objects in parts and retries failed requests. If the environment has no
credentials, it requests those of the machine from the cloud's metadata service.
"""

from __future__ import annotations

import os
import re
import secrets
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta

import xxhash

from coordinator.backup.inventory import BackupError, object_name
from coordinator.backup.place import LOCK, holder_in, this_holder

try:
    import obstore
    from obstore.exceptions import AlreadyExistsError, BaseError
    from obstore.store import S3Store
except ImportError as error:
    raise BackupError("backups in buckets need the package obstore: pip install 'triptych[s3]'") from error

SCHEME = "s3://"
ENDPOINTS = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT")
CREDENTIALS = (
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_SKIP_SIGNATURE",
)
"""If none of these is set, the library asks the metadata service."""
PART_BYTES = 16 << 20
"""Bytes of one request. Each request has its own time limit, within which a large object would need a fast network."""
PARTS_AT_ONCE = 4
IN_MEMORY_BYTES_MAX = 32 << 20
"""A larger file is spooled to the temporary directory, since its name is known only after all of it was read."""
REQUEST_TIMEOUT, RETRY_TIMEOUT_S = "60s", 120
DELETE_AT_ONCE = 1000
LOCK_RENEW_S, LOCK_STALE_S = 60.0, 600.0
"""A lock that was not renewed for LOCK_STALE_S belongs to a process that was killed."""
_BUCKET = re.compile(r"[A-Za-z0-9._-]+")


class Bucket:
    """See `coordinator.backup.place.Place`."""

    def __init__(self, location: str) -> None:
        bucket, _, prefix = location.removeprefix(SCHEME).partition("/")
        if not location.startswith(SCHEME) or not _BUCKET.fullmatch(bucket):
            raise BackupError(f"{location!r} is no place of backups; it must be a directory or s3://bucket/prefix")
        _require_credentials(location)
        is_plain = any(os.environ.get(name, "").lower().startswith("http://") for name in ENDPOINTS)
        with _errors(location):
            self._store = S3Store(
                bucket,
                prefix=prefix.strip("/") or None,
                client_options={"timeout": REQUEST_TIMEOUT, "allow_http": is_plain},
                retry_config={"max_retries": 8, "retry_timeout": timedelta(seconds=RETRY_TIMEOUT_S)},
            )
        self.location = location
        self._own_lock = b""
        """The content of this process's lock: a line that names the process, and a token."""
        self._is_held = False

    @contextmanager
    def locked(self) -> Iterator[None]:
        with _errors(self.location):
            self._take_lock()
        done = threading.Event()
        renewing = threading.Thread(target=self._renew, args=(done,), daemon=True)
        renewing.start()
        self._is_held = True
        try:
            yield
        finally:
            self._is_held = False
            done.set()
            renewing.join()
            with suppress(BaseError, OSError):  # a lock that remains becomes stale
                if self._stored_lock() == self._own_lock:
                    obstore.delete(self._store, LOCK)

    def _take_lock(self) -> None:
        self._own_lock = f"{this_holder()}\n{secrets.token_hex(16)}".encode()
        if self._create_lock():
            return
        with suppress(FileNotFoundError):  # it was released meanwhile
            renewed_at = obstore.head(self._store, LOCK)["last_modified"]
            if (datetime.now(UTC) - renewed_at).total_seconds() < LOCK_STALE_S:
                raise self._in_use(renewed_at)
            obstore.delete(self._store, LOCK)
        if not self._create_lock():
            raise self._in_use(datetime.now(UTC))

    def _create_lock(self) -> bool:
        """Create the lock. Returns whether this process holds it now."""
        try:
            obstore.put(self._store, LOCK, self._own_lock, mode="create")
        except AlreadyExistsError:
            # The library repeats a request whose response was lost, and the repeated one finds the first one's lock.
            return self._stored_lock() == self._own_lock
        return True

    def _stored_lock(self) -> bytes:
        """The content of the lock in the bucket; empty if there is none."""
        with suppress(FileNotFoundError):
            return obstore.get(self._store, LOCK).bytes().to_bytes()
        return b""

    def _in_use(self, renewed_at: datetime) -> BackupError:
        stale_at = renewed_at + timedelta(seconds=LOCK_STALE_S)
        return BackupError(
            f"{self.location} is in use by {holder_in(self._stored_lock())}; try again when it has ended. If it was "
            f"killed, its lock is ignored from {stale_at:%H:%M:%S} UTC on; to make a backup earlier, delete "
            f"{self.location}/{LOCK}"
        )

    def _renew(self, done: threading.Event) -> None:
        while not done.wait(LOCK_RENEW_S):
            with suppress(BaseError, OSError, BackupError):  # the next renewal or `publish` meets the error again
                self._require_lock()
                obstore.put(self._store, LOCK, self._own_lock)

    def _require_lock(self) -> None:
        if self._stored_lock() != self._own_lock:
            raise BackupError(f"{self.location} was taken by another backup or prune; try again")

    def names(self, prefix: str) -> Mapping[str, int]:
        with _errors(self.location):
            return {meta["path"]: meta["size"] for batch in obstore.list(self._store, prefix) for meta in batch}

    def put(self, pieces: Iterable[bytes], present: Mapping[str, int]) -> tuple[str, int]:
        hashed, size = xxhash.xxh3_128(), 0
        with tempfile.SpooledTemporaryFile(max_size=IN_MEMORY_BYTES_MAX) as spool:
            for piece in pieces:
                hashed.update(piece)
                size += spool.write(piece)
            name = object_name(hashed.hexdigest(), size)
            if present.get(name) != size:
                spool.seek(0)
                with _errors(self.location):
                    obstore.put(self._store, name, spool, chunk_size=PART_BYTES, max_concurrency=PARTS_AT_ONCE)
        return hashed.hexdigest(), size

    def settle(self) -> None:
        """Nothing to do: an object is durable once it was put."""

    def read(self, name: str) -> Iterator[bytes]:
        with _errors(self.location):
            size = obstore.head(self._store, name)["size"]
            for start in range(0, size, PART_BYTES):
                end = min(start + PART_BYTES, size)
                yield bytes(obstore.get_range(self._store, name, start=start, end=end))

    def publish(self, name: str, content: bytes) -> None:
        assert self._is_held
        with _errors(self.location):
            self._require_lock()
            obstore.put(self._store, name, content)

    def delete(self, names: Iterable[str]) -> None:
        with _errors(self.location):
            if self._is_held:
                self._require_lock()
            all_names = list(names)
            for first in range(0, len(all_names), DELETE_AT_ONCE):
                obstore.delete(self._store, all_names[first : first + DELETE_AT_ONCE])


def _require_credentials(location: str) -> None:
    """Raise BackupError if the library would ask the metadata service although it must not."""
    is_disabled = os.environ.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true"
    if is_disabled and not any(os.environ.get(name) for name in CREDENTIALS):
        raise BackupError(
            f"{location}: the environment has no credentials, and AWS_EC2_METADATA_DISABLED is true; "
            "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        )


@contextmanager
def _errors(location: str) -> Iterator[None]:
    """Turns the library's errors into one-line errors: FileNotFoundError for a missing object, else BackupError."""
    try:
        yield
    except (BaseError, FileNotFoundError, ValueError) as error:
        line, _, _ = str(error).strip().partition("\n")
        kind = FileNotFoundError if isinstance(error, FileNotFoundError) else BackupError
        raise kind(f"{location}: {line}") from error
