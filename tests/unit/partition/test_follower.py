"""A follower makes its log agree with the leader's, then copies it: replication.md §4 and §8."""

from __future__ import annotations

from typing import Any

import pytest

from bascule.partition.core import follower_events as follow
from bascule.partition.core.follower import FollowerState
from bascule.partition.core.messages import EpochAnswer, EpochQuery, Fetch, Verdict
from tests.unit.partition.replica_helpers import ACK, EPOCH, MS, SECOND, FollowerAtWork, of_kind, one

# ── making the logs agree ────────────────────────────────────────────────────────────────────────


def test_an_empty_log_is_fetched_at_once() -> None:
    follower = FollowerAtWork()
    assert follower.sent == Fetch(EPOCH, 1, 0, 0, 3)
    assert follower.follower.agrees


def test_fix_8_nothing_is_fetched_or_cut_before_the_leader_has_said_where_the_epoch_ends() -> None:
    follower = FollowerAtWork(10, epochs=[(2, 0), (4, 6)])
    assert follower.sent == EpochQuery(EPOCH, 1, 4)
    assert not follower.follower.agrees
    for _ in range(5):
        assert isinstance(one(follower.tick(20 * SECOND), follow.Send).message, EpochQuery)  # it asks on


def test_a_log_that_is_a_part_of_the_leaders_is_kept() -> None:
    follower = FollowerAtWork(10, epochs=[(4, 0)])
    follower.answer_epoch(4, 25)
    assert isinstance(follower.sent, Fetch) and follower.sent.log_end_offset == 10
    assert follower.follower.agrees


def test_must_hold_what_a_deposed_leader_wrote_alone_is_cut() -> None:
    follower = FollowerAtWork(10, committed=5, epochs=[(4, 0)])
    assert one(follower.answer_epoch(4, 8), follow.Truncate) == follow.Truncate(8, False)
    follower.written(8)
    assert isinstance(follower.sent, Fetch) and follower.sent.log_end_offset == 8


def test_an_epoch_that_the_leader_does_not_have_is_cut_and_the_one_before_is_asked_for() -> None:
    follower = FollowerAtWork(10, committed=2, epochs=[(1, 0), (2, 4), (4, 8)])
    assert one(follower.answer_epoch(3, 9), follow.Truncate).offset == 8  # its own epoch 4 begins there
    assert not follower.follower.agrees
    follower.written(8)
    assert follower.sent == EpochQuery(EPOCH, 2, 2)
    assert one(follower.answer_epoch(2, 6), follow.Truncate).offset == 6
    follower.written(6)
    assert isinstance(follower.sent, Fetch)


def test_fix_8_what_is_committed_is_never_cut() -> None:
    follower = FollowerAtWork(10, committed=7, epochs=[(4, 0)])
    effects = follower.answer_epoch(4, 7)
    assert one(effects, follow.Rebuild).flaw is follow.Flaw.DIVERGED
    assert len(effects) == 1
    assert follower.follower.state is FollowerState.STUCK


def test_what_is_committed_is_cut_when_the_metadata_says_that_it_was_lost() -> None:
    follower = FollowerAtWork(10, committed=7, epochs=[(4, 0)], data_loss_epoch=5)
    assert one(follower.answer_epoch(4, 3), follow.Truncate) == follow.Truncate(3, True)


def test_a_loss_before_the_own_latest_epoch_is_no_leave_to_cut() -> None:
    follower = FollowerAtWork(10, committed=7, epochs=[(4, 0)], data_loss_epoch=4)
    assert one(follower.answer_epoch(4, 3), follow.Rebuild).flaw is follow.Flaw.DIVERGED


@pytest.mark.parametrize("epoch", [0, 3])
def test_a_log_of_which_a_loss_leaves_nothing_is_copied_anew(epoch: int) -> None:
    """An empty log at its start would claim that the offsets before it are committed, and the leader writes other records there."""
    follower = FollowerAtWork(10, start=6, committed=7, epochs=[(4, 6)], data_loss_epoch=5)
    assert one(follower.answer_epoch(epoch, 5), follow.Rebuild).flaw is follow.Flaw.OUTDATED


def test_a_log_from_the_first_offset_is_emptied_after_a_loss() -> None:
    follower = FollowerAtWork(10, committed=7, epochs=[(4, 0)], data_loss_epoch=5)
    assert one(follower.answer_epoch(0, 0), follow.Truncate) == follow.Truncate(0, True)


