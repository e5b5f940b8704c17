"""The id of this server: chosen once and stored with its data.

Raft counts votes by it and partitions list it as a replica, so it must not change with configuration files and host names. The stored
id takes precedence over the configured one. A damaged file stops the start: with a new id the server would lose its vote and replicas.
"""

from __future__ import annotations

import json
import os
from typing import Final

from bascule.errors import FormatTooNew, InvalidConfig, StorageError
from bascule.kernels.wire.checksum import crc32c
from bascule.log.disk.operations import Disk, read_file, replace_file

FILE_NAME: Final = "server"
VERSION: Final = 1
ID_LENGTH: Final = 22
_ALPHABET: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def server_id(disk: Disk, directory: str, configured: str | None = None) -> str:
    """The stored id; otherwise the configured or a random one, which is stored durably before it is used."""
    path = f"{directory}/{FILE_NAME}"
    data = read_file(disk, path)
    if data is not None:
        return _decode(data, path)
    chosen = configured or random_id()
    if any(char.isspace() or char in ".*>" for char in chosen):
        raise InvalidConfig(
            f"clustering.server.id is {chosen!r}",
            hint="use a word without spaces, dots, `*` and `>`: it is part of NATS subjects",
        )
    disk.make_directory(directory)
    replace_file(disk, path, _encode(chosen), durable=True)
    return chosen


def random_id() -> str:
    """22 random letters and digits, 128 bits like a UUID."""
    return "".join(_ALPHABET[byte % len(_ALPHABET)] for byte in os.urandom(ID_LENGTH))


def _encode(name: str) -> bytes:
    line = json.dumps({"version": VERSION, "server_id": name}, separators=(",", ":")).encode()
    return b"%s\n%08x\n" % (line, crc32c(line))


def _decode(data: bytes, path: str) -> str:
    line, _, rest = data.partition(b"\n")
    if rest != b"%08x\n" % crc32c(line):
        raise StorageError(
            f"{path} is damaged: this server does not know its own id",
            hint="restore the file from a backup, or write the id shown by the other servers with `clustering.server.id` "
            "after removing the file",
        )
    content = json.loads(line)
    if content["version"] != VERSION:
        raise FormatTooNew(
            f"{path} has version {content['version']!r}, this Bascule knows {VERSION}",
            hint="use the version of Bascule that wrote it, or a later one",
        )
    return str(content["server_id"])
