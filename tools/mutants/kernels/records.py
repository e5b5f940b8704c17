"""Planted bugs of the kernels that read and write records: producers, compaction and delivery."""

from __future__ import annotations

from typing import Final

from tools.mutants.mutant import Mutant

PRODUCERS: Final = "src/bascule/kernels/records/producers.pyx"
KEYMAP: Final = "src/bascule/kernels/records/keymap.pyx"
DELIVERY: Final = "src/bascule/kernels/calls/delivery.pyx"

TABLE: Final = "tests/parity/records/test_producers_parity.py"
MAP: Final = "tests/parity/records/test_keymap_parity.py"
DELIVERED: Final = "tests/parity/calls/test_delivery_parity.py"

MUTANTS: Final = (
    Mutant(
        "a producer may begin with any sequence",
        PRODUCERS,
        "return VERDICT_NEW if view.sequence == 0 else VERDICT_OUT_OF_SEQUENCE",
        "return VERDICT_NEW",
        f"{TABLE}::test_the_table_judges_and_remembers_as_the_twin_does",
    ),
    Mutant(
        "an older epoch is not fenced",
        PRODUCERS,
        "        if view.epoch < producer.epoch:\n            return VERDICT_FENCED\n",
        "",
        f"{TABLE}::test_the_table_judges_and_remembers_as_the_twin_does",
    ),
    Mutant(
        "a gap in a sequence is accepted",
        PRODUCERS,
        "        if view.sequence > producer.last_sequence:\n            return VERDICT_OUT_OF_SEQUENCE\n",
        "        if view.sequence > producer.last_sequence:\n            return VERDICT_NEW\n",
        f"{TABLE}::test_the_table_judges_and_remembers_as_the_twin_does",
    ),
    Mutant(
        "a duplicate has the offset of its neighbour",
        PRODUCERS,
        "offset[0] = at_most[0] = run.offset + (view.sequence - run.sequence)",
        "offset[0] = at_most[0] = run.offset + (view.sequence - run.sequence) + 1",
        f"{TABLE}::test_the_table_judges_and_remembers_as_the_twin_does",
    ),
    Mutant(
        "the hash of a key ignores its length",
        KEYMAP,
        "word = <uint64_t> (size & 0xFF) << 56",
        "word = 0",
        f"{MAP}::test_siphash_gives_the_published_vectors",
    ),
    Mutant(
        "a map keeps the first offset of a key",
        KEYMAP,
        "        if <uint64_t> offset + 1 > slot.mark:\n",
        "        if slot.mark == 0:\n",
        f"{MAP}::test_a_map_is_a_dict_of_the_highest_offsets",
    ),
    Mutant(
        "a map keeps the last offset that was put, not the highest",
        KEYMAP,
        "        if <uint64_t> offset + 1 > slot.mark:\n",
        "        if True:\n",
        f"{MAP}::test_a_map_is_a_dict_of_the_highest_offsets",
    ),
    Mutant(
        "a full map accepts new keys",
        KEYMAP,
        "            if self.used >= self.used_max:\n",
        "            if self.used > self.used_max:\n",
        f"{MAP}::test_a_full_map_refuses_new_keys_and_still_knows_the_others",
    ),
    Mutant(
        "messages before the start of a subscription are delivered",
        DELIVERY,
        "            if record.offset >= cursor.next_offset:\n",
        "            if True:\n",
        f"{DELIVERED}::test_good_batches",
    ),
    Mutant(
        "messages after the end of a subscription are delivered",
        DELIVERY,
        "            if record.offset >= end_offset:\n                return DELIVERED_END\n",
        "",
        f"{DELIVERED}::test_good_batches",
    ),
    Mutant(
        "a delivery that has no room continues with the next message",
        DELIVERY,
        "                    return DELIVERED_BUDGET\n",
        "                    cursor.next_offset = record.offset + 1\n                    return DELIVERED_BUDGET\n",
        f"{DELIVERED}::test_good_batches",
    ),
    Mutant(
        "the subject of the first message is that of all",
        DELIVERY,
        "            and memcmp(record.subject, self.subject, record.subject_size) == 0\n",
        "",
        f"{DELIVERED}::test_subjects_may_change_from_record_to_record",
    ),
    Mutant(
        "a tombstone is delivered as an empty value",
        DELIVERY,
        "        if not record.flags & HAS_VALUE:\n            write_header(out,",
        "        if False:\n            write_header(out,",
        f"{DELIVERED}::test_a_record_without_a_value_has_a_header_that_says_so",
    ),
    Mutant(
        "publishers may set the headers of the server",
        DELIVERY,
        "        if not is_ours(name, name_size):\n            out = write_header",
        "        if True:\n            out = write_header",
        f"{DELIVERED}::test_subject_and_reply_are_the_servers",
    ),
)
