"""Planted bugs of the client's publishers: which messages are sent again, in which order, and how they end."""

from __future__ import annotations

from typing import Final

from tools.mutants.mutant import Mutant

LANE: Final = "src/bascule/client/publish/lane.py"
NUMBERING: Final = "src/bascule/client/publish/numbering.py"
RULE: Final = "src/bascule/client/publish/resend_rule.py"
PARTITIONER: Final = "src/bascule/client/publish/partitioner.py"
OPTIONS: Final = "src/bascule/client/connection/options.py"

LANES: Final = "tests/unit/client/test_publish_lanes.py"
VALUES: Final = "tests/client/connection/test_client_options.py"

MUTANTS: Final = (
    # ── which messages ───────────────────────────────────────────────────────────────────────────
    Mutant(
        "messages that may be stored are sent again by default",
        RULE,
        "    unknown: bool = False\n",
        "    unknown: bool = True\n",
        f"{LANES}::test_which_messages_are_sent_again",
    ),
    Mutant(
        "a message that expects an offset is sent again",
        RULE,
        " and expected_offset < 0",
        "",
        f"{LANES}::test_which_messages_are_sent_again",
    ),
    Mutant(
        "refused messages are sent again",
        RULE,
        "return self.unknown and isinstance(error, OutcomeUnknown) and expected_offset < 0",
        "return self.unknown and expected_offset < 0",
        f"{LANES}::test_which_messages_are_sent_again",
    ),
    Mutant(
        "messages that were not stored are always sent again",
        RULE,
        "            return self.not_stored\n",
        "            return True\n",
        f"{LANES}::test_which_messages_are_sent_again",
    ),
    # ── order and endings ────────────────────────────────────────────────────────────────────────
    Mutant(
        "a newer message overtakes those that are sent again",
        LANE,
        "if route is None or self._again or self._lone",
        "if route is None or self._lone",
        f"{LANES}::test_the_oldest_is_sent_again_first_whatever_failed_first",
    ),
    Mutant(
        "messages are sent again in the order of their failures",
        LANE,
        "        heapq.heappush(self._again, (parcel.sequence, parcel))  # sequences",
        "        self._again.append((parcel.sequence, parcel))  # sequences",
        f"{LANES}::test_the_oldest_is_sent_again_first_whatever_failed_first",
    ),
    Mutant(
        "the failure of an earlier attempt counts",
        LANE,
        "if parcel.is_settled or parcel.carrier is not carrier:",
        "if parcel.is_settled:",
        f"{LANES}::test_the_failure_of_an_earlier_attempt_does_not_count",
    ),
    Mutant(
        "a message that may be stored is reported as not stored",
        LANE,
        "        if parcel.is_in_doubt and not isinstance(error, OutcomeUnknown):\n",
        "        if False:\n",
        f"{LANES}::test_a_message_that_may_be_stored_ends_as_an_unknown_outcome",
    ),
    Mutant(
        "a later refusal removes the doubt",
        LANE,
        "parcel.is_in_doubt |= isinstance(error, OutcomeUnknown)",
        "parcel.is_in_doubt = isinstance(error, OutcomeUnknown)",
        f"{LANES}::test_a_message_that_may_be_stored_ends_as_an_unknown_outcome",
    ),
    Mutant(
        "messages that were to be sent again get no answer at the end",
        LANE,
        "            self._give_up(parcel)\n        self._again.clear()\n",
        "        self._again.clear()\n",
        f"{LANES}::test_closing_leaves_no_message_without_an_answer",
    ),
    Mutant(
        "failures are not reported to the publisher",
        LANE,
        "        self._engine.on_failure(error)\n",
        "",
        f"{LANES}::test_a_message_that_may_be_stored_ends_as_an_unknown_outcome",
    ),
    # ── numbers ──────────────────────────────────────────────────────────────────────────────────
    Mutant(
        "numbered messages are sent again before all answers are there",
        NUMBERING,
        "        while self.in_flight:\n            await self._change()\n",
        "",
        f"{LANES}::test_a_numbered_lane_waits_for_all_answers_and_goes_back",
    ),
    Mutant(
        "a new epoch has the old numbers",
        NUMBERING,
        "        self._epoch += 1\n        self.next_sequence = 0\n",
        "        self._epoch += 1\n",
        f"{LANES}::test_a_refused_message_ends_the_epoch",
    ),
    Mutant(
        "a refusal begins no epoch",
        NUMBERING,
        "        self._epoch += 1\n",
        "",
        f"{LANES}::test_a_refused_message_ends_the_epoch",
    ),
    Mutant(
        "a message that may be stored gets a new number",
        NUMBERING,
        "            if parcel.is_in_doubt:\n",
        "            if False:\n",
        f"{LANES}::test_a_refused_message_ends_the_epoch",
    ),
    Mutant(
        "a fenced producer begins the next epoch",
        NUMBERING,
        "        if fenced is not None:\n            self._end(fenced)\n        elif",
        "        if",
        f"{LANES}::test_a_fenced_producer_publishes_nothing_more",
    ),
    Mutant(
        "a producer that has ended accepts messages",
        NUMBERING,
        "        self._engine.end_reason = error\n",
        "",
        f"{LANES}::test_a_fenced_producer_publishes_nothing_more",
    ),
    # ── partitions ───────────────────────────────────────────────────────────────────────────────
    Mutant(
        "the hash of a key is another one than in other clients",
        PARTITIONER,
        'zlib.crc32(key or b"")',
        'zlib.adler32(key or b"")',
        f"{VALUES}::test_partitioners",
    ),
    Mutant(
        "a partitioner may choose a partition that does not exist",
        PARTITIONER,
        "min(partitions - 1, INT32_MAX)",
        "INT32_MAX",
        f"{VALUES}::test_partitioners",
    ),
    Mutant(
        "partitions do not take turns",
        PARTITIONER,
        "        self._next = chosen + 1\n",
        "        self._next = chosen\n",
        f"{VALUES}::test_partitioners",
    ),
    Mutant(
        "moments lose their microseconds",
        OPTIONS,
        "(value - _UNIX_EPOCH) // timedelta(microseconds=1) * 1000",
        "int(value.timestamp()) * 1_000_000_000",
        f"{VALUES}::test_moments_are_nanoseconds_without_a_rounding_error",
    ),
    Mutant(
        "port 0 is an address",
        OPTIONS,
        "    if not 0 < int(port) <= 65_535:\n",
        "    if not 0 <= int(port) <= 65_535:\n",
        f"{VALUES}::test_what_is_no_address_is_refused_by_name",
    ),
)
