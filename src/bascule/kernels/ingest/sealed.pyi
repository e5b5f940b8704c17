"""Ingest of internal streams under a cluster secret: only messages that a broker has sealed for this broker become records."""

from collections.abc import Callable
from typing import final

from typing_extensions import Buffer

from bascule.kernels.batches.pool import BatchPool
from bascule.kernels.ingest.sink import PartitionSink

@final
class SealedQueue:
    """The messages of one read for all partitions of internal streams, until their seals are checked."""

    def __init__(self, opener: Callable[[bytes, bytes], Buffer | None], receiver: bytes) -> None:
        """`opener` returns the payload of a message on a subject, None if it has no valid seal. `receiver` is the id of this server."""
    def sink(
        self,
        pool: BatchPool,
        *,
        stream: bytes,
        partition: int,
        base_subject: bytes,
        payload_bytes_max: int,
        batch_records_max: int,
        batch_bytes_max: int,
        concurrency_control: bool = False,
        next_offset: int = 0,
    ) -> SealedSink:
        """A sink whose messages are checked here."""

@final
class SealedSink(PartitionSink):
    """Collects the messages that a broker sealed for this one. It answers a message for another server with NOT_STORED."""
