"""Planted bugs of the memory of ingest's kernels: leaks, and memory with two owners."""

from __future__ import annotations

from typing import Final

from tools.mutants.mutant import Mutant

SINK: Final = "src/bascule/kernels/ingest/sink.pyx"
POOL: Final = "src/bascule/kernels/batches/pool.pyx"

MEMORY: Final = "tests/parity/ingest/test_sink_memory.py"
ENDS: Final = f"{MEMORY}::test_a_sink_that_ends_has_given_back_its_memory"
REUSES: Final = f"{MEMORY}::test_a_pool_does_not_grow_with_the_number_of_sinks"

MUTANTS: Final = (
    Mutant(
        "a sink that ends leaks its full batches",
        SINK,
        "            free_memory(&self.full[index])\n        free(self.full)\n",
        "            pass\n        free(self.full)\n",
        f"{ENDS}[ends_with_full_batches_and_one_that_fills]",
    ),
    Mutant(
        "a sink that ends leaks its list of full batches",
        SINK,
        "        free(self.full)\n",
        "",
        f"{ENDS}[ends_with_batches_that_were_released]",
    ),
    Mutant(
        "a sink that ends leaks the acks of the batch that fills",
        SINK,
        "        free(self.current.entries)\n",
        "",
        f"{ENDS}[ends_with_a_batch_that_fills]",
    ),
    Mutant(
        "a sink that ends leaks the inboxes of the batch that fills",
        SINK,
        "        free(self.current.texts)\n",
        "",
        f"{ENDS}[ends_with_a_batch_that_fills]",
    ),
    Mutant(
        "a sink that ends leaks the messages that it holds",
        SINK,
        "        free(self.current.texts)\n        free(self.held.data)\n",
        "        free(self.current.texts)\n",
        f"{ENDS}[ends_with_messages_held_for_producers]",
    ),
    Mutant(
        "a sink that ends leaks the hashes that it has noted",
        SINK,
        "        free(self.held.data)\n        free(self.noted.hashes)\n",
        "        free(self.held.data)\n",
        f"{ENDS}[ends_during_a_hand_over]",
    ),
    Mutant(
        "a sink that ends leaks its table of copies",
        SINK,
        "        free(self.noted.hashes)\n        forget_all(&self.copies)\n\n",
        "        free(self.noted.hashes)\n\n",
        f"{ENDS}[hands_over]",
    ),
    Mutant(
        "held messages leak when they are accepted",
        SINK,
        "                self.refuse(&message, NULL, error)\n        free(held.data)\n",
        "                self.refuse(&message, NULL, error)\n",
        f"{ENDS}[learns_producers]",
    ),
    Mutant(
        "messages that were accepted are freed by the sink again",
        SINK,
        "        memset(&self.held, 0, sizeof(HeldMessages))\n        while at < held.data + held.size:\n",
        "        while at < held.data + held.size:\n",
        f"{ENDS}[forgets_producers]",
    ),
    Mutant(
        "messages held in a hand-over leak when they are stored",
        SINK,
        "            self.receive(&message)\n        free(held.data)\n",
        "            self.receive(&message)\n",
        f"{ENDS}[goes_on_after_a_hand_over]",
    ),
    Mutant(
        "messages that a sink drops leak",
        SINK,
        "        self.forget_copies()\n        free(self.held.data)\n",
        "        self.forget_copies()\n",
        f"{ENDS}[drops_what_it_has_held]",
    ),
    Mutant(
        "messages that a sink drops are freed again",
        SINK,
        "        free(self.held.data)\n        memset(&self.held, 0, sizeof(HeldMessages))\n\n    def take_over",
        "        free(self.held.data)\n\n    def take_over",
        f"{ENDS}[drops_what_it_has_held]",
    ),
    Mutant(
        "messages that do not fit leak",
        SINK,
        "                free(self.held.data)\n                memset",
        "                memset",
        f"{ENDS}[holds_too_much]",
    ),
    Mutant(
        "noted hashes leak at the end of a hand-over",
        SINK,
        "        self.is_watching = self.copies.missing > 0\n        free(self.noted.hashes)\n",
        "        self.is_watching = self.copies.missing > 0\n",
        f"{ENDS}[goes_on_after_a_hand_over]",
    ),
    Mutant(
        "a batch that nothing releases leaks",
        SINK,
        "        free_memory(&self.collected)\n",
        "        pass\n",
        f"{ENDS}[ends_with_batches_that_were_taken]",
    ),
    Mutant(
        "released records are not given to the pool",
        SINK,
        "        self.sink.pool.builder_back(builder, &memory)\n        self.sink.pool.give_back(&memory)\n",
        "        self.sink.pool.builder_back(builder, &memory)\n",
        f"{ENDS}[ends_with_batches_whose_records_alone_were_released]",
    ),
    Mutant(
        "a pool that ends leaks its spare memory",
        POOL,
        "            free_memory(&self.spare[index])\n        free(self.spare)\n",
        "            pass\n        free(self.spare)\n",
        f"{ENDS}[ends_with_batches_that_were_released]",
    ),
    Mutant(
        "a pool that ends leaks its list of spare memory",
        POOL,
        "        free(self.spare)\n",
        "",
        f"{ENDS}[ends_with_batches_that_were_released]",
    ),
    Mutant(
        "a pool that ends leaks its room for views of headers",
        POOL,
        "        free(self.headers)\n",
        "",
        f"{ENDS}[ends_with_a_batch_that_fills]",
    ),
    Mutant(
        "a pool that ends leaks its room for encoded headers",
        POOL,
        "        free(self.encoded)\n",
        "",
        f"{ENDS}[learns_producers]",
    ),
    Mutant(
        "memory stays in the pool after it was taken",
        POOL,
        "            self.spare_count -= 1\n            collected[0] = self.spare[self.spare_count]\n",
        "            collected[0] = self.spare[self.spare_count - 1]\n",
        f"{REUSES}[ends_with_batches_that_were_released]",
    ),
    Mutant(
        "memory beyond the pool's limit leaks",
        POOL,
        "            free_memory(collected)\n            return\n        if self.spare_count and",
        "            return\n        if self.spare_count and",
        f"{MEMORY}::test_a_pool_keeps_no_more_than_its_limit",
    ),
    Mutant(
        "a pool keeps all memory",
        POOL,
        "        if memory == 0 or memory > self.bytes_max - self.bytes_kept:\n",
        "        if memory == 0:\n",
        f"{MEMORY}::test_a_pool_keeps_no_more_than_its_limit",
    ),
)
