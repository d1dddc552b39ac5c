"""A file system that knows what of it is on the disk, after POSIX: bytes of a file by fsync or fdatasync of it, names
by fsync of their directory. What is not may be there or not, each write and each name for itself."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from posixpath import basename, dirname, normpath

from tests.powerloss.trace import Event, Op


@dataclass(slots=True)
class Change:
    """Of a file not synced yet: `data` written at `at`, or (None) cut or grown to the size `at`."""

    index: int
    at: int
    data: bytes | None


@dataclass(slots=True)
class Naming:
    """Of a directory not synced yet: `name` is `node` from now on (None: nothing), and `former` is nothing any more."""

    index: int
    name: str
    node: Node | None
    former: str = ""


@dataclass(slots=True, eq=False)
class Node:
    """A file or a directory. `content` or `names` is as the program sees it, `synced…` as it is on the disk."""

    is_directory: bool
    content: bytearray = field(default_factory=bytearray)
    synced_content: bytearray = field(default_factory=bytearray)
    changes: list[Change] = field(default_factory=list)
    names: dict[str, Node] = field(default_factory=dict)
    synced_names: dict[str, Node] = field(default_factory=dict)
    namings: list[Naming] = field(default_factory=list)

    def change(self, change: Change) -> None:
        apply(self.content, change)
        self.changes.append(change)

    def name(self, naming: Naming) -> None:
        rename(self.names, naming)
        self.namings.append(naming)

    def synced(self, before: int) -> None:
        """What was done before that event is on the disk."""
        for change in self.changes:
            if change.index < before:
                apply(self.synced_content, change)
        self.changes = [change for change in self.changes if change.index >= before]
        for naming in self.namings:
            if naming.index < before:
                rename(self.synced_names, naming)
        self.namings = [naming for naming in self.namings if naming.index >= before]


def apply(content: bytearray, change: Change) -> None:
    if change.data is None:
        del content[change.at :]
        content.extend(bytes(change.at - len(content)))
        return
    content.extend(bytes(max(0, change.at - len(content))))
    content[change.at : change.at + len(change.data)] = change.data


def rename(names: dict[str, Node], naming: Naming) -> None:
    if naming.former and names.get(naming.former) is naming.node:
        del names[naming.former]
    if naming.node is None:
        names.pop(naming.name, None)
    else:
        names[naming.name] = naming.node


class FileSystem:
    """What the events up to some point have made of the directory `root`."""

    def __init__(self, root: str, *, is_lenient: bool = False) -> None:
        """`is_lenient`: a directory is there as soon as it is made, which POSIX does not promise."""
        self._is_lenient = is_lenient
        self._prefix = root.rstrip("/")
        self.root = Node(is_directory=True)
        self.index = 0
        self._open: dict[int, Node] = {}
        self._syncs: dict[int, tuple[Node, int]] = {}

    def play(self, entry: Event) -> None:
        """The next event of the trace."""
        _ACTS.get(entry.op, _nothing)(self, entry)
        self.index += 1

    def settle(self) -> None:
        """Everything is on the disk."""
        for _, node in walk(self.root, lambda node: node.names):
            node.synced(self.index + 1)

    def _find(self, path: str) -> Node | None:
        node: Node | None = self.root
        for name in self._names(path):
            node = node.names.get(name) if node is not None else None
        return node

    def _names(self, path: str) -> list[str]:
        return [name for name in normpath(path)[len(self._prefix) :].split("/") if name]

    def _parent(self, path: str) -> tuple[Node, str]:
        path = normpath(path)
        parent = self._find(dirname(path))
        assert parent is not None, f"{path} is in no directory"
        return parent, basename(path)

    def _on_open(self, entry: Event) -> None:
        node = self._find(entry.path)
        if node is None:
            assert entry.offset & os.O_CREAT, f"{entry.path} was there before the record began"
            parent, name = self._parent(entry.path)
            node = Node(is_directory=False)
            parent.name(Naming(self.index, name, node))
        if entry.offset & os.O_TRUNC and node.content:
            node.change(Change(self.index, 0, None))
        self._open[entry.number] = node

    def _on_close(self, entry: Event) -> None:
        self._open.pop(entry.number, None)

    def _on_write(self, entry: Event) -> None:
        self._open[entry.number].change(Change(self.index, entry.offset, entry.data))

    def _on_truncate(self, entry: Event) -> None:
        self._open[entry.number].change(Change(self.index, entry.offset, None))

    def _on_sync_begin(self, entry: Event) -> None:
        self._syncs[entry.offset] = self._open[entry.number], self.index

    def _on_sync_end(self, entry: Event) -> None:
        node, begun = self._syncs.pop(entry.offset)
        node.synced(begun)

    def _on_mkdir(self, entry: Event) -> None:
        parent, name = self._parent(entry.path)
        node = Node(is_directory=True)
        parent.name(Naming(self.index, name, node))
        if self._is_lenient:
            parent.synced_names[name] = node

    def _on_rename(self, entry: Event) -> None:
        node = self._find(entry.path)
        if node is None:
            return  # one that is not recorded: RocksDB's own information log
        parent, name = self._parent(entry.target)
        former_parent, former = self._parent(entry.path)
        if former_parent is parent:
            parent.name(Naming(self.index, name, node, former))
            return
        parent.name(Naming(self.index, name, node))
        former_parent.name(Naming(self.index, former, None))

    def _on_link(self, entry: Event) -> None:
        parent, name = self._parent(entry.target)
        parent.name(Naming(self.index, name, self._find(entry.path)))

    def _on_unlink(self, entry: Event) -> None:
        parent, name = self._parent(entry.path)
        if name in parent.names:
            parent.name(Naming(self.index, name, None))


def _nothing(files: FileSystem, entry: Event) -> None:
    pass


_ACTS = {
    Op.OPEN: FileSystem._on_open,
    Op.CLOSE: FileSystem._on_close,
    Op.WRITE: FileSystem._on_write,
    Op.ZEROS: FileSystem._on_write,
    Op.TRUNCATE: FileSystem._on_truncate,
    Op.SYNC_BEGIN: FileSystem._on_sync_begin,
    Op.SYNC_END: FileSystem._on_sync_end,
    Op.RENAME: FileSystem._on_rename,
    Op.LINK: FileSystem._on_link,
    Op.UNLINK: FileSystem._on_unlink,
    Op.RMDIR: FileSystem._on_unlink,
    Op.MKDIR: FileSystem._on_mkdir,
}


def walk(root: Node, names: Callable[[Node], dict[str, Node]], path: str = "") -> Iterator[tuple[str, Node]]:
    """(path from the root, node) of everything, directories before what is in them."""
    yield path, root
    if root.is_directory:
        for name, node in sorted(names(root).items()):
            yield from walk(node, names, f"{path}/{name}" if path else name)
