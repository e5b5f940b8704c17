"""Where a table is: a local folder, or a prefix in an object store. The only resolver of such paths.

    /lake/orders, file:///lake/orders       a folder; files are synced before a commit names them
    s3://bucket/orders (or s3a://)          through deltalake's own store, with its options and the environment's credentials
    gs://…, abfss://…                       likewise

A place is pickled into Spark's tasks, so it holds plain values. Options may be secrets: neither `repr` nor an error shows them.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from bascule.errors import (
    ArchiveUnreachable,
    BasculeError,
    DiskFull,
    InvalidOption,
    MissingExtra,
    PermissionDenied,
    StorageError,
)
from bascule.lake.delta.documents import ROOM_HINT, refused, sync_directory, writing

if TYPE_CHECKING:
    import pyarrow as pa

SCHEMES: Final = ("s3", "gs", "abfss")
_ALIASES: Final = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "abfs": "abfss"}
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/")
_REMOTE: Final = re.compile(r"(\w+)://([^/]+)(?:/(.*))?")
_DEFAULTS: Final = {"s3": {"aws_conditional_put": "etag"}}
"""Without it a second writer of a table in S3 would overwrite the commit of the first."""


class Listed(NamedTuple):
    """A file of a place."""

    name: str
    size: int


@dataclass(frozen=True, slots=True)
class LakePlace:
    uri: str
    """An absolute URI, or the path of a folder as it was given."""
    options: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    @classmethod
    def of(cls, path: str | os.PathLike[str] | LakePlace, options: Mapping[str, str] | None = None) -> LakePlace:
        """Raises InvalidOption for a scheme that is not supported, and for a URI without a bucket."""
        if isinstance(path, LakePlace):
            return path
        return cls(resolved(os.fspath(path)), tuple(sorted((options or {}).items())))

    def __str__(self) -> str:
        return self.uri

    @property
    def local(self) -> Path | None:
        """The folder; None for an object store."""
        return None if _REMOTE.match(self.uri) else Path(self.uri)

    @property
    def folder(self) -> Path:
        """The local folder of a place that is known to have one."""
        assert self.local is not None
        return self.local

    @property
    def name(self) -> str:
        return Path(self.uri).resolve().name if self.local is not None else self.uri.rstrip("/").rpartition("/")[2]

    @property
    def absolute(self) -> LakePlace:
        return self if self.local is None else LakePlace(str(self.local.absolute()), self.options)

    @property
    def store_options(self) -> dict[str, str]:
        """What deltalake is given."""
        defaults = {} if self.local is not None else _DEFAULTS.get(self.uri.partition(":")[0], {})
        given = {name.lower() for name, _ in self.options}
        return {**{name: value for name, value in defaults.items() if name not in given}, **dict(self.options)}

    def child(self, name: str) -> LakePlace:
        return LakePlace(f"{self.uri.rstrip('/')}/{name}", self.options)

    # ── files ────────────────────────────────────────────────────────────────────────────────────

    def open(self, name: str) -> pa.NativeFile:
        """A file for random access. Raises FileNotFoundError, or another OSError."""
        pa = _arrow()
        if self.local is not None:
            return pa.OSFile(str(self.local / name))
        with self.explained(name):
            return pa.PythonFile(_handler(self)._handler.open_input_file(name), "r")

    def read(self, name: str) -> bytes:
        """The bytes of a file. Raises FileNotFoundError, or another OSError."""
        if self.local is not None:
            return (self.local / name).read_bytes()
        with self.explained(name), self.open(name) as file:
            found: bytes = file.read()
            return found

    def size(self, name: str) -> int:
        """Raises FileNotFoundError."""
        if self.local is not None:
            return (self.local / name).stat().st_size
        with self.explained(name), self.open(name) as file:
            return int(file.size())

    def list(self, folder: str = "") -> list[Listed]:
        """The files below a folder, at any depth, by name. Empty if there is none."""
        if self.local is not None:
            root = self.local / folder
            paths = sorted(path for path in root.rglob("*") if path.is_file())
            return [Listed(str(path.relative_to(self.local)), _size_of(path)) for path in paths]
        from pyarrow.fs import FileSelector, FileType, PyFileSystem

        selector = FileSelector(folder, allow_not_found=True, recursive=True)
        with self.explained(folder):
            found = PyFileSystem(_handler(self)).get_file_info(selector)
        return sorted(Listed(one.path, one.size) for one in found if one.type is FileType.File)

    def create(self, name: str) -> FileSink:
        """A new file, which is whole and durable when it is closed. Raises StorageError, DiskFull."""
        return _LocalSink(self.local, name) if self.local is not None else _RemoteSink(self, name)

    def replace(self, name: str, content: bytes) -> None:
        """Write a small file, in place of the one that is there."""
        if self.local is not None:
            path = self.local / name
            temporary = path.with_name(f".{path.name}.{os.getpid()}")
            with writing(self.local, name):
                path.parent.mkdir(parents=True, exist_ok=True)
                temporary.write_bytes(content)
                temporary.replace(path)
            return
        sink = self.create(name)
        sink.write(content)
        sink.close()

    def remove(self, name: str) -> None:
        """Delete a file, if it is there."""
        if self.local is not None:
            with writing(self.local, name):
                (self.local / name).unlink(missing_ok=True)
            return
        with contextlib.suppress(FileNotFoundError), self.explained(name):
            _handler(self).delete_file(name)

    @contextlib.contextmanager
    def explained(self, name: str = "") -> Iterator[None]:
        """Raises errors of an object store as ours: what it refused, and what to do. FileNotFoundError stays what it is."""
        try:
            yield
        except (FileNotFoundError, BasculeError):
            raise
        except Exception as error:
            raise store_error(self, error, name) from None


def resolved(path: str) -> str:
    """A path as `LakePlace` keeps it."""
    if not path.strip():
        raise InvalidOption("the path of a table is empty", hint=_RIGHT)
    match = _SCHEME.match(path)
    if match is None:
        return path
    scheme = _ALIASES.get(match[1].lower(), match[1].lower())
    if scheme == "file":
        return "/" + path[match.end() :].lstrip("/")
    if scheme not in SCHEMES:
        raise InvalidOption(f"the path `{path}` has the scheme `{match[1]}`", hint=_RIGHT)
    found = _REMOTE.fullmatch(path)
    if found is None:
        raise InvalidOption(f"the path `{path}` names no bucket", hint=f"write `{scheme}://BUCKET/FOLDER`")
    key = (found[3] or "").strip("/")
    if not key:
        raise InvalidOption(
            f"the path `{path}` is a whole bucket", hint=f"name a folder: `{scheme}://{found[2]}/FOLDER`"
        )
    return f"{scheme}://{found[2]}/{key}"


_RIGHT: Final = "give a folder, or a path such as `s3://bucket/orders`, `gs://bucket/orders` or `abfss://container@account.dfs.core.windows.net/orders`"


def storage_options(texts: list[str] | tuple[str, ...] | None) -> dict[str, str]:
    """The options of `--storage-option KEY=VALUE`. An error does not show the value."""
    found: dict[str, str] = {}
    for text in texts or ():
        name, separator, value = text.partition("=")
        if not separator or not name.strip():
            raise InvalidOption(
                "`--storage-option` is not KEY=VALUE",
                hint="write one such as `--storage-option AWS_REGION=eu-central-1`",
            )
        found[name.strip()] = value
    return found


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # deleted since it was listed
        return 0


def _arrow() -> Any:
    import pyarrow

    return pyarrow


@functools.cache
def _handler(place: LakePlace) -> Any:
    """deltalake's file system of an object store: the same options and credentials as its commits."""
    try:
        from deltalake.fs import DeltaStorageHandler
    except ImportError as error:
        raise missing(error) from None
    with place.explained():
        return DeltaStorageHandler(place.uri, place.store_options)