def test_an_empty_log_from_before_a_loss_is_copied_anew_before_it_reports_its_end() -> None:
    follower = FollowerAtWork(16, start=16, committed=15, data_loss_epoch=5)
    assert one(follower.effects, follow.Rebuild).flaw is follow.Flaw.OUTDATED
    assert not of_kind(follower.effects, follow.Send)


def test_a_leader_that_begins_behind_the_own_epochs_leaves_only_what_is_committed() -> None:
    """Below its start it may have had other records than those of a deposed leader that are here."""
    follower = FollowerAtWork(8, committed=2, epochs=[(2, 0)])
    assert one(follower.answer_epoch(0, 8), follow.Truncate) == follow.Truncate(3, False)
    follower.written(3)
    assert isinstance(follower.sent, Fetch)


def test_after_a_loss_a_leader_that_begins_behind_the_own_epochs_leaves_nothing() -> None:
    follower = FollowerAtWork(28, committed=27, epochs=[(2, 0)], data_loss_epoch=4)
    assert one(follower.answer_epoch(0, 5), follow.Truncate) == follow.Truncate(0, True)


def test_an_empty_log_that_does_not_begin_at_0_agrees_with_everybody() -> None:
    follower = FollowerAtWork(16, start=16, committed=15)
    assert isinstance(follower.sent, Fetch) and follower.sent.log_end_offset == 16


def test_an_empty_log_forgets_epochs_in_which_nothing_was_written() -> None:
    """It led for a moment: the records it has to copy are of epochs before."""
    follower = FollowerAtWork(0, epochs=[(4, 0)])
    assert one(follower.effects, follow.Truncate) == follow.Truncate(0, False)
    follower.written(0)
    assert isinstance(follower.sent, Fetch)


def test_a_follower_that_is_about_to_be_cut_says_nothing_of_what_it_has() -> None:
    follower = FollowerAtWork(10, synced=5, epochs=[(4, 0)])
    one(follower.answer_epoch(4, 6), follow.Truncate)
    assert follower.synced(10) == []
    assert not follower.follower.agrees
    follower.log.synced_end_offset = 6
    follower.written(6)
    assert follower.follower.agrees


def test_answers_of_another_epoch_or_to_another_question_are_ignored() -> None:
    follower = FollowerAtWork(10, epochs=[(4, 0)])
    assert follower.step(follow.EpochAnswerReceived(EpochAnswer(4, 1, Verdict.OK, 4, 3), 10, SECOND)) == []
    assert follower.step(follow.EpochAnswerReceived(EpochAnswer(EPOCH, 0, Verdict.OK, 4, 3), 10, SECOND)) == []
    assert follower.follower.state is FollowerState.ASKING


# ── copying ──────────────────────────────────────────────────────────────────────────────────────


def test_what_arrives_is_written_and_the_next_is_asked_for_with_the_next_number() -> None:
    follower = FollowerAtWork()
    assert one(follower.answer(b"batches"), follow.Append).data == b"batches"
    assert not of_kind(follower.effects, follow.Send)  # one thing after the other
    follower.written(5)
    assert follower.sent == Fetch(EPOCH, 2, 5, 0, 3)


def test_numbers_go_on_where_another_role_of_this_process_stopped() -> None:
    follower = FollowerAtWork(first_number=77)
    assert follower.sent.number == 77
    assert follower.follower.next_number == 78


def test_fix_4_the_watermark_is_never_beyond_the_own_end() -> None:
    follower = FollowerAtWork()
    effects = follower.copy(5, committed=20)
    assert one(effects, follow.AdvanceHighWatermark).high_watermark == 4


def test_the_watermark_is_not_followed_before_the_logs_agree() -> None:
    follower = FollowerAtWork(10, epochs=[(4, 0)])
    assert not of_kind(follower.notice(8), follow.AdvanceHighWatermark)
    assert not of_kind(follower.answer_epoch(4, 6), follow.AdvanceHighWatermark)
    assert not of_kind(follower.notice(9), follow.AdvanceHighWatermark)
    assert one(follower.written(6), follow.AdvanceHighWatermark).high_watermark == 5


