"""Refusals that a leader concludes from its log: an incorrect expected offset, a fenced producer, a message out of sequence.

A leader that was deposed and does not know it has an outdated log. Core NATS delivers a message to it and to the new leader; its
refusal would reach the publisher although the new leader stores the message, and an idempotent publisher would publish the message a
second time under a new number. Therefore the leader of a replicated partition asks the metadata group, after it judged, whether it
still leads. Without a confirmation, publishers get UNKNOWN: the outcome of the message is unknown.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from bascule import limits
from bascule.kernels.ingest.acks import AckWriter
from bascule.kernels.ingest.sink import PreparedBatch
from bascule.proto.api_pb2 import Ack


class JudgedPartition(Protocol):
    """A partition that this server leads, or believes that it does."""

    @property
    def stream(self) -> str: ...
    @property
    def number(self) -> int: ...
    @property
    def leader_epoch(self) -> int: ...
    @property
    def is_only_replica(self) -> bool: ...


StillLead = Callable[[list[JudgedPartition]], Awaitable[list[bool]]]
"""Returns for each partition whether this server leads it in that epoch, at a time after the call. Does not raise."""
OK: Final = Ack.Error.OK
UNKNOWN: Final = Ack.Error.UNKNOWN


class Judgements:
    def __init__(self, acks: AckWriter, still_lead: StillLead | None, flush: Callable[[], None]) -> None:
        self._acks = acks
        self._still_lead = still_lead
        self._flush = flush
        self._waiting: list[tuple[JudgedPartition, PreparedBatch]] = []
        self._task: asyncio.Task[None] | None = None

    def write_errors(self, partition: JudgedPartition, batch: PreparedBatch) -> None:
        """Answer the refused messages of the batch: at once, or judgements when it is certain that they count."""
        now_ns = time.time_ns()
        if self._still_lead is None or partition.is_only_replica or not self._acks.has_judgements(batch):
            self._acks.write_errors(batch, commit_timestamp=now_ns)
            return
        self._acks.write_errors(batch, commit_timestamp=now_ns, judged=False)
        if len(self._waiting) >= limits.INGEST_JUDGED_BATCHES_MAX:
            self._acks.write_judgements(batch, UNKNOWN, now_ns)
            return
        batch.hold()
        self._waiting.append((partition, batch))
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._confirm(self._still_lead))

    async def _confirm(self, still_lead: StillLead) -> None:
        """One question for everything that was judged before it."""
        while self._waiting:
            judged, self._waiting = self._waiting, []
            confirmed = await still_lead([partition for partition, _ in judged])
            for (_, batch), is_true in zip(judged, confirmed, strict=True):
                self._acks.write_judgements(batch, OK if is_true else UNKNOWN, time.time_ns())
                batch.release()
            self._flush()
        self._task = None

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
