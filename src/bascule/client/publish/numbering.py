"""Idempotent publishing: a lane whose messages carry numbers, so that the leader stores each one once and in order.

When an attempt fails, the lane waits for the answers still to come and sends everything again from the first message without an ack.
A message that was stored is acked as a duplicate.

A message that is refused for good leaves a hole in the sequence, and nothing after it can be stored in this epoch. The lane then begins
the next epoch with new numbers for the messages that are surely not stored. A message that may be stored is given up (OutcomeUnknown):
with a new number it could be stored twice. If the caller chose the epoch, the publisher ends there.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import monotonic

from bascule.client.publish.carrier import Parcel
from bascule.client.publish.engine import Engine
from bascule.client.publish.lane import Lane, is_done
from bascule.client.publish.resend_rule import ResendRule
from bascule.errors import BasculeError, OutOfSequence, ProducerFenced, Unavailable
from bascule.kernels.window.message import PublishMessage
from bascule.kernels.window.window import PublishTarget
from bascule.producers import producer_headers

TRY_SECONDS = 3.0
"""How long an attempt waits for its ack: the message may have met no leader, and a needless attempt costs little."""


@dataclass(frozen=True, slots=True)
class Numbering:
    producer_id: bytes
    epoch: int
    owns_epoch: bool
    """The publisher chose the epoch itself, and may begin the next."""


class NumberedLane(Lane):
    def __init__(self, engine: Engine, target: PublishTarget, numbering: Numbering) -> None:
        super().__init__(engine, target, ResendRule(unknown=True, try_seconds=TRY_SECONDS))
        self._numbering = numbering
        self._epoch = numbering.epoch

    def headers(self, message: PublishMessage) -> dict[str, bytes]:
        sequence = message.sequence if message.sequence >= 0 else self.next_sequence
        numbers = producer_headers(self._numbering.producer_id, self._epoch, sequence)
        return {**(message.headers or {}), **numbers}

    def _is_final(self, _parcel: Parcel) -> bool:
        return False  # decided in _prepare, when all answers are there

    def _cannot_send(self, _parcel: Parcel) -> None:
        self._has_failed = True

    async def _prepare(self) -> bool:
        while self.in_flight:
            await self._change()
        self._has_failed = False
        self._again = sorted((entry for entry in self._again if not is_done(entry[1])), key=lambda entry: entry[0])
        if not self._again:
            return False
        parcels = [parcel for _, parcel in self._again]
        first = parcels[0]
        fenced = next((parcel.error for parcel in parcels if isinstance(parcel.error, ProducerFenced)), None)
        if fenced is not None:
            self._end(fenced)
        elif monotonic() >= first.deadline or not self._may_send_again(first):
            self._give_up_first(first)
        return bool(self._again)

    def _may_send_again(self, first: Parcel) -> bool:
        """OutOfSequence is not resent: the first has nothing before it that could be missing."""
        return first.error is None or self.rule.resends(first.error)

    def _give_up_first(self, first: Parcel) -> None:
        forgotten = isinstance(first.error, OutOfSequence) and not first.is_in_doubt and first.sequence > 0
        if forgotten and self._numbering.owns_epoch:
            self._begin_epoch()  # the partition has forgotten this producer, and everything before it is acked
            return
        del self._again[0]
        self._give_up(first)
        if self._numbering.owns_epoch:
            self._begin_epoch()
        else:
            self._end(first.error or Unavailable("the message could not be sent in time"))

    def _begin_epoch(self) -> None:
        parcels = [parcel for _, parcel in self._again]
        self._again = []
        self._epoch += 1
        self.next_sequence = 0
        for parcel in parcels:
            if parcel.is_in_doubt:
                self._give_up(parcel)
                continue
            parcel.sequence = self.next_sequence
            parcel.error = None
            self.next_sequence += 1
            self._again.append((parcel.sequence, parcel))

    def _end(self, error: BasculeError) -> None:
        """Nothing more can be published in this epoch."""
        self._engine.end_reason = error
        parcels, self._again = self._again, []
        for _, parcel in parcels:
            parcel.error = error
            self._give_up(parcel)
