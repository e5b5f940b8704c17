"""Changes of the metadata that could not be carried out are retried, ever less often, until they succeed."""

from __future__ import annotations

import asyncio
import logging

import pytest

from bascule.errors import StorageError
from bascule.metadata.core.model.changes import PartitionChanged, StreamRemoved
from bascule.partition.failed_changes import FailedChanges, ReplicaRestart, Step

CHANGE = PartitionChanged("orders", 1)


class Loop:
    """The delays that were asked for, and the calls that wait."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.delays: list[float] = []
        self.waiting: list[asyncio.TimerHandle] = []
        self._loop = asyncio.new_event_loop()
        monkeypatch.setattr(asyncio, "get_running_loop", lambda: self)

    def call_later(self, delay: float, callback: object, *arguments: object) -> asyncio.TimerHandle:
        self.delays.append(delay)
        handle = asyncio.TimerHandle(0.0, callback, arguments, self._loop)  # type: ignore[arg-type]
        self.waiting.append(handle)
        return handle

    def pass_time(self) -> None:
        waiting, self.waiting = self.waiting, []
        for handle in waiting:
            if not handle.cancelled():
                handle._run()

    def close(self) -> None:
        self._loop.close()


def test_retries_come_less_and_less_often_until_one_succeeds(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop(monkeypatch)
    tried: list[tuple[int, Step]] = []
    failed = FailedChanges(lambda index, step: tried.append((index, step)))
    for count in range(1, 8):
        failed.add(7, CHANGE, RuntimeError("boom"))
        assert len(failed) == 1
        loop.pass_time()
        assert tried == [(7, CHANGE)] * count
    assert loop.delays == [1, 2, 4, 8, 10, 10, 10]
    failed.discard(CHANGE)
    assert len(failed) == 0
    failed.add(8, CHANGE, RuntimeError("boom"))
    assert loop.delays[-1] == 1
    loop.close()


def test_a_later_change_of_the_partition_replaces_the_retry(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop(monkeypatch)
    tried: list[Step] = []
    failed = FailedChanges(lambda _index, step: tried.append(step))
    failed.add(1, CHANGE, RuntimeError("boom"))
    failed.add(2, ReplicaRestart("orders", 1), RuntimeError("boom"))
    failed.add(2, StreamRemoved("other", 3), RuntimeError("boom"))
    assert len(failed) == 2
    loop.pass_time()
    assert tried == [ReplicaRestart("orders", 1), StreamRemoved("other", 3)]
    failed.add(3, CHANGE, RuntimeError("boom"))
    failed.discard(CHANGE)
    failed.discard(CHANGE)
    assert len(failed) == 1
    failed.close()
    loop.pass_time()
    assert (len(tried), len(failed)) == (2, 0)
    loop.close()


def test_an_unexpected_exception_is_logged_with_its_traceback(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    loop = Loop(monkeypatch)
    failed = FailedChanges(lambda _index, _step: None)
    with caplog.at_level(logging.WARNING):
        failed.add(1, CHANGE, StorageError("the disk is full"))
        failed.add(1, CHANGE, KeyError("boom"))
        failed.discard(CHANGE)
    full, unexpected, done = caplog.records
    assert full.exc_info is None
    assert full.getMessage().endswith("(attempt 1, next in 1 s): the disk is full")
    assert unexpected.exc_info is not None
    assert "(attempt 2, next in 2 s): KeyError('boom')" in unexpected.getMessage()
    assert "after 2 failed attempts" in done.getMessage()
    loop.close()
