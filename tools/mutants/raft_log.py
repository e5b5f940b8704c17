"""Planted bugs of what Raft keeps: snapshots, sessions, messages and the durable log."""

from __future__ import annotations

from typing import Final

from tools.mutants.mutant import Mutant

CORE: Final = "src/bascule/raft/core"
SHELL: Final = "src/bascule/raft/disk"

SNAPSHOTS: Final = "tests/unit/raft/test_raft_snapshots.py"
SESSIONS: Final = "tests/unit/raft/test_raft_sessions.py"
MESSAGES: Final = "tests/property/raft/test_raft_messages.py"
WAL: Final = "tests/unit/raft/test_raft_wal.py"
CRASHES: Final = "tests/property/raft/test_raft_wal_crashes.py"

MUTANTS: Final = (
    # ── snapshots ────────────────────────────────────────────────────────────────────────────────
    Mutant(
        "a snapshot is taken for the log without a look at its term",
        f"{CORE}/follower.py",
        "if state.log.term(snapshot.index) == snapshot.term:",
        "if state.log.term(snapshot.index) is not None:",
        f"{SNAPSHOTS}::test_a_snapshot_replaces_a_log_that_differs_at_its_index",
    ),
    Mutant(
        "a snapshot that was overtaken is installed",
        f"{CORE}/follower.py",
        "    if chunk.index <= state.commit_index:\n",
        "    if chunk.index <= state.snapshot.index:\n",
        f"{SNAPSHOTS}::test_a_snapshot_that_appends_have_overtaken_changes_nothing",
    ),
    Mutant(
        "entries are applied again behind an installed snapshot",
        f"{CORE}/follower.py",
        "    state.applied_index = snapshot.index\n",
        "",
        f"{SNAPSHOTS}::test_a_snapshot_replaces_a_log_that_differs_at_its_index",
    ),
    Mutant(
        "a snapshot carries the latest membership",
        f"{CORE}/requests.py",
        "state.snapshot = RaftSnapshot(event.index, term, state.memberships.at(event.index), event.data)",
        "state.snapshot = RaftSnapshot(event.index, term, state.membership, event.data)",
        f"{SNAPSHOTS}::test_a_snapshot_carries_the_membership_of_its_index_not_a_later_one",
    ),
    Mutant(
        "chunks of two leaders are mixed",
        f"{CORE}/follower.py",
        "if state.incoming is None or not state.incoming.is_of(chunk):",
        "if state.incoming is None:",
        f"{SNAPSHOTS}::test_chunks_of_two_leaders_are_not_mixed",
    ),
    Mutant(
        "a lost chunk is never repeated",
        f"{CORE}/leader.py",
        "            if progress.quiet_ticks >= state.options.election_ticks:\n",
        "            if False:\n",
        f"{SNAPSHOTS}::test_a_lost_chunk_or_answer_is_repeated",
    ),
    Mutant(
        "a snapshot is sent for ever when another was taken meanwhile",
        f"{CORE}/leader.py",
        "progress.match_index >= min(progress.snapshot.index, state.log.offset):",
        "progress.match_index >= state.log.offset:",
        f"{SNAPSHOTS}::test_the_snapshot_being_sent_stays_the_same_while_others_are_taken",
    ),
    # ── sessions and messages ────────────────────────────────────────────────────────────────────
    Mutant(
        "a retry is applied again",
        f"{CORE}/sessions.py",
        "if entry.sequence in session.results:",
        "if False:",
        f"{SESSIONS}::test_a_retry_is_applied_once_and_gets_the_result_it_had",
    ),
    Mutant(
        "what is too old to be remembered is applied",
        f"{CORE}/sessions.py",
        "if entry.sequence <= session.highest - self._window:",
        "if False:",
        f"{SESSIONS}::test_a_number_too_old_to_be_remembered_is_not_applied",
    ),
    Mutant(
        "a session that has expired begins anew",
        f"{CORE}/sessions.py",
        "            return Applied(ApplyOutcome.SESSION_EXPIRED)\n",
        "            session = _Session()\n",
        f"{SESSIONS}::test_a_session_that_is_unknown_applies_nothing",
    ),
    Mutant(
        "snapshots forget the sessions",
        f"{CORE}/sessions.py",
        "        self._sessions = sessions\n",
        "        self._sessions = {}\n",
        f"{SESSIONS}::test_a_snapshot_holds_sessions_and_machine",
    ),
    Mutant(
        "messages of another cluster are taken",
        f"{CORE}/model/message_codec.py",
        "if (other := reader.string()) != cluster:",
        "if (other := reader.string()) is None:",
        f"{MESSAGES}::test_a_message_of_another_cluster_is_refused",
    ),
    Mutant(
        "entries that do not follow each other are taken",
        f"{CORE}/model/message_codec.py",
        "if entry.index != index + 1 or entry.term < term:",
        "if entry.term < term:",
        f"{MESSAGES}::test_fields_that_contradict_each_other_are_refused",
    ),
    # ── the durable log ──────────────────────────────────────────────────────────────────────────
    Mutant(
        "the vote is not synced",
        f"{SHELL}/superblock.py",
        "            self._disk.write(handle, data, 0)\n            self._disk.sync(handle)\n",
        "            self._disk.write(handle, data, 0)\n",
        f"{WAL}::test_everything_is_on_the_platter_when_save_returns",
    ),
    Mutant(
        "entries are not synced",
        f"{SHELL}/wal.py",
        "        self._disk.write(self._handle, frame, segment.size_bytes)\n        self._disk.sync(self._handle)\n",
        "        self._disk.write(self._handle, frame, segment.size_bytes)\n",
        f"{WAL}::test_everything_is_on_the_platter_when_save_returns",
    ),
    Mutant(
        "a snapshot is named before it is durable",
        f"{SHELL}/snapshot_file.py",
        "        disk.write(handle, data, 0)\n        disk.sync(handle)\n",
        "        disk.write(handle, data, 0)\n",
        f"{WAL}::test_everything_is_on_the_platter_when_save_returns",
    ),
    Mutant(
        "the names of new files are not synced",
        f"{SHELL}/wal.py",
        "        crc = write_snapshot(self._disk, self._directory, snapshot)\n"
        "        self._disk.sync_directory(self._directory)\n",
        "        crc = write_snapshot(self._disk, self._directory, snapshot)\n",
        f"{WAL}::test_everything_is_on_the_platter_when_save_returns",
    ),
    Mutant(
        "both copies of the state are written before either is synced",
        f"{SHELL}/superblock.py",
        "        for handle in self._handles:\n"
        "            self._disk.write(handle, data, 0)\n"
        "            self._disk.sync(handle)\n",
        "        for handle in self._handles:\n"
        "            self._disk.write(handle, data, 0)\n"
        "        for handle in self._handles:\n"
        "            self._disk.sync(handle)\n",
        f"{CRASHES}::test_power_loss_at_any_operation_loses_nothing_that_was_saved",
    ),
    Mutant(
        "files are removed before the superblock no longer names them",
        f"{SHELL}/wal.py",
        "        before = self._superblock\n        crc =",
        "        before = self._superblock\n"
        "        for segment in self._segments[:first]:\n"
        "            self._disk.remove(self._path(segment.number))\n"
        "        crc =",
        f"{CRASHES}::test_power_loss_at_any_operation_loses_nothing_that_was_saved",
    ),
    Mutant(
        "an installed snapshot keeps the old log",
        f"{SHELL}/wal.py",
        "self._adopt(snapshot, first=len(self._segments) - 1)",
        "self._adopt(snapshot, first=0)",
        f"{WAL}::test_an_installed_snapshot_replaces_the_log",
    ),
    Mutant(
        "compaction drops one segment too many",
        f"{SHELL}/wal.py",
        "> snapshot.index + 1:\n                break",
        "> snapshot.index + 9:\n                break",
        f"{CRASHES}::test_power_loss_at_any_operation_loses_nothing_that_was_saved",
    ),
    Mutant(
        "a damaged frame in the middle is taken for a torn tail",
        f"{SHELL}/frames.py",
        "if not is_last or _is_followed(data, position, number):",
        "if False:",
        f"{WAL}::test_every_flipped_byte_is_an_error_or_a_cut_tail_and_never_another_state",
    ),
    Mutant(
        "checksums are not checked",
        f"{SHELL}/frames.py",
        "if length < _HEADER.size or end > len(data) or crc32c(data[position + 4 : end]) != crc:",
        "if length < _HEADER.size or end > len(data):",
        f"{WAL}::test_every_flipped_byte_is_an_error_or_a_cut_tail_and_never_another_state",
    ),
    Mutant(
        "a lost state begins anew",
        f"{SHELL}/superblock.py",
        '    if rest[:9] != b"%08x\\n" % crc32c(line):\n        return None\n',
        "",
        f"{WAL}::test_every_flipped_byte_is_an_error_or_a_cut_tail_and_never_another_state",
    ),
    Mutant(
        "a torn tail is not cut",
        f"{SHELL}/opening.py",
        "            disk.truncate(handle, scanned.whole_bytes)\n",
        "            pass\n",
        f"{WAL}::test_garbage_behind_the_log_is_cut",
    ),
    Mutant(
        "what was only written is believed without a sync",
        f"{SHELL}/opening.py",
        "            disk.truncate(handle, scanned.whole_bytes)\n        disk.sync(handle)\n",
        "            disk.truncate(handle, scanned.whole_bytes)\n",
        f"{WAL}::test_what_was_only_written_is_synced_before_it_is_believed",
    ),
    Mutant(
        "a hole in the log is not noticed",
        f"{SHELL}/opening.py",
        "if entry.index > expected + 1:",
        "if False:",
        f"{WAL}::test_a_hole_in_the_log_stops_the_server",
    ),
    Mutant(
        "a state older than the log is believed",
        f"{SHELL}/opening.py",
        "if entry.term > self._superblock.term:",
        "if False:",
        f"{WAL}::test_a_state_older_than_the_log_stops_the_server",
    ),
    Mutant(
        "a directory of another cluster is used",
        f"{SHELL}/opening.py",
        "        if found != wanted:\n",
        "        if False:\n",
        f"{WAL}::test_a_directory_of_another_cluster_or_server_is_refused",
    ),
    Mutant(
        "a failed write is forgotten",
        f"{SHELL}/wal.py",
        "        self._is_usable = False\n        entries: list[Entry] = []\n",
        "        entries: list[Entry] = []\n",
        f"{WAL}::test_after_a_failed_write_nothing_more_is_saved",
    ),
)
