"""Rows of columns as one parcel: sent without an object for each message, and sent again row by row."""

from __future__ import annotations

import asyncio
from collections.abc import MutableSequence, Sequence
from time import monotonic
from typing import Any, Protocol

from bascule.client.connection.failures import publish_failure, unknown_outcome
from bascule.errors import BasculeError, OutcomeUnknown, Unavailable
from bascule.kernels.window.window import FAILED, NOT_SENT, SENT, STORED, PublishColumns, PublishTarget


class RowBatch(Protocol):
    """Messages for one partition or several, and the outcome of each: its offset, or an error."""

    @property
    def offsets(self) -> MutableSequence[int]: ...
    @property
    def errors(self) -> dict[int, BasculeError]: ...

    def pick(self, target: PublishTarget, rows: Sequence[int], waiter: Any, deadline: float) -> PublishColumns: ...

    def store(self, rows: Sequence[int], offsets: memoryview) -> None:
        """Note the offsets of rows that were all stored."""


class ColumnRows:
    """Some rows of a batch. Its future is done when each has its outcome in the batch."""

    is_alone = False
    expected_offset = -1

    def __init__(
        self, lane: Any, batch: RowBatch, rows: Sequence[int], deadline: float, *, is_numbered: bool = False
    ) -> None:
        self.lane = lane
        self.deadline = deadline
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.sequence = -1
        self.carrier: Any = None
        self.led_by = ""
        self.sent_at = 0.0
        self.is_in_doubt = False
        self.error: Any = None
        self.is_settled = False
        self._batch = batch
        self._rows = rows
        self._is_numbered = is_numbered
        self._columns: PublishColumns | None = None
        self._answered = 0
        self._reasons: dict[int, BasculeError] = {}
        """Of rows that were sent without success: what is reported if time is up."""

    def sent(self, carrier: Any, led_by: str, now: float) -> None:
        """Note an attempt."""
        if self.sequence < 0:
            self.sequence = self.lane.next_sequence
            self.lane.next_sequence += 1
        self.carrier = carrier
        self.led_by = led_by
        self.sent_at = now
        self.lane.in_flight += 1

    def begin(self, until: float) -> PublishColumns:
        """The columns of a new attempt."""
        self._answered = 0
        self._columns = self._batch.pick(self.lane.target, self._rows, self, until)
        return self._columns

    def quiet_since(self) -> float:
        """When the attempt was made, or the last answer was noticed."""
        if self._columns is not None and self._columns.answered != self._answered:
            self._answered = self._columns.answered
            self.sent_at = monotonic()
        return self.sent_at

    def withdraw(self, _error: Exception) -> None:
        columns, self._columns = self._columns, None
        if columns is not None:
            columns.deadline = monotonic()
            self.carrier.expire(columns.deadline)  # rows that wait for room are not sent there
            self._take(columns)

    def fail(self, error: Exception) -> None:
        if not self.is_settled:
            assert isinstance(error, BasculeError)
            for row in self._rows:
                self._batch.errors[row] = self._reasons.get(row, error)
            self._settle()

    # as the waiter of its columns

    def done(self) -> bool:
        return self.is_settled

    def set_result(self, columns: PublishColumns) -> None:
        if columns is self._columns:
            self._columns = None
            self._take(columns)

    # ── outcomes ─────────────────────────────────────────────────────────────────────────────────

    def _settle(self) -> None:
        self.is_settled = True
        if self.carrier is not None:
            self.carrier = None
            self.lane.left()
        if not self.future.done():
            self.future.set_result(None)

    def _take(self, columns: PublishColumns) -> None:
        self.carrier.done_with(self)
        if columns.done and not columns.failed:
            self._batch.store(self._rows, columns.offsets)
            self._settle()
            return
        failures = self._failures(columns)
        again = self._to_send_again(failures)
        for row in failures.keys() - set(again):
            self._batch.errors[row] = self._reasons[row]
        self._rows = again
        if again:
            self.lane.failed(self, self.carrier, failures[again[0]])
        else:
            self._settle()

    def _failures(self, columns: PublishColumns) -> dict[int, BasculeError]:
        """The rows that were not stored, in order, and why."""
        errors: dict[int, BasculeError] = {}
        failures: dict[int, BasculeError] = {}
        for row, offset, outcome in zip(self._rows, columns.offsets, columns.outcomes, strict=True):
            if outcome in (STORED, SENT):
                self._batch.offsets[row] = offset
                continue
            error = errors.get(outcome)
            if error is None:
                error = errors[outcome] = _failure(outcome, columns)
            failures[row] = error
            if not isinstance(self._reasons.get(row), OutcomeUnknown):
                self._reasons[row] = error  # else an earlier attempt may have been stored
        return failures

    def _to_send_again(self, failures: dict[int, BasculeError]) -> list[int]:
        rule = self.lane.rule
        if not self._is_numbered:
            return [row for row, error in failures.items() if rule.resends(error)]
        # ColumnRows after the first failure were refused for the gap, or are recognised when they come again.
        first = next(iter(failures))
        return [row for row in self._rows if row >= first] if rule.resends(failures[first]) else []


def _failure(outcome: int, columns: PublishColumns) -> BasculeError:
    if outcome >= FAILED:
        return publish_failure(outcome - FAILED, columns.texts.get(outcome, ""))
    if outcome == NOT_SENT:
        return Unavailable("the messages were not sent in time")
    return unknown_outcome("the message was sent", "the connection was lost, time was up, or another broker leads now")
