"""Offsets as Spark keeps them in a checkpoint: those of Kafka's connector, and which stream they are of.

    {"orders": {"0": 23, "1": 45, "id": 17}}

The number beside a partition is the next offset to read. `id` is the identity of the stream: a stream that is deleted and
created again has another one. A stream without it, as in offsets that were written by hand, is not checked.

Spark asks a source for its initial offset, and forgets the answer: a batch 0 that is repeated after a crash gets another answer
for its start, while its end comes from the checkpoint. So what initialOffset() returns is marked, and the end of the batch that
begins there says where it began. The same goes for a stream that was found later, or created again:

    initialOffset()   {"orders": {"0": 20, "id": 17, "initial": true}}
    end of batch 0    {"orders": {"0": 23, "id": 17, "from": {"0": 20}}}

Partitions are written by number and streams by name, because Spark compares offsets as text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from bascule.config.values.kinds import INT32_MAX, INT64_MAX
from bascule.errors import CheckpointMismatch

ID: Final = "id"
INITIAL: Final = "initial"
FROM: Final = "from"


@dataclass(frozen=True, slots=True)
class StreamOffsets:
    """Of one stream: the next offset to read of each partition."""

    id: int | None
    next: Mapping[int, int]
    is_initial: bool = False
    began: Mapping[int, int] | None = None
    """Where the batch that ends here began, if no former batch ended there."""


@dataclass(frozen=True, slots=True)
class Offsets:
    """Of all streams that a query reads."""

    streams: Mapping[str, StreamOffsets] = field(default_factory=dict)

    def document(self) -> dict[str, dict[str, Any]]:
        """As Spark gets it."""
        return {name: _stream_document(self.streams[name]) for name in sorted(self.streams)}

    @classmethod
    def parse(cls, document: object) -> Offsets:
        """Offsets from the JSON of a checkpoint. Raises CheckpointMismatch for JSON that is not ours."""
        if not isinstance(document, dict):
            raise _unreadable(document, "it is no object")
        return cls({_name(name): _stream(name, entry) for name, entry in document.items()})

    def as_initial(self) -> Offsets:
        """Marked as the answer of initialOffset()."""
        return Offsets({name: replace(stream, is_initial=True) for name, stream in self.streams.items()})


def end_of_batch(start: Offsets, began: Offsets, end: Offsets) -> Offsets:
    """The end as the checkpoint gets it: `start` itself if nothing is read, else with a note of where streams began if not at `start`.

    That nothing is read has to look the same, to the letter: Spark would make a batch of any difference.
    """
    if _same_place(start, end) and not any(stream.is_initial for stream in start.streams.values()):
        return start
    streams = {}
    for name, stream in end.streams.items():
        at_start = _continues(start.streams.get(name), stream)
        streams[name] = replace(stream, is_initial=False, began=None if at_start else began.streams[name].next)
    return Offsets(streams)


def effective_start(start: Offsets, end: Offsets) -> Offsets:
    """Where the batch that ends at `end` really begins: what was noted when it was planned for the first time counts."""
    streams = {}
    for name, stream in end.streams.items():
        before = start.streams.get(name)
        if stream.began is not None and not _continues(before, stream):
            streams[name] = StreamOffsets(stream.id, stream.began)
        elif before is not None:
            streams[name] = before
    return Offsets(streams)


def _continues(before: StreamOffsets | None, stream: StreamOffsets) -> bool:
    """Whether the checkpoint knows where the stream began: a former batch ended there."""
    return before is not None and not before.is_initial and before.id in (None, stream.id)


def _same_place(start: Offsets, end: Offsets) -> bool:
    return start.streams.keys() == end.streams.keys() and all(
        (start.streams[name].id, dict(start.streams[name].next)) == (stream.id, dict(stream.next))
        for name, stream in end.streams.items()
    )


# ── to JSON and back ─────────────────────────────────────────────────────────────────────────────


def _stream_document(stream: StreamOffsets) -> dict[str, Any]:
    document: dict[str, Any] = _numbers_document(stream.next)
    if stream.id is not None:
        document[ID] = stream.id
    if stream.is_initial:
        document[INITIAL] = True
    if stream.began is not None:
        document[FROM] = _numbers_document(stream.began)
    return document


def _numbers_document(offsets: Mapping[int, int]) -> dict[str, Any]:
    return {str(partition): offsets[partition] for partition in sorted(offsets)}


def _stream(name: str, entry: object) -> StreamOffsets:
    if not isinstance(entry, dict):
        raise _unreadable(entry, f"`{name}` is no object")
    rest = dict(entry)
    identity, is_initial, began = rest.pop(ID, None), rest.pop(INITIAL, False), rest.pop(FROM, None)
    if identity is not None and not _is_whole(identity, 0, INT64_MAX):
        raise _unreadable(entry, f"the `{ID}` of `{name}` is no whole number")
    if not isinstance(is_initial, bool) or not (began is None or isinstance(began, dict)):
        raise _unreadable(entry, f"`{INITIAL}` or `{FROM}` of `{name}` is not what it should be")
    return StreamOffsets(identity, _numbers(name, rest), is_initial, None if began is None else _numbers(name, began))


def _numbers(name: str, entry: Mapping[Any, Any]) -> dict[int, int]:
    numbers = {}
    for key, offset in entry.items():
        if not isinstance(key, str) or not re.fullmatch(r"0|[1-9][0-9]{0,9}", key) or int(key) > INT32_MAX:
            raise _unreadable(entry, f"`{key}` is no partition of `{name}`")
        if not _is_whole(offset, 0, INT64_MAX):
            raise _unreadable(entry, f"partition {key} of `{name}` has no offset")
        numbers[int(key)] = offset
    return numbers


def _is_whole(value: object, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _name(name: object) -> str:
    if not isinstance(name, str) or not name:
        raise _unreadable(name, "a stream has no name")
    return name


def _unreadable(document: object, why: str) -> CheckpointMismatch:
    return CheckpointMismatch(
        f"the checkpoint holds offsets that are not of this source: {why}, in {str(document)[:200]}",
        hint="a query that read another source needs a checkpoint directory of its own",
    )