def missing(error: ImportError) -> MissingExtra:
    return MissingExtra(
        f"tables need the package deltalake: {error.name} is missing", hint='`pip install "bascule[spark]"`'
    )


# ── writing ──────────────────────────────────────────────────────────────────────────────────────


class FileSink(Protocol):
    """A file that is being written: its size and SHA-256 are known at the end."""

    size: int

    def write(self, data: Any) -> int: ...

    def close(self) -> None:
        """Finish it."""

    def abandon(self) -> None:
        """Leave nothing of it."""

    def sha256(self) -> str: ...


class _Sink:
    """Counts and hashes. pyarrow writes to it like to any Python file."""

    def __init__(self) -> None:
        self.size = 0
        self._hash = hashlib.sha256()
        self.closed = False

    def _note(self, data: Any) -> int:
        count = memoryview(data).nbytes
        self._hash.update(data)
        self.size += count
        return count

    def sha256(self) -> str:
        return self._hash.hexdigest()

    def tell(self) -> int:
        return self.size

    def flush(self) -> None:
        """pyarrow calls it; files are flushed when they are closed."""

    def readable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False


class _LocalSink(_Sink):
    def __init__(self, root: Path, name: str) -> None:
        super().__init__()
        self._root, self._name, self._path = root, name, root / name
        with writing(root, name):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("xb")

    def write(self, data: Any) -> int:
        with writing(self._root, self._name):
            self._file.write(data)
        return self._note(data)

    def close(self) -> None:
        if self.closed:
            return
        with writing(self._root, self._name):
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            sync_directory(self._path.parent)
        self.closed = True

    def abandon(self) -> None:
        self.closed = True
        with contextlib.suppress(OSError, BasculeError):  # a full disk does not take the rest of its buffer either
            self._file.close()
        self._path.unlink(missing_ok=True)


