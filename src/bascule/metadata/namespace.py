"""The namespace that a data directory belongs to: stored with the data, because the keys of the cluster secret, the MACs of audit
records and the subjects of internal streams depend on it.

<data directory>/namespace    {"namespace": "…", "version": 1} and its checksum

A configured namespace takes precedence over the stored one. The file is written before the Raft state. A directory with Raft state and
without this file was written before the file existed, when Liftbridge's namespace was the default.
"""

from __future__ import annotations

import json
import logging
from typing import Final

from bascule.errors import FormatTooNew, StorageError
from bascule.kernels.wire.checksum import crc32c
from bascule.log.disk.operations import Disk, read_file, replace_file
from bascule.raft.disk.superblock import FILE_NAMES as RAFT_STATE_FILES

FILE_NAME: Final = "namespace"
VERSION: Final = 1
FORMER_DEFAULT: Final = "liftbridge-default"

_logger = logging.getLogger(__name__)


def stored_namespace(disk: Disk, directory: str) -> str | None:
    """Return the namespace that the data belongs to; None for a directory without data."""
    path = f"{directory}/{FILE_NAME}"
    data = read_file(disk, path)
    if data is not None:
        return _decode(data, path)
    has_state = any(read_file(disk, f"{directory}/raft/{name}") is not None for name in RAFT_STATE_FILES)
    return FORMER_DEFAULT if has_state else None


def store_namespace(disk: Disk, directory: str, namespace: str) -> None:
    """Store the namespace durably; log a change of it."""
    path = f"{directory}/{FILE_NAME}"
    line = json.dumps({"namespace": namespace, "version": VERSION}, separators=(",", ":")).encode()
    data = b"%s\n%08x\n" % (line, crc32c(line))
    if read_file(disk, path) == data:
        return
    try:
        former = stored_namespace(disk, directory)
    except StorageError:
        former = None
    if former is not None and former != namespace:
        _logger.warning(
            "the data in %s belonged to the namespace `%s`, and now belongs to `%s`", directory, former, namespace
        )
    disk.make_directory(directory)
    replace_file(disk, path, data, durable=True)


def _decode(data: bytes, path: str) -> str:
    line, _, rest = data.partition(b"\n")
    if rest != b"%08x\n" % crc32c(line):
        raise StorageError(
            f"{path} is damaged: this server does not know the namespace of its cluster",
            hint="set `clustering.namespace` to the namespace that the other servers use",
        )
    content = json.loads(line)
    if content["version"] != VERSION:
        raise FormatTooNew(
            f"{path} has version {content['version']!r}, this Bascule knows {VERSION}",
            hint="use the version of Bascule that wrote it, or a later one",
        )
    return str(content["namespace"])