def test_a_notice_moves_the_watermark_at_once() -> None:
    follower = FollowerAtWork()
    follower.copy(5)
    assert follower.notice(3) == [follow.AdvanceHighWatermark(3)]
    assert follower.notice(2) == []


def test_a_notice_of_another_epoch_is_ignored() -> None:
    follower = FollowerAtWork()
    follower.copy(5)
    assert follower.notice(3, epoch=4) == []
    assert follower.notice(3, epoch=6) == []


def test_an_old_answer_is_ignored() -> None:
    follower = FollowerAtWork()
    follower.copy(5)
    assert follower.answer(b"the same again", number=1) == []
    assert follower.follower.state is FollowerState.FETCHING


def test_data_of_another_leader_epoch_is_not_written() -> None:
    follower = FollowerAtWork()
    assert not of_kind(follower.answer(b"batches", epoch=4), follow.Append)
    assert not of_kind(FollowerAtWork().answer(b"batches", epoch=6), follow.Append)


def test_a_log_whose_next_offset_is_deleted_goes_on_where_the_leader_begins() -> None:
    follower = FollowerAtWork()
    assert one(follower.answer(verdict=Verdict.BELOW_START, start=30, end=40), follow.Reset).offset == 30
    follower.log.log_start_offset = follower.log.synced_end_offset = 30
    follower.written(30)
    assert isinstance(follower.sent, Fetch) and follower.sent.log_end_offset == 30


def test_a_log_with_records_below_the_leaders_start_leaves_the_set_before_it_is_deleted() -> None:
    follower = FollowerAtWork()
    follower.copy(5)
    effects = follower.answer(verdict=Verdict.BELOW_START, start=30, end=40)
    assert one(effects, follow.Rebuild).flaw is follow.Flaw.OUTDATED
    assert len(effects) == 1
    assert follower.follower.state is FollowerState.STUCK
    assert follower.synced(5) == []


def test_an_empty_log_that_would_go_back_leaves_the_set_before_it_is_deleted() -> None:
    follower = FollowerAtWork(16, start=16, committed=15)
    effects = follower.answer(verdict=Verdict.BELOW_START, start=12, end=40)
    assert one(effects, follow.Rebuild).flaw is follow.Flaw.OUTDATED


def test_a_follower_that_moves_its_empty_log_reports_nothing_until_that_is_done() -> None:
    follower = FollowerAtWork()
    one(follower.answer(verdict=Verdict.BELOW_START, start=30, end=40), follow.Reset)
    assert not follower.follower.agrees and follower.synced(5) == []
    follower.log.log_start_offset = follower.log.synced_end_offset = 30
    follower.written(30)
    assert isinstance(follower.sent, Fetch) and follower.follower.agrees


def test_a_log_beyond_the_leaders_end_looks_again_where_they_part() -> None:
    follower = FollowerAtWork(10, epochs=[(4, 0)])
    follower.answer_epoch(4, 10)
    assert follower.answer(verdict=Verdict.BEYOND_END) == []
    assert isinstance(one(follower.tick(SECOND), follow.Send).message, EpochQuery)


def test_an_empty_log_beyond_the_leaders_end_leaves_the_set_before_it_is_deleted() -> None:
    follower = FollowerAtWork(16, start=16, committed=15)
    effects = follower.answer(verdict=Verdict.BEYOND_END, start=2, end=9)
    assert one(effects, follow.Rebuild).flaw is follow.Flaw.OUTDATED


# ── disks ────────────────────────────────────────────────────────────────────────────────────────


def test_a_sync_that_somebody_waits_for_is_asked_for_and_told() -> None:
    follower = FollowerAtWork(**ACK)
    assert of_kind(follower.copy(5, wants_sync=True), follow.RequestSync)
    report = one(follower.synced(5), follow.Send).message
    assert report == Fetch(EPOCH, 3, 5, 5, 3, is_fetch=False)
    assert follower.synced(5) == []  # the leader knows
    assert of_kind(follower.answer(b"more", number=2), follow.Append)  # the fetch before is still out


def test_nobody_is_told_of_a_sync_that_is_no_news() -> None:
    follower = FollowerAtWork(**ACK)
    assert not of_kind(follower.copy(5), follow.RequestSync)
    assert follower.synced(0) == []


