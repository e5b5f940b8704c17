"""The key map against a dict, and compaction against its rules applied record by record."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from array import array
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bascule.kernels.records import keymap
from bascule.kernels.records import records as kernel
from bascule.kernels.records.keymap import KeyMap, sift, siphash128
from tests.parity.inputs.compare import SECRET, agree_on_compaction, maps
from tests.parity.inputs.generate import Log, any_bytes, damage, log
from tests.parity.inputs.strategies import RANDOMS, examples
from tests.parity.records.test_twins import SIPHASH_VECTORS
from tests.parity.twins import twin_records, twin_siphash
from tests.parity.twins.twin_format import OFFSET_MAX

# ── the hash ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("size", SIPHASH_VECTORS)
def test_siphash_gives_the_published_vectors(size: int) -> None:
    assert siphash128(bytes(range(size)), bytes(range(16))).hex() == SIPHASH_VECTORS[size]


def test_siphash_agrees_for_all_lengths_and_alignments() -> None:
    rng = random.Random(1)
    content = memoryview(rng.randbytes(300))
    for size in (*range(70), 255, 256, 257):
        for shift in range(8):
            piece = content[shift : shift + size]
            secret = rng.randbytes(16)
            assert siphash128(piece, secret) == twin_siphash.siphash128(secret, bytes(piece))


@pytest.mark.parametrize("secret", [b"", b"x" * 15, b"x" * 17])
def test_a_secret_has_sixteen_bytes(secret: bytes) -> None:
    with pytest.raises(ValueError, match="16"):
        siphash128(b"", secret)
    with pytest.raises(ValueError, match="16"):
        KeyMap(1000, secret)


# ── the map ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("bytes_max", [96, 97, 100, 127, 128, 200, 1000, 1 << 16, 10**6 + 7])
def test_a_map_stays_in_its_memory_and_a_quarter_stays_free(bytes_max: int) -> None:
    keys = KeyMap(bytes_max, SECRET)
    assert 0 < keys.nbytes <= bytes_max
    assert keys.capacity >= 1
    # a slot holds at least a hash of 16 bytes and an offset of 8
    assert 4 * keys.capacity <= 3 * (keys.nbytes // 24)


@pytest.mark.parametrize("bytes_max", [-1, 0, 1, 23, 24, 31])
def test_a_map_that_holds_nothing_is_refused(bytes_max: int) -> None:
    with pytest.raises(ValueError, match="key map"):
        KeyMap(bytes_max, SECRET)


@examples(100)
@given(st.lists(st.tuples(st.binary(max_size=3), st.integers(0, 50) | st.integers(0, OFFSET_MAX)), max_size=80))
def test_a_map_is_a_dict_of_the_highest_offsets(puts: list[tuple[bytes, int]]) -> None:
    keys = KeyMap(100_000, SECRET)
    known: dict[bytes, int] = {}
    for key, offset in puts:
        assert keys.get(key) == known.get(key, -1)
        assert keys.put(key, offset)
        known[key] = max(known.get(key, -1), offset)
        assert keys.get(key) == known[key]
    assert keys.count == len(known)
    assert {key: keys.get(key) for key in known} == known


@pytest.mark.parametrize("bytes_max", [96, 120, 300, 1000, 5000, 50_000])
def test_a_full_map_refuses_new_keys_and_still_knows_the_others(bytes_max: int) -> None:
    keys = KeyMap(bytes_max, SECRET)
    for index in range(keys.capacity):
        assert keys.put(b"key-%d" % index, index)
    assert keys.count == keys.capacity
    for index in range(keys.capacity, 2 * keys.capacity + 3):
        assert not keys.put(b"key-%d" % index, index)
        assert keys.get(b"key-%d" % index) == -1
    assert keys.count == keys.capacity
    for index in range(keys.capacity):
        assert keys.get(b"key-%d" % index) == index
        assert keys.put(b"key-%d" % index, 10**6 + index)
        assert keys.put(b"key-%d" % index, 3)
        assert keys.get(b"key-%d" % index) == 10**6 + index


def test_a_map_knows_the_first_and_the_last_offset_there_can_be() -> None:
    keys = KeyMap(1000, SECRET)
    for offset in (0, OFFSET_MAX - 1, OFFSET_MAX):
        assert keys.put(b"%d" % offset, offset)
        assert keys.get(b"%d" % offset) == offset


@pytest.mark.parametrize("offset", [-1, -(2**63)])
def test_a_negative_offset_is_refused(offset: int) -> None:
    keys = KeyMap(1000, SECRET)
    with pytest.raises(ValueError, match="negative"):
        keys.put(b"k", offset)
    assert keys.count == 0


def test_a_key_may_be_any_buffer() -> None:
    keys = KeyMap(1000, SECRET)
    content = b"01234567"
    assert keys.put(content, 5)
    for same in (bytearray(content), memoryview(b"x" + content)[1:], array("q", content)):
        assert keys.get(same) == 5


# ── learning and sifting ─────────────────────────────────────────────────────────────────────────


@examples(200)
@given(RANDOMS)
def test_good_logs_are_compacted_alike(rng: random.Random) -> None:
    agree_on_compaction(rng, log(rng, batches_max=8).data)


@pytest.mark.parametrize("seed", range(4))
def test_many_good_logs_are_compacted_alike(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(200):
        made = log(rng, batches_max=10, records_max=7, sealed=0.02)
        agree_on_compaction(rng, made.data[: rng.choice((len(made.data), rng.randint(0, len(made.data))))])


@pytest.mark.parametrize("seed", range(4))
def test_damaged_logs_are_compacted_alike(seed: int) -> None:
    rng = random.Random(100 + seed)
    for _ in range(200):
        agree_on_compaction(rng, damage(rng, log(rng, sealed=0.02)))
        agree_on_compaction(rng, any_bytes(rng))


def test_every_kind_of_buffer_is_compacted_alike() -> None:
    rng = random.Random(2)
    for _ in range(30):
        data = log(rng).data
        for given_data in (bytearray(data), memoryview(b"xyz" + data)[3:], array("B", data)):
            agree_on_compaction(rng, data, given_data)


@dataclass(frozen=True)
class Compacted:
    before: list[twin_records.Record]
    after: list[twin_records.Record]
    out: bytes
    sifted: keymap.Sifted
    made: Log


def compact(
    rng: random.Random, *, end_offset: int = OFFSET_MAX, keep_since: int = OFFSET_MAX, tombstones_before: int = 0
) -> Compacted:
    made = log(rng, batches_max=8, sealed=0)
    keys = KeyMap(100_000, SECRET)
    keys.learn(made.data, end_offset)
    out = bytearray()
    sifted = sift(
        keys,
        made.data,
        out,
        end_offset=end_offset,
        keep_since=keep_since,
        tombstones_before=tombstones_before,
        gap=False,
    )
    return Compacted(twin_records.decode(made.data), twin_records.decode(out), bytes(out), sifted, made)


@examples(150)
@given(RANDOMS)
def test_what_is_sifted_is_a_good_log_again(rng: random.Random) -> None:
    done = compact(rng, tombstones_before=rng.choice((0, OFFSET_MAX)))
    scanned = kernel.scan(done.out, 0, gap=True, structure=True)
    assert scanned.reason is None
    assert scanned.end == len(done.out)
    assert scanned.records == done.sifted.kept == len(done.after)
    assert done.sifted.kept + done.sifted.removed == len(done.before)
    assert done.sifted.stop == len(done.made.data)


@examples(150)
@given(RANDOMS)
def test_the_newest_record_of_every_key_stays_as_it_was(rng: random.Random) -> None:
    done = compact(rng)
    newest = {one.key: one for one in done.before if one.key is not None}
    assert done.after == [one for one in done.before if one.key is None or newest[one.key] == one]


@examples(100)
@given(RANDOMS)
def test_sifting_what_was_sifted_changes_nothing(rng: random.Random) -> None:
    done = compact(rng)
    keys = KeyMap(100_000, SECRET)
    keys.learn(done.out, OFFSET_MAX)
    again = bytearray()
    rules = {"end_offset": OFFSET_MAX, "keep_since": OFFSET_MAX, "tombstones_before": 0}
    assert sift(keys, done.out, again, gap=False, **rules).removed == 0
    assert again == done.out


@examples(100)
@given(RANDOMS)
def test_a_log_sifted_in_pieces_comes_out_as_in_one(rng: random.Random) -> None:
    made = log(rng, batches_min=1, batches_max=10, sealed=0)
    keys = KeyMap(100_000, SECRET)
    keys.learn(made.data, OFFSET_MAX)
    rules = {"end_offset": made.next_offset - 1, "keep_since": made.last_timestamp, "tombstones_before": 0}
    once, pieces = bytearray(), bytearray()
    whole = sift(keys, made.data, once, gap=False, **rules)
    gap, kept, first_held = False, 0, OFFSET_MAX
    for begin, end in zip(made.positions, [*made.positions[1:], len(made.data)], strict=True):
        piece = sift(keys, made.data[begin:end], pieces, gap=gap, **rules)
        gap, kept, first_held = piece.gap, kept + piece.kept, min(first_held, piece.first_held)
    assert pieces == once
    assert (gap, kept, first_held) == (whole.gap, whole.kept, whole.first_held)


@examples(100)
@given(RANDOMS)
def test_records_too_young_to_go_are_held_and_the_first_is_named(rng: random.Random) -> None:
    keep_since = rng.choice((0, 10, 10**18 + 1000, 10**18 + 2 * 10**10))
    done = compact(rng, keep_since=keep_since)
    newest = {one.key: one.offset for one in done.before if one.key is not None}
    held = [
        one.offset
        for one in done.before
        if one.key is not None and newest[one.key] > one.offset and one.timestamp >= keep_since
    ]
    assert done.sifted.first_held == min(held, default=OFFSET_MAX)
    assert {*held} <= {one.offset for one in done.after}


@examples(100)
@given(RANDOMS)
def test_only_tombstones_that_are_old_enough_go(rng: random.Random) -> None:
    before = rng.choice((10, 10**18 + 1000, OFFSET_MAX))
    done = compact(rng, tombstones_before=before)
    newest = {one.key: one for one in done.before if one.key is not None}
    expected = [
        one
        for one in done.before
        if one.key is None or (newest[one.key] == one and (one.value is not None or one.timestamp >= before))
    ]
    assert done.after == expected


@examples(100)
@given(RANDOMS)
def test_records_at_or_behind_the_end_stay(rng: random.Random) -> None:
    end_offset = rng.choice((0, 1, 3, 1003, 2**40 + 4))
    done = compact(rng, end_offset=end_offset, tombstones_before=OFFSET_MAX)
    behind = [one for one in done.before if one.offset >= end_offset]
    assert [one for one in done.after if one.offset >= end_offset] == behind


def test_learning_stops_where_the_map_is_full_and_says_so() -> None:
    rng = random.Random(3)
    seen_full = False
    for _ in range(200):
        made = log(rng, batches_max=6, sealed=0)
        ours, theirs = maps(rng.choice((96, 200, 300)))
        learned = ours.learn(made.data, OFFSET_MAX)
        theirs.learn(made.data, OFFSET_MAX)
        assert ours.count == theirs.count
        for record in twin_records.decode(made.data):
            if record.key is not None and record.offset < learned.next_offset:
                assert ours.get(record.key) >= record.offset
        if learned.full:
            seen_full = True
            refused = twin_records.decode(made.data, learned.next_offset, learned.next_offset + 1)[0]
            assert refused.key is not None
            assert ours.get(refused.key) == -1
    assert seen_full


def test_nothing_is_learned_or_sifted_from_a_damaged_batch() -> None:
    rng = random.Random(4)
    made = log(rng, batches_min=3, batches_max=3, sealed=0)
    for at in range(made.positions[1], made.positions[2]):
        data = bytearray(made.data)
        data[at] ^= 1 << rng.randrange(8)
        keys = KeyMap(10_000, SECRET)
        learned = keys.learn(data, OFFSET_MAX)
        assert learned.stop <= made.positions[1]
        assert learned.reason in kernel.REASONS
        out = bytearray()
        rules = {"end_offset": OFFSET_MAX, "keep_since": OFFSET_MAX, "tombstones_before": 0}
        assert sift(keys, data, out, gap=False, **rules).stop <= made.positions[1]
        assert kernel.scan(out, 0, gap=True).reason is None


# ── misuse ───────────────────────────────────────────────────────────────────────────────────────

RULES = {"end_offset": OFFSET_MAX, "keep_since": OFFSET_MAX, "tombstones_before": 0}


@pytest.mark.parametrize("start", [-1, 10**6, 2**62])
def test_positions_outside_of_the_bytes_are_refused(start: int) -> None:
    keys = KeyMap(1000, SECRET)
    data = log(random.Random(5), batches_min=1).data
    out = bytearray(b"before")
    with pytest.raises(ValueError, match="outside"):
        keys.learn(data, 10, start)
    with pytest.raises(ValueError, match="outside"):
        sift(keys, data, out, gap=False, start=start, **RULES)
    assert out == b"before"


def test_no_map_is_refused() -> None:
    """In a process of its own, which does not survive a kernel that takes None for a map."""
    program = (
        "import sys; from bascule.kernels.records.keymap import sift\n"
        "try: sift(None, bytes.fromhex(sys.argv[1]), bytearray(), gap=False, end_offset=1<<62, keep_since=1<<62,"
        " tombstones_before=0)\n"
        "except TypeError: sys.exit(7)"
    )
    data = log(random.Random(6), batches_min=3, sealed=0).data
    command = [sys.executable, "-c", program, data.hex()]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    assert subprocess.run(command, env=environment, timeout=60, check=False).returncode == 7


@pytest.mark.parametrize("out", [None, b"", []])
def test_only_a_bytearray_takes_what_is_kept(out: object) -> None:
    data = log(random.Random(6), batches_min=3, sealed=0).data
    with pytest.raises(TypeError):
        sift(KeyMap(1000, SECRET), data, out, gap=False, **RULES)  # type: ignore[arg-type]


def test_an_output_in_use_is_refused_and_left_alone() -> None:
    data = bytearray(log(random.Random(6), batches_min=3, sealed=0).data)
    before = bytes(data)
    with pytest.raises(BufferError):
        sift(KeyMap(1000, SECRET), data, data, gap=False, **RULES)
    assert data == before
