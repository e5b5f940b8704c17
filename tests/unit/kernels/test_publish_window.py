"""The window of publishes: who is told what, in whatever order answers come."""

from __future__ import annotations

import asyncio
from array import array
from typing import Any

import pytest

from bascule.kernels.envelope.ack_object import Ack
from bascule.kernels.window import window as kernel
from tests.support.kernels.message_objects import ack_envelope


class Waiter:
    def __init__(self) -> None:
        self.result: Any = None

    def done(self) -> bool:
        return self.result is not None

    def set_result(self, result: Any) -> None:
        assert self.result is None
        self.result = result


def acked(correlation_id: bytes, offset: int = 0, error: int = 0) -> bytes:
    return ack_envelope(Ack(b"s", b"s", b"s.1", offset, b"in", correlation_id, 0, 5, 6, error))


def taken(window: kernel.PublishWindow, waiter: Waiter | None = None, deadline: float = 0.0) -> bytes:
    correlation_id = window.take(waiter, deadline)
    assert correlation_id is not None
    return correlation_id


def test_acks_find_their_waiters_in_any_order() -> None:
    window = kernel.PublishWindow(4)
    waiters = [Waiter() for _ in range(4)]
    ids = [taken(window, waiter) for waiter in waiters]
    assert len(set(ids)) == 4
    assert window.take() is None
    for index in (2, 0, 3, 1):
        assert window.resolve_envelope(acked(ids[index], offset=index))
    assert [waiter.result.offset for waiter in waiters] == [0, 1, 2, 3]
    assert (window.outstanding, window.free, window.acknowledged, window.published) == (0, 4, 4, 4)


def test_an_ack_has_all_that_the_server_said() -> None:
    window, waiter = kernel.PublishWindow(), Waiter()
    correlation_id = taken(window, waiter)
    window.resolve_envelope(acked(correlation_id, 7))
    ack = waiter.result
    assert (ack.stream, ack.partition_subject, ack.message_subject, ack.ack_inbox) == ("s", "s", "s.1", "in")
    assert (ack.offset, ack.reception_timestamp, ack.commit_timestamp, ack.error) == (7, 5, 6, 0)
    assert ack.correlation_id == correlation_id.decode()
    assert ack == kernel.decode_ack_envelope(acked(correlation_id, 7))
    assert hash(ack) == hash(kernel.decode_ack_envelope(acked(correlation_id, 7)))
    assert ack != kernel.decode_ack_envelope(acked(correlation_id, 8))
    assert "offset=7" in repr(ack)


def test_a_second_ack_and_one_for_a_slot_that_somebody_else_has_are_strays() -> None:
    window, other = kernel.PublishWindow(1), Waiter()
    first = taken(window)
    assert window.resolve_envelope(acked(first))
    assert not window.resolve_envelope(acked(first))
    second = taken(window, other)
    assert second != first
    assert not window.resolve_envelope(acked(first))
    assert other.result is None
    assert window.strays == 2


@pytest.mark.parametrize(
    "correlation_id", [b"", b"x", b"-1", b"00x", b"9" * 19, b"9" * 20, b"9" * 400, b"1.0", b"\xc2\xb2"]
)
def test_an_id_that_was_never_given_out_is_a_stray(correlation_id: bytes) -> None:
    window = kernel.PublishWindow(8)
    taken(window)
    assert not window.resolve_envelope(acked(correlation_id))
    assert window.outstanding == 1


def test_what_is_no_ack_envelope_is_refused() -> None:
    window = kernel.PublishWindow(8)
    assert not window.resolve_envelope(b"nonsense")
    assert window.strays == 0


@pytest.mark.parametrize(("error", "code"), [(1, 0), (2, 5), (3, 1), (4, 6), (99, 0)])
def test_an_ack_with_an_error_is_a_failure_in_the_words_of_publish_async(error: int, code: int) -> None:
    told: list[tuple[Any, int, int, str]] = []
    window = kernel.PublishWindow(2, on_failed=lambda *what: told.append(what))
    taken(window)
    waiter = Waiter()
    window.resolve_envelope(acked(taken(window, waiter), error=error))
    assert told[0][:3] == (waiter, 1, code)
    assert told[0][3]
    assert waiter.result is None
    assert (window.failed, window.outstanding) == (1, 1)


