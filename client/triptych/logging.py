"""A handler of Python's `logging` that writes to the log of Triptych."""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import math
import os
import queue
import threading
import time
import weakref
from typing import Any, Union, cast

from triptych.client import Client
from triptych.errors import BadRequest
from triptych.records import NewRecord

KEY = "app"
QUEUED_MAX = 10_000
QUEUED_BYTES_MAX = 64 << 20
BATCH_RECORDS_MAX = 1000
BATCH_BYTES_MAX = 4 << 20
BATCH_S = 0.5
"""A record waits at most this long for others to be sent with it."""
PATIENCE_S = 300.0
"""A batch that the server has not accepted for this time is dropped."""
EXIT_S = 5.0
"""How long the end of the program waits for what is queued."""
OWN_LOGGERS = ("httpx", "httpcore")
"""The loggers of the client itself: records that they log while records are sent would have to be sent as well."""
MESSAGE_CHARS_MAX = 100_000
_STANDARD = frozenset(vars(logging.LogRecord("", 0, "", 0, "", (), None))) | {"message", "asctime", "taskName"}
_Item = Union[tuple[str, bytes], threading.Event]


class LogHandler(logging.Handler):
    """Appends log records under `key`, as JSON: time (Unix seconds), level, logger, message, exception, and what the
    program has added with `extra` (what has one of these names there stands under `extra_level`, and so on). With a
    formatter that has been set, the value is its text instead.

    A logging call never waits: records go to a queue of at most `queued_max` records and 64 MB, and a thread sends them
    in batches, each of which is appended once however often it has to be sent. Records that find the queue full, or
    that the server has not taken within `patience` seconds (of a client that is given: within its timeout), are dropped
    and counted in `dropped`. The end of the program, or `close`, waits at most `exit_timeout` seconds for what is
    queued; what is left then, and what is logged later, is dropped and counted. A process that is forked has a queue
    and a thread of its own.
    """

    def __init__(
        self,
        client: Client | str = "",
        key: str = KEY,
        level: int = logging.NOTSET,
        *,
        queued_max: int = QUEUED_MAX,
        patience: float = PATIENCE_S,
        exit_timeout: float = EXIT_S,
    ) -> None:
        self.key = key
        self.dropped = 0
        self.exit_timeout = exit_timeout
        self._queued_max = queued_max
        self._own_client = Client(client, timeout=patience) if isinstance(client, str) else None
        self._client = self._own_client or cast(Client, client)
        self._ending = threading.Event()
        self._start()
        super().__init__(level)  # only now: `logging.shutdown` flushes what this has registered, whole or not
        _at_exit(self)

    def _start(self) -> None:
        self._pid = os.getpid()
        self._producer = self._client.log.producer()
        # Of the kinds that a signal handler may enter once more while its own thread is in them.
        self._queue: queue.SimpleQueue[_Item] = queue.SimpleQueue()
        self._queued_bytes = 0
        self._counting = threading.RLock()
        self._thread = threading.Thread(target=self._send_batches, name="triptych-log", daemon=True)
        self._thread.start()

    def filter(self, record: logging.LogRecord) -> Any:
        # Not in `emit`, which needs the handler's lock: `logging.shutdown` holds it while it waits for the thread, and
        # the thread's own requests are logged.
        return not _is_own(record.name) and super().filter(record)

    def emit(self, record: logging.LogRecord) -> None:
        if self._pid != os.getpid():
            self._start()
        try:
            text = self.format(record) if self.formatter else _as_json(_content(record))
            self._enqueue(text.encode("utf-8", "replace"))
        except queue.Full:
            self._drop(1)
        except Exception:
            self._drop(1)
            self.handleError(record)

    def _enqueue(self, value: bytes) -> None:
        """Raises queue.Full."""
        with self._counting:
            if self._ending.is_set():
                raise queue.Full
            if self._queued_bytes + len(value) > QUEUED_BYTES_MAX or self._queue.qsize() >= self._queued_max:
                raise queue.Full
            self._queued_bytes += len(value)
            self._queue.put((self.key, value))

    def flush(self) -> None:
        """Wait until all records that were logged before have been sent or dropped, at most `exit_timeout`."""
        self.drain(self.exit_timeout)

    def drain(self, timeout: float) -> bool:
        """As `flush`, within this time; False if it is too short."""
        if not self._thread.is_alive():
            return True
        _settle_levels()
        done = threading.Event()
        with self._counting:
            if self._ending.is_set():
                return True
            self._queue.put(done)
        return done.wait(timeout)

    def close(self) -> None:
        if not self._ending.is_set():
            give_up = time.monotonic() + self.exit_timeout
            self.drain(self.exit_timeout)
            if self._pid == os.getpid():  # in a forked process, the queue is still that of its parent
                self._end(give_up)
            self._ending.set()
        super().close()

    def _end(self, give_up: float) -> None:
        with self._counting:
            self._ending.set()  # nothing is queued any more
        self._queue.put(threading.Event())  # wakes the thread
        self._thread.join(max(0.0, give_up - time.monotonic()))
        if self._own_client is not None and not self._thread.is_alive():
            self._own_client.close()
        with contextlib.suppress(queue.Empty):
            while True:
                item = self._queue.get_nowait()
                if isinstance(item, threading.Event):
                    item.set()
                else:
                    self._drop(1)

    def _drop(self, records: int) -> None:
        with self._counting:
            self.dropped += records

    def _send_batches(self) -> None:
        while not self._ending.is_set():
            batch, waiting = self._next_batch()
            if batch:
                self._send(batch)
            for event in waiting:
                event.set()

    def _next_batch(self) -> tuple[list[NewRecord], list[threading.Event]]:
        """The records of the next batch, and the callers that wait for it."""
        batch: list[NewRecord] = []
        waiting: list[threading.Event] = []
        until = time.monotonic() + BATCH_S
        size = 0
        while len(batch) < BATCH_RECORDS_MAX and size < BATCH_BYTES_MAX and not waiting:
            try:
                item = self._queue.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                break
            if isinstance(item, threading.Event):
                waiting.append(item)
            else:
                batch.append(NewRecord(*item))
                size += len(item[1])
        with self._counting:
            self._queued_bytes -= size
        return batch, waiting

    def _send(self, batch: list[NewRecord]) -> None:
        try:
            self._producer.append(batch)
        except BadRequest:
            self._send_apart(batch)
        except Exception:  # also of a client that is closed, or an answer of somebody else: the thread goes on
            self._drop(len(batch))

    def _send_apart(self, batch: list[NewRecord]) -> None:
        """Send a refused batch in halves, so that only the wrong record is dropped."""
        if len(batch) == 1:
            self._drop(1)
            return
        middle = len(batch) // 2
        self._send(batch[:middle])
        self._send(batch[middle:])


