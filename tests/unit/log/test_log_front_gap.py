"""Where a log begins for who must not miss anything: what compaction took from its front is no loss, what retention took is."""

from __future__ import annotations

from bascule.log import PartitionLog
from bascule.log.cleaning.cleaner import apply_retention
from bascule.log.cleaning.compactor import compact
from tests.unit.log.log_helpers import ONE_RECORD_PER_SEGMENT, Logs, commit_all, put


def retained_from(log: PartitionLog) -> int:
    return log.durability.retention_start_offset(log.log_start_offset)


def compacted_log(logs: Logs) -> PartitionLog:
    """Nothing is left of the first three of four segments."""
    log = logs.open(segment_bytes_max=ONE_RECORD_PER_SEGMENT, compact=True)
    put(log, *((b"k", b"%d" % number) for number in range(4)))
    commit_all(log)
    compact(log)
    assert log.log_start_offset == 3
    return log


def test_what_compaction_took_from_the_front_is_no_loss(logs: Logs) -> None:
    log = compacted_log(logs)
    assert retained_from(log) == 0
    put(log, (b"k", b"again"), (b"k", b"and again"))
    commit_all(log)
    compact(log)
    assert (log.log_start_offset, retained_from(log)) == (5, 0)


def test_it_is_remembered_across_a_restart(logs: Logs) -> None:
    log = compacted_log(logs)
    log.close()
    again = PartitionLog(log.directory, log.options)
    assert (again.log_start_offset, retained_from(again)) == (3, 0)
    again.close()


def test_what_retention_took_is_a_loss(logs: Logs) -> None:
    log = logs.open(segment_bytes_max=ONE_RECORD_PER_SEGMENT, retention_records_max=2)
    put(log, *((b"k", b"%d" % number) for number in range(6)))
    commit_all(log)
    apply_retention(log)
    assert log.log_start_offset > 0
    assert retained_from(log) == log.log_start_offset


def test_retention_behind_compaction_is_a_loss_of_everything_before(logs: Logs) -> None:
    log = logs.open(segment_bytes_max=ONE_RECORD_PER_SEGMENT, compact=True, retention_records_max=2)
    put(log, *((b"k", b"%d" % number) for number in range(4)))
    commit_all(log)
    compact(log)
    assert retained_from(log) == 0
    put(log, *((b"%d" % number, b"v") for number in range(6)))
    commit_all(log)
    apply_retention(log)
    assert retained_from(log) == log.log_start_offset > 3


def test_a_log_that_lost_its_checkpoint_claims_nothing(logs: Logs) -> None:
    log = compacted_log(logs)
    log.close()
    log.pool.disk.remove(f"{log.directory}/checkpoint")
    again = PartitionLog(log.directory, log.options)
    assert (again.log_start_offset, retained_from(again)) == (3, 3)
    again.close()
