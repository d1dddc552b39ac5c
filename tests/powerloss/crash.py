"""States that a loss of power may leave, chosen by mode and seed."""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass
from pathlib import Path

from tests.powerloss.files import Change, FileSystem, Node, apply, rename, walk

MODES = ("drop", "keep", "names", "data", "ordered", "mixed", "torn")
"""Of what is not synced there is: nothing; everything; names only; bytes only; what was done before some moment; each
change or not by chance; the same with writes in parts."""
SECTORS = (512, 4096)
STORE_LOCK = "LOCK"
"""RocksDB's directories have it. RocksDB counts on their names reaching the disk in order, as with a file system that
keeps a journal: it renames CURRENT before anything has synced the name of the MANIFEST that CURRENT says."""
_TORN_SHARE = 0.5


@dataclass(slots=True)
class State:
    """Files with their bytes, and directories (None), by path."""

    entries: dict[str, bytes | None]

    @property
    def digest(self) -> bytes:
        whole = hashlib.blake2b(digest_size=16)
        for path, content in self.entries.items():
            whole.update(b"%d %s %d " % (content is None, path.encode(), len(content or b"")))
            whole.update(content or b"")
        return whole.digest()

    def write(self, directory: Path) -> None:
        for path, content in self.entries.items():
            if content is None:
                (directory / path).mkdir()
            else:
                (directory / path).write_bytes(content)


class _Choice:
    """The same for the same event, however often it is asked about: a rename is in two directories."""

    def __init__(self, files: FileSystem, mode: str, seed: int) -> None:
        assert mode in MODES, f"the mode is {mode!r}; it is one of {', '.join(MODES)}"
        self._mode, self._seed = mode, f"{seed}/{files.index}/{mode}"
        chance = random.Random(self._seed)
        self._share = chance.choice((0.1, 0.5, 0.9))
        oldest = min((i for _, node in walk(files.root, _ever) for i in _pending(node)), default=files.index)
        self._until = chance.randint(oldest, files.index)

    def keeps(self, index: int, *, is_name: bool) -> bool:
        if self._mode in ("drop", "keep"):
            return self._mode == "keep"
        if self._mode in ("names", "data"):
            return (self._mode == "names") == is_name
        if self._mode == "ordered":
            return index < self._until
        return self._random(index, is_name).random() < self._share

    def parts(self, change: Change, size: int) -> list[Change]:
        """What is left of a change to a file that has `size` bytes on the disk."""
        if change.data is not None and self._mode == "torn":
            chance = self._random(change.index, "torn")
            if chance.random() < _TORN_SHARE:
                return _torn(change, change.data, size, chance)
        return [change] if self.keeps(change.index, is_name=False) else []

    def _random(self, *what: object) -> random.Random:
        return random.Random(f"{self._seed}/{what}")


def _ever(node: Node) -> dict[str, Node]:
    """Every name that may be in the directory."""
    return node.synced_names | {n.name: n.node for n in node.namings if n.node is not None} | node.names


def _pending(node: Node) -> list[int]:
    return [change.index for change in node.changes] + [naming.index for naming in node.namings]


def _torn(change: Change, data: bytes, size: int, chance: random.Random) -> list[Change]:
    """A beginning, some sectors, or (where the file grew) its length with zeros for what was written. A disk writes a
    sector whole or not; only what makes the file longer may end anywhere."""
    how = chance.choice(("beginning", "sectors", "zeros"))
    if how == "beginning":
        end = change.at + chance.randint(0, len(data))
        if end < size:
            end = max(change.at, end // SECTORS[0] * SECTORS[0])
        return [Change(change.index, change.at, data[: end - change.at])]
    if how == "zeros":
        end = change.at + len(data)
        return [Change(change.index, size, bytes(end - size))] if end > size else []
    sector = chance.choice(SECTORS)
    parts = []
    at = change.at
    while at < change.at + len(data):
        end = min((at // sector + 1) * sector, change.at + len(data))
        if chance.random() < 0.5:
            parts.append(Change(change.index, at, data[at - change.at : end - change.at]))
        at = end
    return parts


def crash(files: FileSystem, mode: str, seed: int) -> State:
    """One state; the same for the same mode and seed."""
    choice = _Choice(files, mode, seed)

    def names(node: Node) -> dict[str, Node]:
        left = dict(node.synced_names)
        for naming in node.namings:
            if choice.keeps(naming.index, is_name=True):
                rename(left, naming)
            elif STORE_LOCK in node.names:
                break
        return left

    entries: dict[str, bytes | None] = {}
    for path, node in walk(files.root, names):
        if path:
            entries[path] = None if node.is_directory else _content(node, choice)
    return State(entries)


def _content(node: Node, choice: _Choice) -> bytes:
    content = bytearray(node.synced_content)
    for change in node.changes:
        for part in choice.parts(change, len(content)):
            apply(content, part)
    return bytes(content)