class _RemoteSink(_Sink):
    def __init__(self, place: LakePlace, name: str) -> None:
        super().__init__()
        self._place, self._name = place, name
        with place.explained(name):
            self._stream: Any = _handler(place)._handler.open_output_stream(name, None)

    def write(self, data: Any) -> int:
        with self._place.explained(self._name):
            self._stream.write(bytes(data))
        return self._note(data)

    def close(self) -> None:
        if self.closed:
            return
        with self._place.explained(self._name):
            self._stream.close()
        self.closed = True

    def abandon(self) -> None:
        """An upload that is not completed leaves no object."""
        self.closed = True
        self._stream = None


# ── what a store refuses ─────────────────────────────────────────────────────────────────────────

_KEYS_HINT: Final = "check the credentials in the environment, such as `AWS_ACCESS_KEY_ID`, or in `--storage-option`"
_CAUSES: Final[tuple[tuple[str, type[BasculeError], str, str], ...]] = (
    (
        r"NoSuchBucket|ContainerNotFound|bucket does not exist",
        ArchiveUnreachable,
        "there is no such bucket",
        "create it, or correct the path",
    ),
    (
        r"PermanentRedirect|redirect without LOCATION|AuthorizationHeaderMalformed|IllegalLocationConstraint|\b301\b",
        ArchiveUnreachable,
        "the bucket is in another region",
        "set `AWS_REGION`, or give `--storage-option AWS_REGION=…`",
    ),
    (
        r"InvalidAccessKeyId|SignatureDoesNotMatch|InvalidClientTokenId|AuthenticationFailed|ExpiredToken|\b401\b",
        PermissionDenied,
        "the store does not accept the credentials",
        _KEYS_HINT,
    ),
    (
        r"AccessDenied|Forbidden|\b403\b|AuthorizationPermissionMismatch",
        PermissionDenied,
        "access is denied",
        _KEYS_HINT,
    ),
    (
        r"169\.254\.169\.254|[Mm]issing.*[Cc]redential|No credentials|CredentialsNotLoaded",
        PermissionDenied,
        "there are no credentials",
        _KEYS_HINT,
    ),
    (
        r"Permission denied|os error 13\b",
        PermissionDenied,
        "permission is denied",
        "give this user the right to write there, or another path",
    ),
    (
        r"No space left|os error 28\b|Disk quota|os error 122\b|File too large|os error 27\b",
        DiskFull,
        "there is no room",
        ROOM_HINT,
    ),
    (
        r"[Cc]onnect|dns error|timed? ?out|retr|\b5\d\d\b|HTTP error",
        ArchiveUnreachable,
        "the store does not answer",
        "check the network and `AWS_ENDPOINT_URL`, then start it again: it continues where it stopped",
    ),
)


def store_error(place: LakePlace, error: Exception, name: str = "") -> BasculeError:
    """Our error for one of an object store or of deltalake: one line, without credentials."""
    if isinstance(error, OSError) and error.errno is not None and place.local is not None:
        return refused(place.local, name or "a file", error)
    said = _plain(str(error))
    where = f"{place}/{name}" if name else str(place)
    for pattern, kind, what, hint in _CAUSES:
        if re.search(pattern, said):
            return kind(f"{where}: {what}", hint=hint)
    first = said.splitlines()[0][:200] if said else type(error).__name__
    return StorageError(f"{where}: {scrubbed(place, first)}")


def scrubbed(place: LakePlace, text: str) -> str:
    """A text without the values of options."""
    for _, value in place.options:
        if len(value) > 3:
            text = text.replace(value, "***")
    return text


def _plain(text: str) -> str:
    """Without the colours and the tree that deltalake draws."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", text).replace("↳", "")
    return "\n".join(line.strip() for line in text.splitlines() if line.strip())
