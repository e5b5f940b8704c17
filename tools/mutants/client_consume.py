"""Planted bugs of the client's readers: subscriptions, members of consumer groups, and what they hand over."""

from __future__ import annotations

from typing import Final

from tools.mutants.mutant import Mutant

CONSUMER: Final = "src/bascule/client/consume/consumer.py"

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
)