def test_a_future_that_was_cancelled_is_left_alone() -> None:
    async def scenario() -> None:
        window, future = kernel.PublishWindow(2), asyncio.get_running_loop().create_future()
        correlation_id = window.take(future)
        future.cancel()
        assert window.resolve_envelope(acked(correlation_id or b""))
        assert window.outstanding == 0

    asyncio.run(scenario())


def test_what_is_late_is_lost_oldest_first_and_its_late_ack_means_nothing() -> None:
    lost: list[list[tuple[int, Any]]] = []
    window = kernel.PublishWindow(4, on_lost=lost.append)
    waiters = [Waiter() for _ in range(4)]
    ids = [taken(window, waiter, deadline) for waiter, deadline in zip(waiters, (10.0, 0.0, 5.0, 20.0), strict=True)]
    window.resolve_envelope(acked(ids[0]))
    replacement = taken(window, waiters[0], 10.0)  # the youngest, in the first slot
    assert window.expire(4.0) == 0
    assert window.expire(10.0) == 2
    assert lost == [[(2, waiters[2]), (4, waiters[0])]]
    assert not window.resolve_envelope(acked(ids[2]))
    assert not window.resolve_envelope(acked(replacement))
    assert window.lose_all() == 2
    assert lost[1] == [(1, waiters[1]), (3, waiters[3])]
    assert (window.lose_all(), window.outstanding) == (0, 0)


@pytest.mark.parametrize("size", [0, 3, 6, 1 << 21])
def test_windows_are_powers_of_two(size: int) -> None:
    with pytest.raises(ValueError, match="power of two"):
        kernel.PublishWindow(size)


# ── columns ──────────────────────────────────────────────────────────────────────────────────────

TARGET = kernel.PublishTarget("s")


def test_columns_come_as_lists_or_as_buffers() -> None:
    lists = kernel.PublishColumns(TARGET, [b"a", b"", b"bc"], None, [b"k", None, b""])
    buffers = kernel.PublishColumns(TARGET, b"abc", array("q", (1, 1, 3)), b"k", array("q", (1, 1, 1)))
    for columns in (lists, buffers):
        assert (len(columns), columns.sent, columns.answered, columns.failed, columns.done) == (3, 0, 0, 0, False)
        assert columns.offsets.tolist() == [-1, -1, -1]
        assert columns.outcomes.tolist() == [kernel.WAITING] * 3


@pytest.mark.parametrize(
    ("values", "ends", "keys", "key_ends", "complaint"),
    [
        (b"abc", array("q", (2, 1)), None, None, r"value_ends\[1\] is 1"),
        (b"abc", array("q", (2, 4)), None, None, r"value_ends\[1\] is 4"),
        (b"abc", array("q", (-1,)), None, None, r"value_ends\[0\] is -1"),
        (b"abc", array("i", (1,)), None, None, "64 bit integers"),
        (b"abc", array("d", (1.0,)), None, None, "64 bit integers"),
        (b"abc", array("q", (1,)), b"k", array("q", (1, 1)), "2 keys for 1 values"),
        (b"abc", array("q", (1,)), b"k", array("q", (2,)), r"key_ends\[0\] is 2"),
        (b"abc", array("q", (1,)), None, array("q", (2,)), "without keys"),
        ([b"a"], None, [b"k", b"l"], None, "2 keys for 1 values"),
    ],
)
def test_columns_that_cannot_be_are_refused(values: Any, ends: Any, keys: Any, key_ends: Any, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        kernel.PublishColumns(TARGET, values, ends, keys, key_ends)


def test_lists_hold_bytes() -> None:
    values: Any = [b"a", "text"]
    with pytest.raises(TypeError):
        kernel.PublishColumns(TARGET, values)


@pytest.mark.parametrize("kind", [kernel.PublishTarget, kernel.PublishColumns])
def test_nothing_is_made_without_what_it_needs(kind: Any) -> None:
    with pytest.raises(TypeError):
        kind.__new__(kind)
    with pytest.raises(TypeError):
        kind(None)
