"""Planted bugs of hand-overs: what a leader does with its last messages, and what its successor stores."""

from __future__ import annotations

from typing import Final

from tools.mutants.mutant import Mutant

LEADER: Final = "src/bascule/partition/hand_over.py"
SUCCESSOR: Final = "src/bascule/partition/succession.py"
CALLS: Final = "src/bascule/partition/succession_calls.py"
INGEST: Final = "src/bascule/partition/ingest.py"
REGISTRY: Final = "src/bascule/partition/registry.py"
LEADING: Final = "src/bascule/partition/replication/leading.py"

HAND_OVER: Final = "tests/unit/partition/test_hand_over.py"
STOPPING: Final = "tests/unit/partition/test_stop_receiving.py"
SUCCESSION: Final = "tests/unit/partition/test_succession.py"

MUTANTS: Final = (
    Mutant(
        "a deposed leader sends LEADER acks",
        REGISTRY,
        "                local.leading.holds_leader_acks = True  # another server leads: LEADER acks would be false\n",
        "                pass\n",
        f"{STOPPING}::test_a_deposed_leader_sends_no_leader_acks_for_its_last_messages",
    ),
    Mutant(
        "messages of the server's own clients are not waited for",
        REGISTRY,
        "            await self._round_trip()\n        self._link.unsubscribe(local.subscription_id)\n",
        "            pass\n        self._link.unsubscribe(local.subscription_id)\n",
        f"{STOPPING}::test_a_deposed_leader_sends_no_leader_acks_for_its_last_messages",
    ),
    Mutant(
        "LEADER acks of a leader that holds them are due",
        LEADING,
        "            hands_over=self.holds_leader_acks,\n",
        "            hands_over=False,\n",
        f"{HAND_OVER}::test_leader_acks_wait_for_the_successor_while_the_partition_is_handed_over",
    ),
    Mutant(
        "LEADER acks are sent during a hand-over",
        LEADER,
        "        leading.holds_leader_acks = True\n        succession",
        "        succession",
        f"{HAND_OVER}::test_leader_acks_wait_for_the_successor_while_the_partition_is_handed_over",
    ),
    Mutant(
        "LEADER acks wait after a hand-over that failed",
        LEADER,
        "                leading.holds_leader_acks = in_doubt or not is_certain\n",
        "",
        f"{HAND_OVER}::test_leader_acks_wait_for_the_successor_while_the_partition_is_handed_over",
    ),
    Mutant(
        "messages that the successor may store are refused as not stored",
        LEADER,
        "Ack.Error.NOT_STORED if self._is_exclusive(local) else Ack.Error.UNKNOWN",
        "Ack.Error.NOT_STORED",
        f"{HAND_OVER}::test_with_a_successor_that_does_not_listen_the_outcome_is_unknown",
    ),
    Mutant(
        "a successor listens for messages that only one server receives",
        LEADER,
        "            if not self._is_exclusive(local):\n",
        "            if True:\n",
        f"{HAND_OVER}::test_messages_that_nats_sends_to_one_server_only_are_refused_as_not_stored",
    ),
    Mutant(
        "no hashes are noted",
        LEADER,
        "        local.sink.note_received(succession.key)\n",
        "",
        f"{HAND_OVER}::test_the_successor_gets_what_the_leader_did_not_store_and_no_publisher_is_answered_twice",
    ),
    Mutant(
        "no message is early",
        LEADER,
        "        succession.early = local.sink.noted_hashes\n",
        "",
        f"{HAND_OVER}::test_messages_from_before_the_successor_certainly_listens_are_early",
    ),
    Mutant(
        "the leader answers messages that it passes on",
        LEADER,
        "        if self._given_away[local] is None:\n",
        "        if True:\n",
        f"{HAND_OVER}::test_the_successor_gets_what_the_leader_did_not_store_and_no_publisher_is_answered_twice",
    ),
    Mutant(
        "the leader that has handed over stays subscribed",
        LEADER,
        "        hashes, messages = self._ingest.leave(local)\n        self._unsubscribe(local)\n",
        "        hashes, messages = self._ingest.leave(local)\n",
        f"{HAND_OVER}::test_the_successor_gets_what_the_leader_did_not_store_and_no_publisher_is_answered_twice",
    ),
    Mutant(
        "a leader that stays does not thaw",
        LEADER,
        "                self._ingest.thaw(local)\n            raise\n",
        "            raise\n",
        f"{HAND_OVER}::test_a_leader_that_stays_stores_what_arrived_meanwhile",
    ),
    Mutant(
        "a leader that stays does not cancel",
        LEADER,
        "            if succession is not None:\n                self._cancel(succession)\n            self._given_away",
        "            self._given_away",
        f"{HAND_OVER}::test_a_leader_that_stays_stores_what_arrived_meanwhile",
    ),
    Mutant(
        "a leader that was replaced after all writes what it held",
        LEADER,
        "            if local in self._stopped:  # another server leads it after all\n",
        "            if False:\n",
        f"{HAND_OVER}::test_if_the_outcome_of_the_change_is_unknown_and_another_server_leads_so_is_that_of_the_messages",
    ),
    Mutant(
        "a partition is handed over twice at a time",
        LEADER,
        "        if local in self._busy or local.sink.holds_all:\n",
        "        if False:\n",
        f"{HAND_OVER}::test_a_partition_is_handed_over_once_at_a_time",
    ),
    Mutant(
        "a frozen partition writes what arrives",
        INGEST,
        "        partition.sink.hold_all()\n",
        "",
        f"{HAND_OVER}::test_the_successor_gets_what_the_leader_did_not_store_and_no_publisher_is_answered_twice",
    ),
    Mutant(
        "messages for a sink that does not lead yet are refused",
        INGEST,
        "        if self._frozen:\n            touched = self._not_frozen(touched, now)\n",
        "",
        f"{SUCCESSION}::test_it_stores_what_the_leader_before_did_not_and_then_what_that_leader_did_not_receive",
    ),
    Mutant(
        "the successor stores messages before the note",
        SUCCESSOR,
        "        if one.local is None or one.note is None:\n            return\n",
        "        if one.local is None:\n            return\n        if one.note is None:\n"
        "            one.sink.release_held()\n            self._ingest.go_on(one.local)\n            return\n",
        f"{SUCCESSION}::test_it_stores_what_the_leader_before_did_not_and_then_what_that_leader_did_not_receive",
    ),
    Mutant(
        "the successor stores copies of what the leader stored",
        SUCCESSOR,
        "sink.take_over(note.key, data[: note.hash_bytes], note.early, data[note.hash_bytes :])",
        'sink.take_over(note.key, b"", 0, data[note.hash_bytes :])',
        f"{SUCCESSION}::test_it_stores_what_the_leader_before_did_not_and_then_what_that_leader_did_not_receive",
    ),
    Mutant(
        "the successor drops what the leader held",
        SUCCESSOR,
        "note.early, data[note.hash_bytes :])",
        'note.early, b"")',
        f"{SUCCESSION}::test_it_stores_what_the_leader_before_did_not_and_then_what_that_leader_did_not_receive",
    ),
    Mutant(
        "a note of another epoch is used",
        SUCCESSOR,
        "        if one.note.new_leader_epoch != one.local.leader_epoch:\n",
        "        if False:\n",
        f"{SUCCESSION}::test_a_note_for_another_epoch_is_not_used",
    ),
    Mutant(
        "without a note what was held is stored",
        SUCCESSOR,
        "        self._end(one)\n        one.sink.drop_held()\n        if one.local",
        "        self._end(one)\n        one.sink.release_held()\n        if one.local",
        f"{SUCCESSION}::test_without_a_note_it_goes_on_without_what_it_held",
    ),
    Mutant(
        "a cancelled successor stays subscribed",
        SUCCESSOR,
        "        self._link.unsubscribe(one.subscription_id)\n",
        "",
        f"{SUCCESSION}::test_when_the_leader_stays_or_never_leaves_it_stops_listening",
    ),
    Mutant(
        "a cancel ends a succession that has begun",
        SUCCESSOR,
        "                if one is not None and one.local is None:\n                    self._abandon(one)\n",
        "                if one is not None:\n                    self._abandon(one)\n",
        f"{SUCCESSION}::test_a_cancel_that_comes_when_it_leads_changes_nothing",
    ),
    Mutant(
        "a successor with older metadata listens",
        SUCCESSOR,
        "partition.leader_epoch != request.leader_epoch or self._server_id",
        "self._server_id",
        f"{SUCCESSION}::test_it_does_not_listen_for_what_it_cannot_take_over",
    ),
    Mutant(
        "only the first part of a note is sent",
        CALLS,
        "        for part in range(parts):\n",
        "        for part in range(1):\n",
        f"{SUCCESSION}::test_it_stores_what_the_leader_before_did_not_and_then_what_that_leader_did_not_receive",
    ),
)
