"""Pauses partitions that receive no messages, if their stream is configured so. A publish through the API resumes them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from bascule.errors import BasculeError
from bascule.partition.replica import LedPartition

_logger = logging.getLogger(__name__)


class AutoPause:
    def __init__(self, pause: Callable[[str, int], Awaitable[object]], clock: Callable[[], int] = time.time_ns) -> None:
        """`pause` gets a stream and the number of a partition."""
        self._pause = pause
        self._clock = clock
        self._timers: dict[LedPartition, asyncio.TimerHandle] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def watch(self, partition: LedPartition) -> None:
        """Start the timer of the partition; every start of a partition restarts it."""
        if partition.settings.auto_pause_time_ns > 0:
            self._arm(partition, self._clock())

    def _arm(self, partition: LedPartition, active_ns: int) -> None:
        due_ns = active_ns + partition.settings.auto_pause_time_ns - self._clock()
        loop = asyncio.get_running_loop()
        self._timers[partition] = loop.call_later(max(due_ns, 1_000_000) / 1e9, self._check, partition, active_ns)

    def _check(self, partition: LedPartition, active_ns: int) -> None:
        del self._timers[partition]
        active_ns = max(active_ns, partition.received_times.latest_ns)
        if self._clock() - active_ns < partition.settings.auto_pause_time_ns:
            self._arm(partition, active_ns)
        elif partition.subscriber_count and partition.settings.auto_pause_disable_if_subscribers:
            self._arm(partition, self._clock())
        else:
            task = asyncio.create_task(self._pause_now(partition))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pause_now(self, partition: LedPartition) -> None:
        self._arm(partition, self._clock())  # retried if it fails now
        try:
            await self._pause(partition.stream, partition.number)
        except BasculeError as error:
            _logger.warning("cannot pause %s/%d: %s", partition.stream, partition.number, error.message)

    def forget(self, partition: LedPartition) -> None:
        timer = self._timers.pop(partition, None)
        if timer is not None:
            timer.cancel()

    def close(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        for task in self._tasks:
            task.cancel()
