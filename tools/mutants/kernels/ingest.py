"""Planted bugs of the kernels between NATS and the log: what a sink stores, refuses, holds and counts."""

from __future__ import annotations

from typing import Final

from tools.mutants.mutant import Mutant

SINK: Final = "src/bascule/kernels/ingest/sink.pyx"
AWAITED: Final = "src/bascule/kernels/ingest/awaited.pyx"
ACCOUNT: Final = "src/bascule/kernels/memory/account.pyx"

RULES: Final = "tests/parity/ingest/test_ingest_rules.py"
ACKS: Final = "tests/parity/ingest/test_acks_rules.py"
HAND_OVER: Final = "tests/parity/ingest/test_hand_over_rules.py"
SESSIONS: Final = "tests/parity/ingest/test_awaited_parity.py"
MEMORY: Final = "tests/unit/kernels/test_connection_memory.py"

MUTANTS: Final = (
    Mutant(
        "expected offsets are not compared",
        SINK,
        "if self.concurrency_control and expected != -1 and expected != self.next_offset:",
        "if False:",
        f"{RULES}::test_offsets_are_expected_record_by_record_within_a_batch",
    ),
    Mutant(
        "expected offsets count without concurrency control",
        SINK,
        "if self.concurrency_control and expected != -1 and expected != self.next_offset:",
        "if expected != -1 and expected != self.next_offset:",
        f"{RULES}::test_without_concurrency_control_nobody_looks_at_expected_offsets",
    ),
    Mutant(
        "a readonly partition stores messages",
        SINK,
        "        if self.dropping:\n",
        "        if False:\n",
        f"{RULES}::test_a_readonly_partition_stores_nothing_and_says_so",
    ),
    Mutant(
        "a message that is too large is stored",
        SINK,
        "        if message.payload_size + message.headers_size > self.payload_bytes_max:\n",
        "        if False:\n",
        f"{RULES}::test_too_large_is_said_and_what_comes_behind_is_stored",
    ),
    Mutant(
        "batches have any number of records",
        SINK,
        "            self.builder.records >= self.batch_records_max\n",
        "            False\n",
        f"{RULES}::test_batches_are_closed_by_records_and_by_bytes",
    ),
    Mutant(
        "batches have any number of bytes",
        SINK,
        "or (self.builder.records and self.builder.size + size + RECORD_OVERHEAD_MAX > self.batch_bytes_max)",
        "or False",
        f"{RULES}::test_batches_are_closed_by_records_and_by_bytes",
    ),
    Mutant(
        "refusals collect without bound",
        SINK,
        "            self.close_current()\n        if self.begin():\n            self.note(message, view, error, NO_DUPLICATE)",
        "            pass\n        if self.begin():\n            self.note(message, view, error, NO_DUPLICATE)",
        f"{RULES}::test_refusals_alone_are_bounded_in_batches_too",
    ),
    Mutant(
        "headers of NATS win over those of the envelope",
        SINK,
        "            count = keep_last(headers, count)\n",
        "            pass\n",
        f"{RULES}::test_headers_of_the_envelope_win_over_those_of_nats",
    ),
    Mutant(
        "an ack goes to an inbox that is no subject",
        SINK,
        "        if not is_subject(view.ack_inbox, view.ack_inbox_size):\n",
        "        if False:\n",
        f"{ACKS}::test_an_inbox_that_is_no_subject_gets_no_ack",
    ),
    Mutant(
        "offsets do not count stored messages",
        SINK,
        "        self.next_offset += 1\n",
        "",
        f"{RULES}::test_offsets_are_expected_record_by_record_within_a_batch",
    ),
    # ── hand-overs ───────────────────────────────────────────────────────────────────────────────
    Mutant(
        "copies of what the leader stored are stored again",
        SINK,
        "        if self.copies.missing and is_copy(&self.copies, message):\n",
        "        if False:\n",
        f"{HAND_OVER}::test_late_copies_are_dropped_until_they_are_forgotten",
    ),
    Mutant(
        "early messages without a copy are waited for",
        SINK,
        "        forget_early(&self.copies)\n",
        "        pass\n",
        f"{HAND_OVER}::test_a_message_that_equals_an_early_one_without_a_copy_is_stored",
    ),
    Mutant(
        "held messages have no bound",
        SINK,
        "if self.held_bytes_max and self.held.size + message.payload_size + message.headers_size > self.held_bytes_max:",
        "if False:",
        f"{HAND_OVER}::test_with_more_bytes_than_allowed_everything_held_is_dropped",
    ),
    Mutant(
        "messages that do not fit are not counted as lost",
        SINK,
        "                self.lost += self.held.count + 1\n",
        "                self.lost += 1\n",
        f"{HAND_OVER}::test_with_more_bytes_than_allowed_everything_held_is_dropped",
    ),
    Mutant(
        "held messages of a replaced leader are stored",
        SINK,
        "            self.replay(error)\n",
        "            self.replay(ACK_OK)\n",
        f"{HAND_OVER}::test_held_messages_of_a_leader_that_is_replaced_are_refused",
    ),
    Mutant(
        "a malformed note is used",
        SINK,
        " or not are_held_messages(at, end - at):",
        ":",
        f"{HAND_OVER}::test_a_malformed_note_changes_nothing",
    ),
    Mutant(
        "messages of a leader that stays are dropped",
        SINK,
        "        memset(&self.held, 0, sizeof(HeldMessages))\n        self.receive_all(held)\n\n    def give_up",
        "        memset(&self.held, 0, sizeof(HeldMessages))\n        free(held.data)\n\n    def give_up",
        f"{HAND_OVER}::test_a_leader_that_stays_stores_what_it_held_in_its_order",
    ),
    # ── awaited acks ─────────────────────────────────────────────────────────────────────────────
    Mutant(
        "an ack is received as often as it comes",
        AWAITED,
        "        self.slots[index].count -= 1\n",
        "",
        f"{SESSIONS}::test_acks_that_were_overtaken_come_back_in_any_order",
    ),
    Mutant(
        "keys after a freed slot are not found",
        AWAITED,
        "                self.slots[index] = self.slots[next_index]\n                index = next_index\n",
        "                pass\n",
        f"{SESSIONS}::test_acks_that_were_overtaken_come_back_in_any_order",
    ),
    Mutant(
        "a larger table forgets its keys",
        AWAITED,
        "                self.slots[self.find(old[index].key)] = old[index]\n",
        "                pass\n",
        f"{SESSIONS}::test_many_acks_come_back_in_another_order",
    ),
    Mutant(
        "awaited acks have no bound",
        AWAITED,
        "        if self.tracked >= self.keys_max:\n",
        "        if False:\n",
        f"{SESSIONS}::test_memory_is_bounded",
    ),
    # ── memory of connections ────────────────────────────────────────────────────────────────────
    Mutant(
        "memory that is given back stays charged",
        ACCOUNT,
        "        self.used -= size\n",
        "",
        f"{MEMORY}::test_a_lost_connection_has_given_everything_back",
    ),
    Mutant(
        "memory of all connections stays charged",
        ACCOUNT,
        "            self.whole.used -= size\n",
        "            pass\n",
        f"{MEMORY}::test_a_lost_connection_has_given_everything_back",
    ),
    Mutant(
        "a connection may hold any amount",
        ACCOUNT,
        "        return self.used > self.most\n",
        "        return False\n",
        f"{MEMORY}::test_a_call_that_has_been_answered_in_part_is_reset",
    ),
    Mutant(
        "new calls are accepted by a connection without memory",
        ACCOUNT,
        "        return self.used > self.most - self.most // 4\n",
        "        return False\n",
        f"{MEMORY}::test_new_calls_are_refused_when_three_quarters_are_used",
    ),
    Mutant(
        "memory of all connections together is not charged",
        ACCOUNT,
        "            self.whole.used += size\n",
        "            pass\n",
        f"{MEMORY}::test_the_whole_is_told_when_all_connections_together_hold_too_much",
    ),
)
