"""A disk in memory that forgets like a real one.

Every file has a content on the platter and a list of writes that are still on their way; every directory has entries on the platter
and changes on their way. Power loss keeps what was synced. Of the rest of a file any sector may have arrived in any of the
versions it went through, and its size may be any it has had; of the changes to a directory a prefix has happened, as with
a journal. When only the process dies, everything written stays, but it is no more synced than it was.
"""

from __future__ import annotations

import contextlib
import functools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from bascule.errors import StorageError


class PowerLoss(BaseException):
    """The machine is off. Not an Exception: nothing may catch it and go on."""


@dataclass(slots=True)
class SimulatedFile:
    platter: bytes = b""
    content: bytearray = field(default_factory=bytearray)
    pending: list[tuple[int, bytes] | int] = field(default_factory=list)
    """Writes, as (position, data), and new sizes, since the last sync."""

    def write(self, position: int, data: bytes) -> None:
        _write(self.content, position, data)
        self.pending.append((position, data))

    def resize(self, size: int) -> None:
        if size != len(self.content):
            _resize(self.content, size)
            self.pending.append(size)

    def sync(self) -> None:
        if self.pending:
            self.platter = bytes(self.content)
            self.pending = []


@dataclass(slots=True)
class SimulatedDirectory:
    platter: dict[str, Node] = field(default_factory=dict)
    entries: dict[str, Node] = field(default_factory=dict)
    pending: list[tuple[tuple[str, Node | None], ...]] = field(default_factory=list)
    """Changes since the last sync; what is in one tuple happens at once."""

    def change(self, *changes: tuple[str, Node | None]) -> None:
        _change(self.entries, changes)
        self.pending.append(changes)

    def sync(self) -> None:
        self.platter = dict(self.entries)
        self.pending = []


Node = SimulatedFile | SimulatedDirectory


@dataclass(frozen=True, slots=True)
class Operation:
    """Something that changes the disk, about to happen. `kind` is the name of the method."""

    number: int
    kind: str
    path: str


