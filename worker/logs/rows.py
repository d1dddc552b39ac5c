"""Keys of the log's rows in the store.

Family "log" holds runs of records, `r · segment · key · first sequence`, and entries, `e · segment · first group`.
The log key is escaped (00 → 00 FF) and ends with 00 00. This keeps the order of the keys, and no key is the prefix of
another. So the records of one key and segment are one range of rows, ascending by sequence. Dropping a segment deletes
two ranges.

The family also has, under `log/`, the totals of each segment, the answers to producers, and two marks: every group
below the mark "gathered" is in this store or nowhere, and every segment below the mark "dropped" has been dropped. All
rows are in one family because the store writes out a family as a whole: after a crash, the marks match the other rows.
`log/start/` and the key has the key's start (worker.logs.starts), a sequence number. `log/policies` says how far the
policies have been applied (worker.logs.policies).
Family "meta" holds the cursors and the consumer groups, also under `log/`.
"""

from __future__ import annotations

from shared.messages.log import SEQUENCE_BYTES

RUN = b"r"
ENTRY = b"e"
TOTALS = b"log/totals/"
GATHERED = b"log/gathered"
DROPPED = b"log/dropped"
CURSORS = b"log/cursor/"
GROUPS = b"log/group/"
GROUPS_FLOOR = b"log/groups-floor"
PRODUCERS = b"log/producer/"
STARTS = b"log/start/"
POLICIES = b"log/policies"

_SEGMENT_BYTES = 4
_HEAD = len(RUN) + _SEGMENT_BYTES
_END = b"\0\0"
_PAST_END = b"\0\1"  # above _END, below an escaped zero byte


def escape(key: bytes) -> bytes:
    return key.replace(b"\0", b"\0\xff")


def ended(key: bytes) -> bytes:
    """The key in an encoded form that keeps the order and is never the prefix of another encoded key."""
    return escape(key) + _END


def unended(encoded: bytes) -> bytes:
    return encoded[: -len(_END)].replace(b"\0\xff", b"\0")


def sequence_bytes(sequence: int) -> bytes:
    return sequence.to_bytes(SEQUENCE_BYTES, "big")


def segment_bytes(segment: int) -> bytes:
    return segment.to_bytes(_SEGMENT_BYTES, "big")


def runs_of(segment: int, key: bytes) -> bytes:
    """The prefix of the rows of all runs of the key in this segment; the sequence number follows it."""
    return RUN + segment_bytes(segment) + ended(key)


def past_key(segment: int, key: bytes) -> bytes:
    """A row key above every run of the key in this segment, and not above those of the next key."""
    return RUN + segment_bytes(segment) + escape(key) + _PAST_END


def prefix_range(segment: int, prefix: bytes) -> tuple[bytes, bytes]:
    """(start, end) of the runs of this segment whose keys begin with `prefix`."""
    start = RUN + segment_bytes(segment) + escape(prefix)
    return start, after(start)


def after(prefix: bytes) -> bytes:
    """The least byte string above all that begin with `prefix`, which must have a byte below FF."""
    head = prefix.rstrip(b"\xff")
    assert head, "no byte string is above all that begin with bytes FF"
    return head[:-1] + bytes([head[-1] + 1])


def key_of(run: bytes) -> bytes:
    return unended(run[_HEAD:-SEQUENCE_BYTES])


def sequence_of(row: bytes) -> int:
    """The sequence number at the end of a row's key: a run's first record, an entry's first group, an answer's
    start."""
    return int.from_bytes(row[-SEQUENCE_BYTES:], "big")


def segment_of(row: bytes) -> int:
    return int.from_bytes(row[len(RUN) : _HEAD], "big")


def entry(segment: int, group: int) -> bytes:
    return ENTRY + segment_bytes(segment) + sequence_bytes(group)


def totals(segment: int) -> bytes:
    return TOTALS + segment_bytes(segment)


def cursor(name: str, key: bytes) -> bytes:
    return CURSORS + ended(name.encode()) + key


def cursor_name(row: bytes) -> str:
    """The name in a row's key made by `cursor`: an escaped name has no two zero bytes one after the other."""
    end = row.index(_END, len(CURSORS))
    return unended(row[len(CURSORS) : end + len(_END)]).decode()


def group(name: str) -> bytes:
    return GROUPS + ended(name.encode())


def producers_of(identity: str) -> bytes:
    """The prefix of the rows of this producer's answers."""
    return PRODUCERS + ended(identity.encode())


def producer(identity: str, start: int) -> bytes:
    return producers_of(identity) + sequence_bytes(start)


def start(key: bytes) -> bytes:
    return STARTS + key
