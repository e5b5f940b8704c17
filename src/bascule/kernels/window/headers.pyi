"""Headers of many messages at once, encoded for `PublishColumns`."""

from typing_extensions import Buffer

def encode_publish_headers(
    count: int,
    entries: tuple[Buffer, Buffer, Buffer, Buffer, Buffer] | None = None,
    timestamps: Buffer | None = None,
    *,
    tombstones: Buffer | None = None,
    producer: bytes | None = None,
    epoch: int = 0,
    sequence: int = 0,
    field: int = 5,
) -> tuple[memoryview, memoryview]:
    """The headers of `count` messages, and the int64 positions where those of each end.

    `entries` are `row_ends` (in entries), `names` and where each ends, `values` and where each ends; ends are int64 and begin anew
    at 0. `timestamps` are int64 in ns, negative for none: they become a header `bascule-timestamp`. `tombstones` has a byte for
    each message, not 0 if it has no value: it gets the header `bascule-tombstone`. With `producer` every message also gets the three
    headers of an idempotent producer, the first with `sequence`. `field` is the number of the map's field: 5 in a PublishRequest,
    4 in a PublishToSubjectRequest.
    """
