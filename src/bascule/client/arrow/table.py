"""`bascule.read_table("orders")`: a stream, or a part of it, as an Arrow table in memory."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from importlib import import_module
from typing import TYPE_CHECKING, Any

from bascule.client.arrow.reader import SERVERS_DEFAULT, FlightConnection
from bascule.client.arrow.servers import Servers, Tls
from bascule.client.connection.options import INT64_MAX, seconds, wrong
from bascule.errors import StreamNotFound
from bascule.flight.arrow import require
from bascule.flight.schema import check_columns, schema_of

if TYPE_CHECKING:
    import pyarrow as pa

Position = int | datetime | Mapping[int, int] | None


def read_table(
    stream: str,
    *,
    servers: Servers = SERVERS_DEFAULT,
    start: Position = None,
    end: Position = None,
    partitions: Iterable[int] | None = None,
    columns: Iterable[str] | None = None,
    tls: Tls = None,
    token: str | None = None,
    timeout: float = 5.0,
    history: str | os.PathLike[str] | None = None,
    storage_options: Mapping[str, str] | None = None,
    on_data_loss: str = "fail",
) -> pa.Table:
    """The messages of a stream as a pyarrow.Table, partition by partition, each in the order of its offsets.

    `start` and `end` (exclusive) are an offset, a time, or offsets by partition; without them everything is read that is stored and
    committed now. `partitions` and `columns` choose among them. Raises Unavailable if no broker answers within `timeout` seconds; a
    partition that loses its leader later is waited for.

    `history` is an archive of the stream: messages that it has are read from there, the others from the log, and the beginning is the
    archive's. `storage_options` reach its object store. `on_data_loss` is what happens when neither has a message: `"fail"`, `"skip"`,
    or `"archive"`, which also reads a deleted stream from its archive. Needs pyarrow: `pip install "bascule[spark]"`.
    """
    pa = require()
    chosen = check_columns(columns)
    first, last = _checked("start", start), _checked("end", end)
    if history is not None:
        # By name: the archive's own readers are built on this package.
        past: Any = import_module("bascule.history.past")
        choice = past.ArchiveChoice(
            path=history,
            storage=storage_options,
            on_data_loss=on_data_loss,
            servers=servers,
            tls=tls,
            token=token,
            timeout=seconds("timeout", timeout),
        )
        return pa.Table.from_batches(
            past.read_batches(choice, stream, first, last, partitions, chosen), schema_of(chosen)
        )
    with FlightConnection(servers, tls=tls, token=token, reach=seconds("timeout", timeout)) as tables:
        found = tables.offsets([stream])[stream]
        numbers = list(found["partitions"]) if partitions is None else list(partitions)
        for number in numbers:
            if number not in found["partitions"]:
                raise StreamNotFound(
                    f"the stream {stream!r} has no partition {number}, it has {len(found['partitions'])}"
                )
        starts = _offsets(tables, stream, first, numbers)
        ends = _offsets(tables, stream, last, numbers)
        batches = [
            batch
            for number in numbers
            for batch in tables.read(
                stream,
                number,
                starts.get(number, found["partitions"][number]["log_start"]),
                ends.get(number, found["partitions"][number]["high_watermark"] + 1),
                chosen,
                stream_id=found["id"],
            )
        ]
    return pa.Table.from_batches(batches, schema_of(chosen))


def _checked(option: str, position: Any) -> Position:
    right = "None, an offset from 0 on, a datetime, or a mapping of partitions to offsets"
    if position is None or isinstance(position, datetime):
        return position
    offsets = position.values() if isinstance(position, Mapping) else [position]
    if not all(isinstance(one, int) and not isinstance(one, bool) and 0 <= one <= INT64_MAX for one in offsets):
        raise wrong(option, position, right)
    found: Position = position
    return found


def _offsets(tables: FlightConnection, stream: str, position: Position, numbers: list[int]) -> dict[int, int]:
    """Where a position is in each partition; partitions that it says nothing of are left out."""
    if position is None:
        return {}
    if isinstance(position, Mapping):
        return dict(position)
    if isinstance(position, datetime):
        aware = position if position.tzinfo is not None else position.astimezone()
        return _at(tables, stream, (aware - datetime.fromtimestamp(0, UTC)), numbers)
    return dict.fromkeys(numbers, position)


def _at(tables: FlightConnection, stream: str, since_1970: Any, numbers: list[int]) -> dict[int, int]:
    nanoseconds = (since_1970.days * 86_400 + since_1970.seconds) * 1_000_000_000 + since_1970.microseconds * 1_000
    asked = {stream: dict.fromkeys(numbers, max(0, nanoseconds))}
    partitions = tables.offsets([stream], asked)[stream]["partitions"]
    return {number: partitions[number]["timestamp_offset"] for number in numbers}
