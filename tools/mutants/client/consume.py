"""Planted bugs of the client's readers: subscriptions, members of consumer groups, and what they hand over."""

from __future__ import annotations

from typing import Final

from tools.mutants.mutant import Mutant

CONSUMER: Final = "src/bascule/client/consume/consumer.py"

GROUP: Final = "src/bascule/client/consume/group.py"
POSITIONS: Final = "src/bascule/client/consume/positions.py"

CORE: Final = "tests/client/consume/test_client_group_core.py"
RANGES: Final = "tests/client/consume/test_client_positions.py"
HANDOVER: Final = "tests/client/consume/test_client_handover.py"

MUTANTS: Final = (
    Mutant(
        "the message in hand is not waited for at a rebalance",
        CONSUMER,
        "                while self._current in leaving:\n",
        "                while False:\n",
        f"{HANDOVER}::test_a_partition_is_handed_over_after_the_message_in_hand_was_processed",
    ),
    Mutant(
        "a message that is not processed in time counts as processed",
        CONSUMER,
        "            pass  # the message in hand may be processed again by the next member\n",
        "            self._came_back()\n",
        f"{HANDOVER}::test_a_message_that_is_not_processed_in_time_does_not_stop_a_handover",
    ),
    Mutant(
        "a hold is cleared before the cursor is written",
        CONSUMER,
        "        await held.reader.close()\n        if held in self._turns:\n",
        "        await held.reader.close()\n        await self._withdraw(held.place)\n        if held in self._turns:\n",
        f"{HANDOVER}::test_a_partition_is_handed_over_after_the_message_in_hand_was_processed",
    ),
    Mutant(
        "a partition that is handed over stays held",
        CONSUMER,
        "        await self._withdraw(held.place)\n        self._held.pop(held.place, None)\n",
        "        self._held.pop(held.place, None)\n",
        f"{HANDOVER}::test_a_partition_is_handed_over_after_the_message_in_hand_was_processed",
    ),
    Mutant(
        "the progress is not written when a partition is handed over",
        CONSUMER,
        "and await self._is_noted(held.place):\n                await self._write(held)\n",
        "and await self._is_noted(held.place):\n                pass\n",
        f"{HANDOVER}::test_a_partition_is_handed_over_after_the_message_in_hand_was_processed",
    ),
    # ── decisions of a member ────────────────────────────────────────────────────────────────────
    Mutant(
        "heartbeats come as seldom as the consumer timeout",
        GROUP,
        "HEARTBEAT_SHARE: Final = 0.4",
        "HEARTBEAT_SHARE: Final = 1.0",
        f"{CORE}::test_heartbeats_come_after_four_tenths_of_the_consumer_timeout",
    ),
    Mutant(
        "a new epoch of the metadata is not used",
        GROUP,
        "        self.coordinator, self.epoch = group.coordinator, group.epoch\n        return Next.HEARTBEAT",
        "        self.coordinator = group.coordinator\n        return Next.HEARTBEAT",
        f"{CORE}::test_a_refused_heartbeat_has_the_metadata_read_and_the_new_epoch_used",
    ),
    Mutant(
        "a removed member asks for ever",
        GROUP,
        "            if self._refused_with == known:\n",
        "            if False:\n",
        f"{CORE}::test_refused_with_what_the_metadata_says_means_put_out",
    ),
    Mutant(
        "one refusal is enough to join again",
        GROUP,
        "            if self._refused_with == known:\n",
        "            if True:\n",
        f"{CORE}::test_a_refused_heartbeat_has_the_metadata_read_and_the_new_epoch_used",
    ),
    Mutant(
        "refusals before an answer are remembered",
        GROUP,
        "        self._refused_with = None\n        return self.heartbeat_seconds",
        "        return self.heartbeat_seconds",
        f"{CORE}::test_refusals_with_an_answer_in_between_do_not_add_up",
    ),
    Mutant(
        "a group that is gone is not joined again",
        GROUP,
        "        if group is None:\n            return Next.JOIN\n",
        "        if group is None:\n            return Next.HEARTBEAT\n",
        f"{CORE}::test_a_group_that_is_gone_is_joined_again",
    ),
    Mutant(
        "a group without metadata is not joined again",
        GROUP,
        "        if status == Status.NOT_FOUND:\n            return Next.JOIN\n",
        "",
        f"{CORE}::test_a_group_that_is_gone_is_joined_again",
    ),
    Mutant(
        "a coordinator is reported with every heartbeat",
        GROUP,
        "now - self.answered_at > self.coordinator_timeout and not self.reported",
        "now - self.answered_at > self.coordinator_timeout",
        f"{CORE}::test_a_silent_coordinator_is_reported_once_after_its_timeout",
    ),
    Mutant(
        "a coordinator is reported at once",
        GROUP,
        "now - self.answered_at > self.coordinator_timeout and not self.reported",
        "not self.reported",
        f"{CORE}::test_a_silent_coordinator_is_reported_once_after_its_timeout",
    ),
    Mutant(
        "a new coordinator inherits the silence of the old one",
        GROUP,
        "            self.answered_at = now  # the new coordinator has the whole timeout\n",
        "",
        f"{CORE}::test_a_silent_coordinator_is_reported_once_after_its_timeout",
    ),
    Mutant(
        "a rebalance revokes partitions that stay",
        GROUP,
        "return cls(held - wanted, wanted - held)",
        "return cls(held, wanted)",
        f"{CORE}::test_only_what_moves_is_touched",
    ),
    Mutant(
        "a message counts as processed when it is delivered",
        GROUP,
        "        self.handed_out = offset\n",
        "        self.handed_out = self.done = offset\n",
        f"{CORE}::test_a_message_is_dealt_with_once_whoever_has_it_comes_back",
    ),
    Mutant(
        "a cursor is written again and again",
        GROUP,
        "return None if self.done == self.checkpointed else self.done",
        "return self.done",
        f"{CORE}::test_a_message_is_dealt_with_once_whoever_has_it_comes_back",
    ),
    # ── positions ────────────────────────────────────────────────────────────────────────────────
    Mutant(
        "a subscription continues with the last message again",
        POSITIONS,
        '"startOffset": self.last + step}',
        '"startOffset": self.last}',
        f"{RANGES}::test_reading_goes_on_behind_the_last_message",
    ),
    Mutant(
        "a reverse subscription continues forward",
        POSITIONS,
        "step = -1 if self.wanted.reverse else 1",
        "step = 1",
        f"{RANGES}::test_reading_goes_on_behind_the_last_message",
    ),
    Mutant(
        "new messages begin with the newest one",
        POSITIONS,
        "self._pin_start(newest_offset if reverse else end)",
        "self._pin_start(newest_offset)",
        f"{RANGES}::test_starts_are_pinned_before_the_first_request",
    ),
    Mutant(
        "the latest message of an empty partition has an offset below zero",
        POSITIONS,
        "self._pin_start(max(newest_offset, 0))",
        "self._pin_start(newest_offset)",
        f"{RANGES}::test_starts_are_pinned_before_the_first_request",
    ),
    Mutant(
        "an offset after the end is not pinned",
        POSITIONS,
        "self._pin_start(min(self._start, newest_offset if reverse else end))",
        "self._pin_start(self._start)",
        f"{RANGES}::test_starts_are_pinned_before_the_first_request",
    ),
    Mutant(
        "a start in the future waits for that time",
        POSITIONS,
        "    if start_position == TIMESTAMP and first > now_ns:\n",
        "    if False:\n",
        f"{RANGES}::test_a_start_in_the_future_is_the_next_message",
    ),
    Mutant(
        "a start by time begins there again after a reconnect",
        POSITIONS,
        "        if self.last is not None:\n            step",
        "        if self.last is not None and self._start_position != TIMESTAMP:\n            step",
        f"{RANGES}::test_a_start_in_the_past_is_asked_for_until_a_message_has_come",
    ),
    Mutant(
        "a stop at the latest moves with the log",
        POSITIONS,
        "            self.stop = newest_offset\n",
        "            pass\n",
        f"{RANGES}::test_a_stop_at_the_latest_is_that_of_the_first_request",
    ),
    Mutant(
        "a subscription ends one message before its stop",
        POSITIONS,
        "return self.stop is not None and self.last >= self.stop",
        "return self.stop is not None and self.last >= self.stop - 1",
        f"{RANGES}::test_a_position_is_done_with_its_last_message",
    ),
    Mutant(
        "a reverse subscription does not end at offset 0",
        POSITIONS,
        "return self.last == 0 or (",
        "return (",
        f"{RANGES}::test_reading_goes_on_behind_the_last_message",
    ),
    Mutant(
        "an empty range of an empty partition waits",
        POSITIONS,
        "            self.is_empty = True\n",
        "            pass\n",
        f"{RANGES}::test_a_range_that_holds_nothing_is_done_at_once",
    ),
    Mutant(
        "a range whose stop is before its start waits",
        POSITIONS,
        "self.is_empty = self.stop > self._start if reverse else self.stop < self._start",
        "self.is_empty = False",
        f"{RANGES}::test_a_range_that_holds_nothing_is_done_at_once",
    ),
    Mutant(
        "a stop by time becomes none",
        POSITIONS,
        "        elif self.wanted.stop_position == STOP_TIMESTAMP:\n",
        "        elif False:\n",
        f"{RANGES}::test_a_stop_by_time_stays_one",
    ),
    Mutant(
        "a stop before the start is accepted",
        POSITIONS,
        "(last > first if reverse else last < first)",
        "False",
        f"{RANGES}::test_a_position_that_makes_no_sense_is_refused_by_name",
    ),
    Mutant(
        "a stop in the future is accepted",
        POSITIONS,
        "        if moment > now_ns:\n",
        "        if False:\n",
        f"{RANGES}::test_a_position_that_makes_no_sense_is_refused_by_name",
    ),
    Mutant(
        "True is an offset",
        POSITIONS,
        "    if isinstance(start, bool) or not isinstance(start, int)",
        "    if not isinstance(start, int)",
        f"{RANGES}::test_a_position_that_makes_no_sense_is_refused_by_name",
    ),
)
