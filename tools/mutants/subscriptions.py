"""Planted bugs of subscriptions on the server: what is read for clients, held for them, and given back."""

from __future__ import annotations

from typing import Final

from tools.mutants.mutant import Mutant

SUBSCRIPTION: Final = "src/bascule/readers/subscription.py"

HELD: Final = "tests/unit/readers/test_held_slices.py"

MUTANTS: Final = (
    Mutant(
        "batches dropped to save memory are not read again",
        SUBSCRIPTION,
        "                self._reader.next_offset = self._stream.next_offset\n",
        "",
        f"{HELD}::test_a_subscriber_whose_batches_are_dropped_to_save_memory_misses_and_repeats_nothing",
    ),
    Mutant(
        "dropped batches are read again from one message earlier",
        SUBSCRIPTION,
        "                self._reader.next_offset = self._stream.next_offset\n",
        "                self._reader.next_offset = self._stream.next_offset - 1\n",
        f"{HELD}::test_a_subscriber_whose_batches_are_dropped_to_save_memory_misses_and_repeats_nothing",
    ),
    Mutant(
        "dropped batches stay counted",
        SUBSCRIPTION,
        "                self._stream.unload()\n                self._release()\n",
        "                self._stream.unload()\n",
        f"{HELD}::test_a_subscriber_whose_batches_are_dropped_to_save_memory_misses_and_repeats_nothing",
    ),
    Mutant(
        "nothing is dropped when memory is short",
        SUBSCRIPTION,
        "            if self._held.is_full:\n",
        "            if False:\n",
        f"{HELD}::test_a_subscriber_whose_batches_are_dropped_to_save_memory_misses_and_repeats_nothing",
    ),
    Mutant(
        "batches are dropped although there is memory",
        SUBSCRIPTION,
        "            if self._held.is_full:\n",
        "            if True:\n",
        f"{HELD}::test_batches_of_a_slow_client_are_kept_and_counted_while_there_is_memory",
    ),
    Mutant(
        "delivered batches stay counted",
        SUBSCRIPTION,
        "            return False\n        self._release()\n        if result == outcome.DAMAGED",
        "            return False\n        if result == outcome.DAMAGED",
        f"{HELD}::test_batches_of_a_slow_client_are_kept_and_counted_while_there_is_memory",
    ),
    Mutant(
        "released bytes are released again",
        SUBSCRIPTION,
        "        self._held.bytes -= self._held_bytes\n        self._held_bytes = 0\n",
        "        self._held.bytes -= self._held_bytes\n",
        f"{HELD}::test_a_subscription_that_the_server_ends_gives_back_what_was_held_for_it",
    ),
    Mutant(
        "memory is short at the limit, not beyond it",
        SUBSCRIPTION,
        "return self.bytes > self.bytes_max",
        "return self.bytes >= self.bytes_max",
        f"{HELD}::test_memory_is_short_when_all_subscriptions_together_hold_more_than_the_limit",
    ),
    Mutant(
        "a client that disconnects leaves held bytes behind",
        SUBSCRIPTION,
        "            self._patience.cancel()\n        self._release()\n",
        "            self._patience.cancel()\n",
        f"{HELD}::test_a_client_that_disconnects_gives_back_what_was_held_for_it",
    ),
    Mutant(
        "a subscription that the server ends leaves held bytes behind",
        SUBSCRIPTION,
        "            self._stream.unload()\n            self._release()\n            self._stream.finish",
        "            self._stream.unload()\n            self._stream.finish",
        f"{HELD}::test_a_subscription_that_the_server_ends_gives_back_what_was_held_for_it",
    ),
    Mutant(
        "a stop offset is exclusive",
        SUBSCRIPTION,
        "min(found.end_offset, self._stop_offset + 1)",
        "min(found.end_offset, self._stop_offset)",
        f"{HELD}::test_a_stop_offset_holds_when_batches_are_dropped_and_read_again",
    ),
    Mutant(
        "a stop offset in a batch does not stop",
        SUBSCRIPTION,
        "found.end_offset if self._stop_offset is None else min(found.end_offset, self._stop_offset + 1)",
        "found.end_offset",
        f"{HELD}::test_a_stop_offset_holds_when_batches_are_dropped_and_read_again",
    ),
)