class SimulatedDisk:
    """See `bascule.log.disk.operations.Disk`. Paths are absolute; the root exists."""

    def __init__(self, seed: int = 0) -> None:
        self.root = SimulatedDirectory()
        self.rng = random.Random(seed)
        self.operations = 0
        """Changes asked for so far, syncs included."""

        self.power_fails_at: int | None = None
        """The number of the operation that is the last one, and is not completed."""

        self.refuse: Callable[[Operation], StorageError | None] | None = None
        """Called before each change: an error makes it fail, a write after a part of it."""

        self.refuse_read: Callable[[str], StorageError | None] | None = None
        """Called before each read with the path: an error makes it fail, as a bad sector does."""

        self._is_off = False
        self._handles: dict[int, tuple[SimulatedFile, str]] = {}
        self._next_handle = 3

    # ── Disk ─────────────────────────────────────────────────────────────────────────────────────

    def open(self, path: str, *, create: bool = False) -> int:
        directory, name = self._parent(path)
        node = directory.entries.get(name)
        if node is None:
            if not create:
                raise FileNotFoundError(path)
            self._begin("open", path)
            node = SimulatedFile()
            directory.change((name, node))
        if isinstance(node, SimulatedDirectory):
            raise StorageError(f"cannot open {path}: it is a directory")
        handle, self._next_handle = self._next_handle, self._next_handle + 1
        self._handles[handle] = (node, path)
        return handle

    def close(self, handle: int) -> None:
        del self._handles[handle]

    def size(self, handle: int) -> int:
        return len(self._handles[handle][0].content)

    def read(self, handle: int, size: int, position: int) -> bytes:
        assert size >= 0 and position >= 0, "what pread(2) refuses"
        file, path = self._handles[handle]
        error = None if self.refuse_read is None else self.refuse_read(path)
        if error is not None:
            raise error
        return bytes(file.content[position : position + size])

    def write(self, handle: int, data: bytes | memoryview, position: int) -> None:
        file, path = self._handles[handle]
        try:
            self._begin("write", path)
        except (StorageError, PowerLoss):
            part = bytes(data[: self.rng.randint(0, len(data))])
            if part and not self._was_off:
                file.write(position, part)
            raise
        file.write(position, bytes(data))

    def truncate(self, handle: int, size: int) -> None:
        file, path = self._handles[handle]
        self._begin("truncate", path)
        file.resize(size)

    def sync(self, handle: int) -> None:
        file, path = self._handles[handle]
        self._begin("sync", path)
        file.sync()

    def sync_directory(self, path: str) -> None:
        directory = self._directory(path)
        self._begin("sync_directory", path)
        directory.sync()

    def make_directory(self, path: str) -> None:
        at = self.root
        for name in _names(path):
            node = at.entries.get(name)
            if node is None:
                self._begin("make_directory", path)
                node = SimulatedDirectory()
                at.change((name, node))
            assert isinstance(node, SimulatedDirectory)
            at = node

    def list_directory(self, path: str) -> list[str]:
        names = list(self._directory(path).entries)
        self.rng.shuffle(names)  # no file system promises an order
        return names

    def file_size(self, path: str) -> int:
        return len(self._file(path).content)

    def rename(self, source: str, target: str) -> None:
        directory, old = self._parent(source)
        _, new = self._parent(target)
        node = directory.entries.get(old)
        if node is None:
            raise StorageError(f"cannot rename {source}: no such file")
        self._begin("rename", source)
        directory.change((old, None), (new, node))

    def remove(self, path: str) -> None:
        directory, name = self._parent(path)
        if name in directory.entries:
            self._begin("remove", path)
            directory.change((name, None))

    def remove_directory(self, path: str) -> None:
        directory, name = self._parent(path)
        node = directory.entries.get(name)
        if isinstance(node, SimulatedDirectory) and not node.entries:
            self._begin("remove_directory", path)
            directory.change((name, None))

    @contextlib.contextmanager
    def readable(self) -> Iterator[None]:
        """All reads succeed meanwhile."""
        refuse_read, self.refuse_read = self.refuse_read, None
        try:
            yield
        finally:
            self.refuse_read = refuse_read

    # ── what happens to it ───────────────────────────────────────────────────────────────────────

    def crash(self, rng: random.Random) -> SimulatedDisk:
        """The disk as the machine finds it when the power is back."""
        behind = SimulatedDisk(rng.randrange(1 << 32))
        behind.root = _directory_after_power_loss(self.root, rng, {})
        return behind

    def kill(self) -> SimulatedDisk:
        """The disk as the next process finds it: nothing is lost, nothing more is synced."""
        self._is_off = True
        behind = SimulatedDisk(self.rng.randrange(1 << 32))
        behind.root = self.root
        return behind

    def copy(self) -> SimulatedDisk:
        """Another disk with the same files, all of them synced."""
        behind = SimulatedDisk(self.rng.randrange(1 << 32))
        behind.root = _synced_copy(self.root)
        return behind

    # ── looking at it and tampering with it ──────────────────────────────────────────────────────

    @property
    def open_handles(self) -> int:
        return len(self._handles)

    def content(self, path: str) -> bytes:
        return bytes(self._file(path).content)

    def put(self, path: str, data: bytes) -> None:
        """Replace the content of a file behind the log's back, on the platter as well."""
        directory, name = self._parent(path)
        directory.entries[name] = directory.platter[name] = SimulatedFile(data, bytearray(data))

    def take_away(self, path: str) -> None:
        directory, name = self._parent(path)
        directory.entries.pop(name)
        directory.platter.pop(name, None)

    # ── inside ───────────────────────────────────────────────────────────────────────────────────

    def _begin(self, kind: str, path: str) -> None:
        self._was_off = self._is_off
        if self._is_off:
            raise PowerLoss
        self.operations += 1
        if self.power_fails_at is not None and self.operations >= self.power_fails_at:
            self._is_off = True
            raise PowerLoss
        error = None if self.refuse is None else self.refuse(Operation(self.operations, kind, path))
        if error is not None:
            raise error

    def _directory(self, path: str) -> SimulatedDirectory:
        at: Node | None = self.root
        for name in _names(path):
            at = at.entries.get(name) if isinstance(at, SimulatedDirectory) else None
            if at is None:
                raise FileNotFoundError(path)
        if not isinstance(at, SimulatedDirectory):
            raise NotADirectoryError(path)
        return at

    def _parent(self, path: str) -> tuple[SimulatedDirectory, str]:
        above, _, name = path.rpartition("/")
        return self._directory(above), name

    def _file(self, path: str) -> SimulatedFile:
        directory, name = self._parent(path)
        node = directory.entries.get(name)
        if not isinstance(node, SimulatedFile):
            raise FileNotFoundError(path)
        return node


