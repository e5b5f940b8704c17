"""Changes of the metadata that this server could not carry out. Each is retried until it succeeds or its partition changes again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from bascule.errors import BasculeError
from bascule.metadata.core.model.changes import PartitionChanged, StreamRemoved

_logger = logging.getLogger(__name__)

RETRY_SECONDS: Final = 1.0
"""Delay before the first retry; each further one doubles it."""

RETRY_SECONDS_MAX: Final = 10.0


@dataclass(frozen=True, slots=True)
class ReplicaRestart:
    """Not a change of the metadata: the replica here has left the in-sync set and is started again."""

    stream: str
    partition: int


Step = PartitionChanged | StreamRemoved | ReplicaRestart


@dataclass(slots=True)
class _Failure:
    attempts: int
    retry: asyncio.TimerHandle


class FailedChanges:
    def __init__(self, carry_out: Callable[[int, Step], None]) -> None:
        """`carry_out` queues another attempt of a step at this index of the Raft log."""
        self._carry_out = carry_out
        self._failures: dict[tuple[str, int], _Failure] = {}

    def __len__(self) -> int:
        """Partitions, and streams that are to be deleted, that are not as the metadata wants them."""
        return len(self._failures)

    def has(self, stream: str, partition: int) -> bool:
        """Whether the last attempt at this partition failed."""
        return (stream, partition) in self._failures

    def add(self, index: int, step: Step, error: Exception) -> None:
        """The step failed: log it and try again later. An error of ours is logged as a sentence, any other with its traceback."""
        before = self._failures.pop(_key(step), None)
        attempts = 1
        if before is not None:
            before.retry.cancel()
            attempts += before.attempts
        seconds = min(RETRY_SECONDS * 2 ** min(attempts - 1, 16), RETRY_SECONDS_MAX)
        reason = error.message if isinstance(error, BasculeError) else repr(error)
        _logger.error(
            "cannot carry out %s (attempt %d, next in %g s): %s",
            step,
            attempts,
            seconds,
            reason,
            exc_info=None if isinstance(error, BasculeError) else error,
        )
        retry = asyncio.get_running_loop().call_later(seconds, self._carry_out, index, step)
        self._failures[_key(step)] = _Failure(attempts, retry)

    def discard(self, step: Step) -> None:
        """The step, or a later one for the same partition, was carried out."""
        failure = self._failures.pop(_key(step), None)
        if failure is not None:
            failure.retry.cancel()
            _logger.warning("carried out %s after %d failed attempts", step, failure.attempts)

    def close(self) -> None:
        for failure in self._failures.values():
            failure.retry.cancel()
        self._failures.clear()


def _key(step: Step) -> tuple[str, int]:
    return (step.stream, -1) if isinstance(step, StreamRemoved) else (step.stream, step.partition)
