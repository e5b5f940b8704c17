"""Headers of many messages at once, encoded for `PublishColumns`."""

from typing_extensions import Buffer

def encode_publish_headers(
    count: int,
    entries: tuple[Buffer, Buffer, Buffer, Buffer, Buffer] | None = None,
    *,
    producer: bytes | None = None,
    epoch: int = 0,
    sequence: int = 0,
) -> tuple[memoryview, memoryview]:
    """The headers of `count` messages, and the int64 positions where those of each end.

    `entries` are `row_ends` (in entries), `names` and where each ends, `values` and where each ends; ends are int64 and begin anew
    at 0. With `producer` every message also gets the three headers of an idempotent producer, the first with `sequence`.
    """
