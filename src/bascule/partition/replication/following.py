"""A partition's follower at work: carries out what partition/core/follower.py decides."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from bascule.errors import BasculeError, DiskFull, LogClosed, RejectedBatch
from bascule.log import PartitionLog
from bascule.partition.core.codec import PartitionKey
from bascule.partition.core.follower import Follower
from bascule.partition.core.follower_events import (
    AdvanceHighWatermark,
    AnswerReceived,
    Append,
    EpochAnswerReceived,
    Flaw,
    FollowerEvent,
    FollowerReconnected,
    FollowerSynced,
    FollowerTick,
    FollowerWriteFailed,
    FollowerWrote,
    FollowingBegan,
    NoticeReceived,
    Rebuild,
    ReportLeader,
    RequestSync,
    Reset,
    Send,
    Truncate,
)
from bascule.partition.core.log_ends import LogEnds
from bascule.partition.core.messages import EpochAnswer, FetchAnswer, Notice

if TYPE_CHECKING:
    from bascule.partition.replication.replicator import Replicator

_logger = logging.getLogger(__name__)

COMPLAINT_NS: Final = 5_000_000_000
"""Minimum interval between repeated log messages of a partition."""


class Following:
    """Lives in the event loop. A thread does writes that may take long, one at a time."""

    def __init__(
        self, key: PartitionKey, stream: str, core: Follower, log: PartitionLog, replicator: Replicator
    ) -> None:
        self.key = key
        self.stream = stream
        self.name = f"{stream}/{key[1]}"
        self.core = core
        self.log = log
        self.armed_step = 0
        self.is_over = False
        self.is_reporting = False
        self._replicator = replicator
        self._writing: asyncio.Future[None] | None = None
        self._sync_to = -1
        self._complained_ns = 0

    def begin(self) -> None:
        self._step(FollowingBegan(ends_of(self.log), time.monotonic_ns()))

    async def stop(self) -> None:
        self.is_over = True
        self.log.stop_waiting(self)
        if self._writing is not None:
            await asyncio.wait([self._writing])

    # ── events ───────────────────────────────────────────────────────────────────────────────────

    def received(self, sender: str, answer: FetchAnswer | EpochAnswer | Notice, now_ns: int) -> None:
        if sender != self.core.leader or self.is_over:
            return
        match answer:
            case FetchAnswer():
                self._step(AnswerReceived(answer, now_ns))
            case EpochAnswer():
                self._step(EpochAnswerReceived(answer, self.log.end_offset_of_epoch(answer.epoch), now_ns))
            case Notice():
                self._step(NoticeReceived(answer, now_ns))

    def found_damage(self, reason: str) -> None:
        if not self.is_over:
            self._replicator.rebuild(self, reason, Flaw.DAMAGED)

    def reconnected(self) -> None:
        self._step(FollowerReconnected(time.monotonic_ns()))

    def on_time(self, now_ns: int) -> None:
        self._step(FollowerTick(now_ns))

    # ── effects ──────────────────────────────────────────────────────────────────────────────────

    def _step(self, event: FollowerEvent) -> None:
        if self.is_over:
            return
        replicator = self._replicator
        try:
            for effect in self.core.step(event):
                match effect:
                    case Send(message):
                        replicator.link.send(self.core.leader, self.key, message)
                    case Append(data):
                        self._append(data)
                    case AdvanceHighWatermark(high_watermark):
                        self.log.advance_high_watermark(high_watermark)
                    case RequestSync():
                        self._request_sync()
                    case Truncate(offset, allow_committed):
                        self._truncate(offset, allow_committed)
                    case Reset(offset):
                        self._reset(offset)
                    case ReportLeader():
                        replicator.report_leader(self)
                    case Rebuild(reason, flaw):
                        replicator.rebuild(self, reason, flaw)
        except BasculeError as error:
            self._complain(error.message)
        replicator.timers.arm(self, self.core.deadline_ns)

    def _complain(self, text: str) -> None:
        now_ns = time.monotonic_ns()
        if now_ns - self._complained_ns > COMPLAINT_NS:
            self._complained_ns = now_ns
            _logger.error("%s: %s", self.name, text)

    # ── writing ──────────────────────────────────────────────────────────────────────────────────

    def _append(self, data: bytes | memoryview) -> None:
        if self._replicator.writes_at_once(len(data)):
            began = time.monotonic()
            failure = None
            try:
                self.log.append_replicated(data)
            except BasculeError as error:
                failure = error
            self._replicator.note_write(time.monotonic() - began)
            self._finish(failure)
        else:
            self._write(lambda: self.log.append_replicated(data))

    def _truncate(self, offset: int, allow_committed: bool) -> None:
        _logger.info("%s: truncated to offset %d as in the log of its leader %s", self.name, offset, self.core.leader)
        self._write(lambda: self.log.truncate(offset, allow_committed=allow_committed))

    def _reset(self, offset: int) -> None:
        _logger.info("%s: starts again at offset %d, where the log of its leader begins", self.name, offset)
        self._write(lambda: self.log.reset_to(offset))

    def _write(self, action: Callable[[], object]) -> None:
        self._writing = asyncio.ensure_future(self._write_on_thread(action))

    async def _write_on_thread(self, action: Callable[[], object]) -> None:
        failure = await self._replicator.run(lambda: _attempt(action))
        self._writing = None
        self._finish(failure)

    def _finish(self, failure: BasculeError | None) -> None:
        now_ns = time.monotonic_ns()
        if self.is_over or isinstance(failure, LogClosed):
            return
        if failure is None:
            self._step(FollowerWrote(ends_of(self.log), now_ns))
            return
        self._complain(f"cannot be written: {failure.message}")
        is_damaged = not isinstance(failure, DiskFull | RejectedBatch)
        self._step(FollowerWriteFailed(failure.message, is_damaged, ends_of(self.log), now_ns))

    # ── syncing ──────────────────────────────────────────────────────────────────────────────────

    def _request_sync(self) -> None:
        waits = self._sync_to >= 0
        self._sync_to = self.log.newest_offset
        if not waits:
            self._wait_for_disk()

    def _wait_for_disk(self) -> None:
        try:
            if self.log.call_when_synced(self, self._sync_to, self._on_synced):
                return
        except BasculeError as error:
            self._sync_to = -1
            self._finish_sync(error)
            return
        self._sync_to = -1
        self._on_synced()  # later: the fetch that this step has numbered goes first

    def _on_synced(self) -> None:
        """Called on the sync thread."""
        self._replicator.call_in_loop(self._synced)

    def _synced(self) -> None:
        if self.is_over:
            return
        self._step(FollowerSynced(self.log.synced_end_offset))
        if self._sync_to >= 0:
            self._wait_for_disk()

    def _finish_sync(self, error: BasculeError) -> None:
        if not self.is_over and not isinstance(error, LogClosed):
            self._replicator.rebuild(self, f"the disk failed: {error.message}", Flaw.DAMAGED)


def ends_of(log: PartitionLog) -> LogEnds:
    return LogEnds(
        log.log_start_offset, log.log_end_offset, log.synced_end_offset, log.high_watermark, log.latest_epoch
    )


def _attempt(action: Callable[[], object]) -> BasculeError | None:
    try:
        action()
    except BasculeError as error:
        return error
    return None