def _content(record: logging.LogRecord) -> dict[str, Any]:
    content: dict[str, Any] = {
        "time": round(record.created, 6),
        "level": record.levelname,
        "logger": record.name,
        "message": record.getMessage()[:MESSAGE_CHARS_MAX],
    }
    if record.exc_info:
        content["exception"] = logging.Formatter().formatException(record.exc_info)
    added = {name: value for name, value in vars(record).items() if name not in _STANDARD}
    for name in content.keys() & added.keys():
        other = f"extra_{name}"
        while other in added:
            other = f"extra_{other}"
        added[other] = added.pop(name)
    return content | added


def _as_json(content: dict[str, Any]) -> str:
    try:
        return json.dumps(content, default=str, ensure_ascii=False, allow_nan=False)
    except (ValueError, TypeError):
        return json.dumps(_plain(content), default=str, ensure_ascii=False)


def _plain(value: Any) -> Any:
    """The value with text in place of what JSON does not have: the numbers "NaN", "Infinity" and "-Infinity", and names
    of members that are neither text nor a number."""
    if isinstance(value, float):
        return value if math.isfinite(value) else json.dumps(float(value))
    if isinstance(value, dict):
        return {_name(name): _plain(entry) for name, entry in value.items()}
    return [_plain(entry) for entry in value] if isinstance(value, (list, tuple)) else value


def _name(name: Any) -> Any:
    return _plain(name) if name is None or isinstance(name, (str, int, float)) else str(name)


def _is_own(logger: str) -> bool:
    return logger.partition(".")[0] in OWN_LOGGERS


def _settle_levels() -> None:
    """Let the loggers of OWN_LOGGERS look up their levels now. Otherwise the thread might do so while it sends, which
    needs the lock that `logging.config.dictConfig` holds while it waits for the thread."""
    for name, logger in list(logging.root.manager.loggerDict.items()):
        if _is_own(name) and isinstance(logger, logging.Logger):
            for level in (logging.DEBUG, logging.INFO):
                logger.isEnabledFor(level)


def _at_exit(handler: LogHandler) -> None:
    """Close the handlers before the interpreter ends threads. This does not keep a handler alive that is no longer
    referenced."""
    reference = weakref.ref(handler)

    def close() -> None:
        handler = reference()
        if handler is not None:
            handler.close()

    atexit.register(close)
