"""What a member of a group decides, event by event, without a clock or a connection."""

from __future__ import annotations

from bascule.client.connection.metadata import GroupInfo
from bascule.client.consume.group import Change, Membership, Next, PartitionProgress
from bascule.net.grpc.status import Status

SECOND = 1_000_000_000


def member() -> Membership:
    found = Membership()
    assert found.joined("b1", 5, 10 * SECOND, 3 * SECOND, now=100.0) is Next.HEARTBEAT
    return found


def test_heartbeats_come_after_four_tenths_of_the_consumer_timeout() -> None:
    found = member()
    assert found.answered(5, now=101.0) == 4.0


def test_a_refused_heartbeat_has_the_metadata_read_and_the_new_epoch_used() -> None:
    found = member()
    assert found.failed(Status.FAILED_PRECONDITION, now=101.0) is Next.REFRESH
    assert found.refreshed(GroupInfo("g", "b2", 6), now=101.0) is Next.HEARTBEAT
    assert (found.coordinator, found.epoch) == ("b2", 6)


def test_refused_with_what_the_metadata_says_means_put_out() -> None:
    found = member()
    assert found.failed(Status.FAILED_PRECONDITION, now=101.0) is Next.REFRESH
    assert found.refreshed(GroupInfo("g", "b1", 5), now=101.0) is Next.HEARTBEAT
    assert found.failed(Status.FAILED_PRECONDITION, now=101.1) is Next.JOIN


def test_refusals_with_an_answer_in_between_do_not_add_up() -> None:
    found = member()
    found.failed(Status.FAILED_PRECONDITION, now=101.0)
    found.refreshed(GroupInfo("g", "b1", 5), now=101.0)
    found.answered(5, now=102.0)
    assert found.failed(Status.FAILED_PRECONDITION, now=103.0) is Next.REFRESH


def test_a_group_that_is_gone_is_joined_again() -> None:
    assert member().failed(Status.NOT_FOUND, now=101.0) is Next.JOIN
    assert member().refreshed(None, now=101.0) is Next.JOIN


def test_a_silent_coordinator_is_reported_once_after_its_timeout() -> None:
    found = member()
    assert found.failed(Status.UNAVAILABLE, now=102.0) is Next.REFRESH
    assert found.failed(Status.DEADLINE_EXCEEDED, now=103.5) is Next.REPORT
    assert found.failed(Status.UNAVAILABLE, now=104.0) is Next.REFRESH
    found.refreshed(GroupInfo("g", "b2", 7), now=105.0)
    assert found.failed(Status.UNAVAILABLE, now=106.0) is Next.REFRESH
    assert found.failed(Status.UNAVAILABLE, now=109.0) is Next.REPORT


def test_only_what_moves_is_touched() -> None:
    held, wanted = frozenset({("a", 0), ("a", 1)}), frozenset({("a", 1), ("b", 0)})
    assert Change.between(held, wanted) == Change(frozenset({("a", 0)}), frozenset({("b", 0)}))


def test_a_message_is_dealt_with_once_whoever_has_it_comes_back() -> None:
    progress = PartitionProgress()
    assert progress.to_checkpoint is None
    progress.hand_out(7)
    assert progress.is_busy
    assert progress.to_checkpoint is None
    progress.came_back()
    assert not progress.is_busy
    assert progress.to_checkpoint == 7
    progress.checkpointed = 7
    assert progress.to_checkpoint is None
