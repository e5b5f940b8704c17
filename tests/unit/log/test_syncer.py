"""The sync thread by itself: it sleeps when there is nothing to do, and wakes up when there is."""

from __future__ import annotations

import threading
import time

import pytest

from bascule import limits
from bascule.log.sync.group_commit import Syncer
from tests.support.waiting import eventually

PATIENCE_SECONDS = 60


class Counted:
    """Something to sync that tells when it was."""

    def __init__(self) -> None:
        self.synced = threading.Semaphore(0)
        self.checkpointed = threading.Semaphore(0)

    def sync(self) -> None:
        self.synced.release()

    def write_checkpoint(self) -> None:
        self.checkpointed.release()


def wait_until_idle(syncer: Syncer) -> None:
    """Nothing is left to do, and the thread has had time to notice."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while (syncer._dirty or syncer._checkpoints or syncer._busy) and time.monotonic() < deadline:
        time.sleep(0.001)
    time.sleep(0.02)


def test_a_thread_that_went_idle_wakes_up_for_the_next_write(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CHECKPOINT_INTERVAL_MS", 1)
    syncer, log = Syncer(interval_ms=1), Counted()
    try:
        for _ in range(5):
            syncer.note_dirty(log)
            assert log.synced.acquire(timeout=PATIENCE_SECONDS)
            assert log.checkpointed.acquire(timeout=PATIENCE_SECONDS)
            wait_until_idle(syncer)
    finally:
        syncer.close()


def test_a_request_does_not_wait_for_the_interval() -> None:
    syncer, log = Syncer(interval_ms=3_600_000), Counted()
    try:
        for _ in range(3):
            syncer.note_dirty(log)
            syncer.request(log)
            assert log.synced.acquire(timeout=PATIENCE_SECONDS)
    finally:
        syncer.close()


def test_each_log_is_synced_at_its_own_interval() -> None:
    syncer, often, seldom = Syncer(interval_ms=3_600_000), Counted(), Counted()
    try:
        syncer.note_dirty(seldom)
        for _ in range(5):
            syncer.note_dirty(often, 1_000_000)
            assert often.synced.acquire(timeout=PATIENCE_SECONDS)
        assert not seldom.synced.acquire(blocking=False)
        syncer.request(seldom)
        assert seldom.synced.acquire(timeout=PATIENCE_SECONDS)
    finally:
        syncer.close()


def test_logs_of_one_interval_are_synced_in_one_round() -> None:
    syncer, logs = Syncer(interval_ms=100), [Counted() for _ in range(50)]
    try:
        for log in logs:
            syncer.note_dirty(log)
        for log in logs:
            assert log.synced.acquire(timeout=PATIENCE_SECONDS)
        assert syncer.rounds <= 3  # a machine that is busy may take longer than an interval to note them all
    finally:
        syncer.close()


def test_an_idle_thread_makes_no_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CHECKPOINT_INTERVAL_MS", 1)
    syncer, log = Syncer(interval_ms=1), Counted()
    try:
        syncer.note_dirty(log)
        assert log.checkpointed.acquire(timeout=PATIENCE_SECONDS)
        wait_until_idle(syncer)

        def rests() -> bool:
            before = syncer.rounds
            time.sleep(0.1)
            return syncer.rounds == before

        eventually(rests, "it makes no more rounds, one a millisecond")
    finally:
        syncer.close()


class Slow(Counted):
    """Keeps the thread busy until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = threading.Event()
        self.may_end = threading.Event()

    def sync(self) -> None:
        self.begun.set()
        assert self.may_end.wait(PATIENCE_SECONDS)
        super().sync()


def test_what_is_forgotten_is_not_synced_any_more() -> None:
    syncer, slow, log = Syncer(interval_ms=3_600_000), Slow(), Counted()
    try:
        syncer.request(slow)
        assert slow.begun.wait(PATIENCE_SECONDS)
        syncer.request(log)  # gathers for the next round
        syncer.forget(log)
        slow.may_end.set()
        for _ in range(2):  # the round under way, and one more
            syncer.request(slow)
            assert slow.synced.acquire(timeout=PATIENCE_SECONDS)
        assert not log.synced.acquire(blocking=False)
    finally:
        syncer.close()