def test_after_a_full_disk_it_looks_again_where_the_logs_part() -> None:
    follower = FollowerAtWork(10, epochs=[(4, 0)])
    follower.answer_epoch(4, 10)
    follower.answer(b"batches")
    assert follower.write_failed("no room", is_damaged=False) == []
    assert not follower.follower.agrees
    assert isinstance(one(follower.tick(SECOND), follow.Send).message, EpochQuery)


def test_a_damaged_log_is_rebuilt_and_nothing_more_is_asked_for() -> None:
    follower = FollowerAtWork()
    follower.answer(b"batches")
    effects = follower.write_failed("bad block", is_damaged=True)
    assert effects == [follow.Rebuild("bad block", follow.Flaw.DAMAGED)]
    assert follower.follower.deadline_ns is None
    assert follower.tick(60 * SECOND) == []
    assert follower.notice(3, is_beginning=True) == []


# ── a leader that is not there ───────────────────────────────────────────────────────────────────

TIMEOUT: dict[str, Any] = {
    "leader_timeout_ns": 1000 * MS,
    "max_lag_ns": 1000 * MS,
    "idle_wait_ns": 400 * MS,
    "fetch_timeout_ns": SECOND,
}


def test_a_silent_leader_is_reported_and_again_every_quarter() -> None:
    follower = FollowerAtWork(**TIMEOUT)
    assert not of_kind(follower.tick(999 * MS), follow.ReportLeader)
    assert of_kind(follower.tick(1 * MS), follow.ReportLeader)
    assert not of_kind(follower.tick(249 * MS), follow.ReportLeader)
    assert of_kind(follower.tick(1 * MS), follow.ReportLeader)


def test_a_follower_whose_disk_hangs_does_not_blame_its_leader() -> None:
    follower = FollowerAtWork(**TIMEOUT)
    follower.answer(b"batches")
    assert follower.follower.deadline_ns is None
    assert follower.tick(5000 * MS) == []
    follower.written(5)
    assert not of_kind(follower.tick(999 * MS), follow.ReportLeader)
    assert of_kind(follower.tick(1 * MS), follow.ReportLeader)


def test_a_leader_that_answers_well_is_not_reported() -> None:
    follower = FollowerAtWork(**TIMEOUT)
    for _ in range(10):
        follower.now_ns += 600 * MS
        follower.answer()
        assert not of_kind(follower.tick(0), follow.ReportLeader)


def test_a_server_that_says_it_does_not_lead_is_not_taken_for_the_leader() -> None:
    follower = FollowerAtWork(**TIMEOUT)
    follower.now_ns += 600 * MS
    follower.answer(verdict=Verdict.NOT_LEADER)
    follower.tick(300 * MS)
    follower.answer(verdict=Verdict.UNREADABLE)
    assert of_kind(follower.tick(100 * MS), follow.ReportLeader)


def test_fix_4_after_a_bad_answer_it_asks_again_soon() -> None:
    follower = FollowerAtWork(**TIMEOUT)
    assert follower.answer(verdict=Verdict.NOT_LEADER) == []
    assert follower.follower.deadline_ns == follower.now_ns + 125 * MS
    assert isinstance(one(follower.tick(125 * MS), follow.Send).message, Fetch)


def test_a_fetch_that_is_lost_is_sent_again_urgently_before_the_leader_would_be_reported() -> None:
    follower = FollowerAtWork(**TIMEOUT)
    first = follower.sent.number
    assert follower.tick(649 * MS) == []
    again = one(follower.tick(1 * MS), follow.Send).message
    assert isinstance(again, Fetch) and again.is_urgent and again.number > first


def test_must_hold_a_notice_ends_the_wait() -> None:
    follower = FollowerAtWork()
    follower.answer(verdict=Verdict.NOT_LEADER)
    assert isinstance(one(follower.notice(-1), follow.Send).message, Fetch)


def test_a_leader_that_has_just_begun_is_asked_again_at_once() -> None:
    follower = FollowerAtWork()
    assert isinstance(one(follower.notice(-1, is_beginning=True), follow.Send).message, Fetch)


def test_a_line_that_is_back_is_used_at_once() -> None:
    follower = FollowerAtWork()
    again = one(follower.step(follow.FollowerReconnected(follower.now_ns)), follow.Send).message
    assert isinstance(again, Fetch) and again.is_urgent
    follower.answer(b"batches")
    assert follower.step(follow.FollowerReconnected(follower.now_ns)) == []
