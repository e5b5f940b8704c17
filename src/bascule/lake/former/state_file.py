"""The sum of an archive's commits up to a number, so that opening an archive costs what is new in it and not its whole history.

    _bascule/state/<number>.json
    {"format": 1, "number": 1200, "crc32c": 123456789,
     "state": {"number": 1200, "last_commit_ns": …, "files": [{…}, …], "next_offsets": [["orders", 7, 0, 52000], …],
               "lost": [{…}, …], "began": [["orders", 7, 0, 0], …]}}

`lost` and `began` are left out when there are none, as in states that were written before there were any. `crc32c` is of `state` as
JSON without spaces and with its names in order. The files of the state are those of commits, field by field.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bascule.errors import ArchiveDamaged
from bascule.kernels.wire.checksum import crc32c
from bascule.lake.documents import read_document

if TYPE_CHECKING:
    from bascule.lake.manifest import ArchiveState

HINT = "if the one before it is there, and the commits behind that, remove it: they say the same"


def encode_state(state: ArchiveState, document_format: int) -> dict[str, Any]:
    inner: dict[str, Any] = {
        "number": state.number,
        "last_commit_ns": state.last_commit_ns,
        "files": [asdict(one) for one in state.in_order()],
        "next_offsets": [[*key, end] for key, end in sorted(state.next_offsets.items())],
    }
    if state.lost:
        inner["lost"] = [asdict(one) for _, ranges in sorted(state.lost.items()) for one in ranges]
    if state.began:
        inner["began"] = [[*key, offset] for key, offset in sorted(state.began.items())]
    return {"format": document_format, "number": state.number, "crc32c": _checksum(inner), "state": inner}


def read_state(path: Path, number: int, document_format: int) -> ArchiveState:
    """Raises FileNotFoundError for one that is not there any more, ArchiveDamaged for one that is not what was written."""
    from bascule.lake.manifest import ArchiveState, DataFile, Lost, must_be_known_format

    document = read_document(path)
    must_be_known_format(path, document, document_format)
    try:
        inner = document["state"]
        if _checksum(inner) != document["crc32c"] or inner["number"] != number:
            raise ArchiveDamaged(f"{path} is not what was written", hint=HINT)
        files = [DataFile(**one) for one in inner["files"]]
        next_offsets = {(stream, identity, part): end for stream, identity, part, end in inner["next_offsets"]}
        began = {(stream, identity, part): offset for stream, identity, part, offset in inner.get("began", ())}
        found = ArchiveState(number, {one.path: one for one in files}, next_offsets, inner["last_commit_ns"], {}, began)
        for one in (Lost(**item) for item in inner.get("lost", ())):
            found.lost.setdefault((one.stream, one.stream_id, one.partition), []).append(one)
        return found
    except (KeyError, TypeError, ValueError) as error:
        raise ArchiveDamaged(f"{path} is no state of an archive: {error}", hint=HINT) from None


def _checksum(inner: dict[str, Any]) -> int:
    return crc32c(json.dumps(inner, separators=(",", ":"), sort_keys=True).encode())