@functools.lru_cache
def _names(path: str) -> tuple[str, ...]:
    return tuple(name for name in path.split("/") if name)


def _write(content: bytearray, position: int, data: bytes) -> None:
    if position > len(content):
        content.extend(bytes(position - len(content)))
    content[position : position + len(data)] = data


def _resize(content: bytearray, size: int) -> None:
    if size < len(content):
        del content[size:]
    else:
        content.extend(bytes(size - len(content)))


def _change(entries: dict[str, Node], changes: tuple[tuple[str, Node | None], ...]) -> None:
    for name, node in changes:
        if node is None:
            entries.pop(name, None)
        else:
            entries[name] = node


def _synced_copy(directory: SimulatedDirectory) -> SimulatedDirectory:
    entries: dict[str, Node] = {}
    for name, node in directory.entries.items():
        if isinstance(node, SimulatedDirectory):
            entries[name] = _synced_copy(node)
        else:
            entries[name] = SimulatedFile(bytes(node.content), bytearray(node.content))
    return SimulatedDirectory(dict(entries), entries)


# ── power loss ───────────────────────────────────────────────────────────────────────────────────


def _directory_after_power_loss(
    directory: SimulatedDirectory, rng: random.Random, seen: dict[int, Node]
) -> SimulatedDirectory:
    entries = dict(directory.platter)
    for changes in directory.pending[: _how_many(len(directory.pending), rng)]:
        _change(entries, changes)
    for name, node in entries.items():
        if id(node) not in seen:
            if isinstance(node, SimulatedDirectory):
                seen[id(node)] = _directory_after_power_loss(node, rng, seen)
            else:
                data = content_after_power_loss(node, rng)
                seen[id(node)] = SimulatedFile(data, bytearray(data))
        entries[name] = seen[id(node)]
    return SimulatedDirectory(dict(entries), entries)


def _how_many(count: int, rng: random.Random) -> int:
    """None, all, or anything between: the extremes are what most machines show."""
    return rng.choice((0, count, rng.randint(0, count)))


def content_after_power_loss(file: SimulatedFile, rng: random.Random) -> bytes:
    """Nothing of the unsynced writes, all of them, the first ones and a part of the next, or any sectors in any order."""
    fate = rng.choice(("nothing", "everything", "first ones", "any sectors", "any sectors"))
    if not file.pending or fate == "nothing":
        return file.platter
    if fate == "everything":
        return bytes(file.content)
    if fate == "first ones":
        return _first_writes(file, rng)
    return _any_sectors(file, rng, rng.choice((16, 64, 512, 512, 4096)))


def _first_writes(file: SimulatedFile, rng: random.Random) -> bytes:
    content = bytearray(file.platter)
    whole = rng.randrange(len(file.pending))
    for change in file.pending[:whole]:
        _apply(content, change)
    torn = file.pending[whole]
    if not isinstance(torn, int):
        _write(content, torn[0], torn[1][: rng.randint(0, len(torn[1]))])
    return bytes(content)


def _apply(content: bytearray, change: tuple[int, bytes] | int) -> tuple[int, int]:
    """Make the change; returns the range of bytes that it touched."""
    before = len(content)
    if isinstance(change, int):
        _resize(content, change)
        return min(before, change), max(before, change)
    _write(content, *change)
    return min(before, change[0]), change[0] + len(change[1])


def _any_sectors(file: SimulatedFile, rng: random.Random, sector_bytes: int) -> bytes:
    content = bytearray(file.platter)
    sizes = [len(content)]
    versions: dict[int, list[bytes]] = {}
    for change in file.pending:
        first, stop = _apply(content, change)
        sizes.append(len(content))
        for sector in range(first // sector_bytes, -(-stop // sector_bytes)):
            piece = bytes(content[sector * sector_bytes : (sector + 1) * sector_bytes])
            versions.setdefault(sector, []).append(piece.ljust(sector_bytes, b"\0"))
    result = bytearray(file.platter)
    arrives = rng.choice((0.1, 0.5, 0.9))
    for sector, pieces in versions.items():
        if rng.random() < arrives:
            _write(result, sector * sector_bytes, pieces[-1] if rng.random() < 0.8 else rng.choice(pieces))
    _resize(result, sizes[-1] if rng.random() < 0.5 else rng.choice(sizes))
    return bytes(result)
