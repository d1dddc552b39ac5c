"""Opening a store's RocksDB: the preceding checks, the column families, and their settings."""

from __future__ import annotations

import logging
from contextlib import suppress
from pathlib import Path

from rocksdict import AccessType, DBCompressionType, DBRecoveryMode, Options, Rdict

from shared.telemetry import event
from worker.storage.rows import damage as store_damage
from worker.storage.rows import files as store_files
from worker.storage.rows import manifest as store_manifest
from worker.storage.rows.damage import StoreDamaged, StoreLocked
from worker.storage.rows.marker import Claim

FAMILIES = ("meta", "series", "blocks", "log", "vectors")
WRITE_BUFFER_BYTES = 16 << 20
STREAM_BUFFER_BYTES = 4 << 20
"""The write buffer of the families in `STREAMS`. A larger one would save no work, and every shard of a worker has one
for each of them."""
STREAMS = ("series",)
"""Families that are written in the order of their keys and not read again until the next start."""
COUNT_BUFFER_BYTES = 1 << 20
"""The write buffer of the library's default family, which has one row. Every write changes that row, and RocksDB keeps
its log files as long as this buffer needs them."""
LOG_FILES_BYTES_MAX = 256 << 20
OPEN_FILES_MAX = 256
WRITE_BUFFERS_MAX = 6
"""Write buffers of one family in memory; RocksDB delays writes when nearly all of them are full."""
SLOWDOWN_FILES = 40
"""From this number of level-0 files on, the store delays writes: twice RocksDB's default."""
LOG_FAMILY_SLOWDOWN_FILES = 80
"""The same for the family of the log, whose files are merged later."""
LOG_FAMILY_MERGED_FILES = 24
"""From this number of level-0 files of the log on, RocksDB merges them. With its default of 4, it rewrote the records
of the current segment again and again: within 40 s, appending at full speed slowed down by 40 %. Keys begin with the
segment, so that files of different segments do not overlap."""
LOG_FILES_KEPT = 2
"""How many of RocksDB's message logs are kept: those of this start and of the one before."""
_TRACKING = Path(__file__).with_name("tracking")
"""The directory with a file of options in RocksDB's format."""


def verify_files(path: Path, claim: Claim | None) -> None:
    """Check the files before RocksDB reads them. Raises StoreDamaged if some are missing or damaged, StoreLocked if
    another process has the store open, OSError."""
    try:
        store_files.verify(path, claim)
    except StoreDamaged as error:
        if store_files.is_locked(path):  # the files may have changed while they were read
            raise StoreLocked(f"{path} is in use") from error
        raise


def cut_torn_manifest(path: Path, claim: Claim | None) -> None:
    """Cut off the end of the manifest if a loss of power has torn it, and log the cut. Raises OSError."""
    torn = store_files.torn_manifest(path, claim)
    if torn is None or store_files.is_locked(path):
        return
    file, size = torn
    event(logging.WARNING, "store manifest cut", file=str(file), at=size, bytes=file.stat().st_size - size)
    store_manifest.cut(file, size)


def open_database(path: Path) -> Rdict:
    """The database with all families, which are created if they do not exist. Raises StoreLocked, StoreDamaged,
    OSError."""
    db, options = None, _options()
    try:
        existing = set(Rdict.list_cf(str(path))) if (path / "CURRENT").exists() else set()
        families = {name: _options(name) for name in existing - {"default"}}
        db = Rdict(str(path), options, column_families=families, access_type=AccessType.read_write())
        for name in FAMILIES:
            if name not in existing:
                db.create_column_family(name, _options(name))
    except Exception as error:  # the library raises plain Exception
        if db is not None:
            with suppress(Exception):
                db.close()
        raise store_damage.of_opening(path, error) from error
    return db


def tracking_options() -> Options:
    """Options of a database, raw mode, which record the size of each full and synced log in the manifest. A database
    that lacks such a log or its end is then damaged. Otherwise it would be opened with the writes of later logs only,
    and the count of its writes would be right. Raises OSError."""
    try:
        return Options.load_latest(str(_TRACKING))[0]
    except Exception as error:  # the library raises plain Exception
        raise OSError(f"{_TRACKING} cannot be read: {error}") from error


def _options(family: str = "default") -> Options:
    options = tracking_options() if family == "default" else Options(raw_mode=True)
    options.create_if_missing(True)
    buffer_bytes = STREAM_BUFFER_BYTES if family in STREAMS else WRITE_BUFFER_BYTES
    options.set_write_buffer_size(COUNT_BUFFER_BYTES if family == "default" else buffer_bytes)
    options.set_max_total_wal_size(LOG_FILES_BYTES_MAX)
    options.set_keep_log_file_num(LOG_FILES_KEPT)
    # A write holds the interpreter lock, so a delayed write would delay the worker's heartbeat too.
    options.set_max_write_buffer_number(WRITE_BUFFERS_MAX)
    slowdown_files = LOG_FAMILY_SLOWDOWN_FILES if family == "log" else SLOWDOWN_FILES
    options.set_level_zero_slowdown_writes_trigger(slowdown_files)
    options.set_level_zero_stop_writes_trigger(2 * slowdown_files)
    if family == "log":
        options.set_level_zero_file_num_compaction_trigger(LOG_FAMILY_MERGED_FILES)
    options.set_max_open_files(OPEN_FILES_MAX)
    options.set_compression_type(DBCompressionType.lz4())
    options.set_paranoid_checks(True)
    # Replay the log up to its first incomplete record only. The marker shows whether the store then lacks acknowledged
    # writes.
    options.set_wal_recovery_mode(DBRecoveryMode.point_in_time())
    return options
