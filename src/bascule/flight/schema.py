"""A stream as a table. Order, types and what may be null are fixed: Spark compares them with its own, exactly.

key           binary                      null: the message has none
value         binary                      null: the message has none
stream        string, not null
partition     int32, not null
offset        int64, not null
timestamp     timestamp[us, UTC], not null    nanoseconds are rounded down
subject       string, not null
replySubject  string                      null: the publisher wants no reply
headers       map<string, binary>, not null   without `subject` and `reply`, which subscribers find among them: they are columns
leaderEpoch   int64, not null
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING

from bascule.errors import CallerError
from bascule.flight.arrow import require

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS = (
    "key",
    "value",
    "stream",
    "partition",
    "offset",
    "timestamp",
    "subject",
    "replySubject",
    "headers",
    "leaderEpoch",
)


@cache
def table_schema() -> pa.Schema:
    pa = require()
    return pa.schema(
        [
            pa.field("key", pa.binary()),
            pa.field("value", pa.binary()),
            pa.field("stream", pa.string(), nullable=False),
            pa.field("partition", pa.int32(), nullable=False),
            pa.field("offset", pa.int64(), nullable=False),
            pa.field("timestamp", pa.timestamp("us", "UTC"), nullable=False),
            pa.field("subject", pa.string(), nullable=False),
            pa.field("replySubject", pa.string()),
            pa.field(
                "headers",
                pa.map_(pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())),
                nullable=False,
            ),
            pa.field("leaderEpoch", pa.int64(), nullable=False),
        ]
    )


def check_columns(names: Iterable[str] | None) -> tuple[str, ...]:
    """The named columns in the order they were named; all of them for None. Raises CallerError for one that there is not."""
    if names is None:
        return COLUMNS
    chosen = tuple(names)
    for name in chosen:
        if name not in COLUMNS:
            raise CallerError(f"a stream has no column {name!r}", hint=f"there are {', '.join(COLUMNS)}")
    if len(set(chosen)) != len(chosen):
        raise CallerError(f"a column is named twice: {', '.join(chosen)}", hint="name each column once")
    if not chosen:
        raise CallerError("no column is named", hint="name at least one, or leave `columns` out for all of them")
    return chosen


def schema_of(columns: tuple[str, ...]) -> pa.Schema:
    """The schema of the chosen columns."""
    whole = table_schema()
    if columns == COLUMNS:
        return whole
    return require().schema([whole.field(name) for name in columns])
