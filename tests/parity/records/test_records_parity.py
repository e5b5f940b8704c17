"""Good batches: both sides write the same bytes and read the same things from them."""

from __future__ import annotations

import mmap
import pickle
import random
from array import array
from typing import Any

import pytest
from hypothesis import given

from bascule import limits
from bascule.kernels.records import builder as builder_kernel
from bascule.kernels.records import records as kernel
from tests.parity.inputs.compare import Call, agree_on, agree_on_everything, plain
from tests.parity.inputs.generate import fill, log, record_spec, with_header
from tests.parity.inputs.strategies import RANDOMS, examples
from tests.parity.twins import twin_builder, twin_format, twin_records

LIMITS: dict[str, Any] = {
    "key_bytes_max": limits.RECORD_KEY_BYTES_MAX,
    "value_bytes_max": limits.RECORD_VALUE_BYTES_MAX,
    "headers_max": limits.RECORD_HEADERS_MAX,
    "headers_bytes_max": limits.RECORD_HEADERS_BYTES_MAX,
    "subject_bytes_max": limits.RECORD_SUBJECT_BYTES_MAX,
    "batch_bytes_max": limits.BATCH_BYTES_MAX,
    "records_max": limits.BATCH_RECORDS_MAX,
}


def builders() -> tuple[builder_kernel.BatchBuilder, twin_builder.BatchBuilder]:
    return builder_kernel.BatchBuilder(**LIMITS), twin_builder.BatchBuilder(**LIMITS)


def test_both_sides_know_the_same_constants() -> None:
    for name in (
        "HEADER_BYTES",
        "MAGIC",
        "VERSION",
        "VERSION_PLAIN",
        "CODEC_MASK",
        "CODEC_NONE",
        "CODEC_ZSTD",
        "ENCRYPTED",
        "FOLLOWS_GAP",
        "OFFSET_MAX",
    ):
        assert getattr(kernel, name) == getattr(twin_format, name)
    assert kernel.REASONS == twin_records.REASONS


# ── building ─────────────────────────────────────────────────────────────────────────────────────


@examples(150)
@given(RANDOMS)
def test_both_builders_write_the_same_bytes(rng: random.Random) -> None:
    ours, theirs = builders()
    subject = rng.choice((b"", b"orders", b"x" * 200))
    specs = [record_spec(rng, subject=subject) for _ in range(rng.randint(1, 8))]
    fill(ours, specs)
    fill(theirs, specs)
    assert (ours.count, ours.nbytes) == (theirs.count, theirs.nbytes)
    stamp = (rng.randrange(2**62), rng.randrange(2**64), rng.randrange(2**62))
    batch = bytes(ours.stamp(*stamp))
    assert batch == bytes(theirs.stamp(*stamp))
    assert len(batch) == ours.nbytes
    assert kernel.check(batch) == len(batch)
    decoded = kernel.decode(batch)
    assert [one.key for one in decoded] == [one.key for one in specs]
    assert [one.value for one in decoded] == [one.value for one in specs]
    assert [one.headers for one in decoded] == [one.headers for one in specs]
    assert [one.subject for one in decoded] == [one.subject for one in specs]
    assert [one.reply for one in decoded] == [one.reply for one in specs]
    assert plain(decoded) == plain(twin_records.decode(batch))


@examples(100)
@given(RANDOMS)
def test_columns_write_the_same_bytes_as_single_records(rng: random.Random) -> None:
    columns, singles = builder_kernel.BatchBuilder(**LIMITS), builder_kernel.BatchBuilder(**LIMITS)
    theirs = twin_builder.BatchBuilder(**LIMITS)
    for _ in range(rng.randint(1, 4)):
        subject = rng.choice((b"orders", b"orders.eu"))
        if rng.random() < 0.4:
            spec = record_spec(rng)
            fill(columns, [spec])
            fill(singles, [spec])
            fill(theirs, [spec])
            continue
        values = [rng.randbytes(rng.choice((0, 3, 130))) for _ in range(rng.randint(1, 5))]
        keys = [rng.randbytes(rng.choice((0, 3, 130))) for _ in values] if rng.random() < 0.6 else None
        for index, value in enumerate(values):
            singles.add(None if keys is None else keys[index], value, subject=subject)
        key_bytes, key_ends = (None, None) if keys is None else (b"".join(keys), ends_of(keys))
        for builder in (columns, theirs):
            builder.add_columns(b"".join(values), ends_of(values), key_bytes, key_ends, subject)
    batch = bytes(columns.stamp(5, 6, 7))
    assert batch == bytes(singles.stamp(5, 6, 7))
    assert batch == bytes(theirs.stamp(5, 6, 7))


def ends_of(column: list[bytes]) -> array[int]:
    ends: array[int] = array("q")
    at = 0
    for one in column:
        at += len(one)
        ends.append(at)
    return ends


def test_large_keys_values_and_headers_are_written_alike() -> None:
    ours, theirs = builders()
    for builder in (ours, theirs):
        builder.add(b"k" * limits.RECORD_KEY_BYTES_MAX, b"v" * 2_000_003, [(b"n", b"h" * 300_000)] * 3, b"s" * 4096)
        builder.add(None, b"", [(b"%d" % index, b"") for index in range(limits.RECORD_HEADERS_MAX)])
        builder.add(b"", None, reply=b"r" * limits.RECORD_SUBJECT_BYTES_MAX)
    # checksums of megabytes are the kernel's business here: the twin would need seconds
    ours_batch = bytes(ours.stamp(0, 0, 0))
    assert ours.nbytes == theirs.nbytes == len(ours_batch)
    assert ours_batch[4:] == bytes(theirs.stamp(0, 0, 0))[4:]


def test_a_cleared_builder_is_as_new() -> None:
    ours, _ = builders()
    empty_bytes = ours.nbytes
    ours.add(b"k", b"v", subject=b"one", time_delta=50)
    first = bytes(ours.stamp(0, 0, 0))
    ours.clear()
    assert (ours.count, ours.nbytes) == (0, empty_bytes)
    ours.add(b"k", b"v", subject=b"one", time_delta=50)
    assert bytes(ours.stamp(0, 0, 0)) == first


def test_a_builder_can_be_stamped_again_and_added_to() -> None:
    ours, theirs = builders()
    for builder in (ours, theirs):
        builder.add(b"k", b"v", subject=b"one", time_delta=5)
    assert bytes(ours.stamp(0, 0, 0)) == bytes(theirs.stamp(0, 0, 0))
    assert bytes(ours.stamp(9, 1, 4)) == bytes(theirs.stamp(9, 1, 4))
    for builder in (ours, theirs):
        builder.add(b"k", b"v", subject=b"two", time_delta=3)
    assert bytes(ours.stamp(9, 1, 4)) == bytes(theirs.stamp(9, 1, 4))


def test_a_time_before_the_last_one_counts_as_the_last_one() -> None:
    for builder in builders():
        for time_delta in (-5, 7, 3, -(10**12), 9):
            builder.add(None, b"v", time_delta=time_delta)
        batch = bytes(builder.stamp(0, 0, 1000))
        assert [one.timestamp for one in twin_records.decode(batch)] == [1000, 1007, 1007, 1007, 1009]


# ── reading ──────────────────────────────────────────────────────────────────────────────────────


@examples(150)
@given(RANDOMS)
def test_every_function_answers_alike_on_good_logs(rng: random.Random) -> None:
    made = log(rng, batches_max=6)
    answer = agree_on(
        Call("scan", (made.first_offset,), (("structure", True), ("interval", rng.choice((0, 1, 64, 200, 5000))))),
        made.data,
    )
    assert isinstance(answer, list)
    assert answer[0]["reason"] == ("NoneType", None)
    assert answer[0]["end"] == ("int", len(made.data))
    agree_on_everything(rng, made.data)


@examples(60)
@given(RANDOMS)
def test_a_log_behind_other_bytes_reads_alike_from_its_start(rng: random.Random) -> None:
    made = log(rng, batches_max=4, sealed=0)
    lead = rng.randbytes(rng.randint(1, 30))
    data = lead + made.data
    answer = agree_on(Call("scan", (made.first_offset, 0, 0, len(lead)), (("position", 100),)), data)
    assert isinstance(answer, list)
    assert answer[0]["end"] == ("int", len(data))
    agree_on(Call("decode", (0, kernel.OFFSET_MAX, len(lead))), data)
    agree_on(Call("find_offset", (made.next_offset - 1, len(lead))), data)
    agree_on(Call("select", (made.first_offset, made.next_offset, 2**20, len(lead))), data)
    agree_on(Call("resync", (0, 0)), data)


@pytest.mark.parametrize("interval", [0, 1, 56, 57, 100, 500, 1000, 10**6, 2**63 - 1])
def test_marks_are_alike_for_every_interval(interval: int) -> None:
    rng = random.Random(interval)
    for _ in range(15):
        made = log(rng, batches_max=12)
        for start in {0, *made.positions[:2]}:
            keywords = (("interval", interval), ("gap", True), ("position", 4096))
            agree_on(Call("scan", (made.first_offset, 0, 0, start), keywords), made.data)


def test_a_scan_in_two_pieces_finds_what_one_finds() -> None:
    rng = random.Random(4)
    for _ in range(100):
        made = log(rng, batches_max=8)
        once = kernel.scan(made.data, made.first_offset)
        cut = rng.choice([*made.positions, len(made.data)])
        head = kernel.scan(made.data[:cut], made.first_offset)
        tail = kernel.scan(made.data[cut:], head.next_offset, head.last_timestamp, head.last_epoch)
        assert (head.reason, tail.reason) == (None, None)
        assert head.batches + tail.batches == once.batches
        assert head.records + tail.records == once.records
        assert (tail.next_offset, tail.last_timestamp, tail.last_epoch) == (
            once.next_offset,
            once.last_timestamp,
            once.last_epoch,
        )


@examples(80)
@given(RANDOMS)
def test_offsets_and_times_are_found_alike_everywhere(rng: random.Random) -> None:
    made = log(rng, sealed=0)
    found = twin_records.decode(made.data)
    for offset in range(made.first_offset - 1, min(made.next_offset + 2, made.first_offset + 60)):
        agree_on(Call("find_offset", (offset,)), made.data)
        agree_on(Call("select", (offset, made.next_offset, 100)), made.data)
    for time in sorted({one.timestamp + step for one in found for step in (-1, 0, 1)}):
        agree_on(Call("find_timestamp", (time,)), made.data)
        for position in made.positions:
            agree_on(Call("offset_at", (time, position)), made.data)


@examples(80)
@given(RANDOMS)
def test_trimmed_batches_are_good_and_alike_at_every_offset(rng: random.Random) -> None:
    made = log(rng, batches_max=2, records_max=8, sealed=0)
    for position in made.positions:
        batch = made.data[position : position + twin_records.read_header(made.data, position).length]
        header = twin_records.read_header(batch)
        before = twin_records.decode(batch)
        for end_offset in range(header.base_offset - 1, header.last_offset + 3):
            agree_on(Call("trim", (end_offset,)), batch)
            if header.base_offset < end_offset <= header.last_offset + 1:
                trimmed = kernel.trim(batch, end_offset)
                assert kernel.check(trimmed) == len(trimmed)
                assert kernel.read_header(trimmed).last_offset == end_offset - 1
                assert twin_records.decode(trimmed) == [one for one in before if one.offset < end_offset]


@examples(80)
@given(RANDOMS)
def test_a_sealed_and_opened_batch_is_the_batch(rng: random.Random) -> None:
    made = log(rng, batches_max=1, sealed=0)
    if not made.data:
        return
    body = made.data[kernel.HEADER_BYTES :]
    for attributes in (1, 8, 9):
        wrapped = rng.randbytes(rng.randint(0, 40))
        agree_on(Call("with_body", (wrapped, attributes)), made.data)
        sealed = kernel.with_body(made.data, wrapped, attributes)
        assert kernel.check(sealed) == len(sealed)
        assert kernel.read_header(sealed).is_sealed
        assert kernel.read_header(sealed).body_bytes == len(body)
        for name in ("decode", "check"):
            agree_on(Call(name), sealed)
        assert kernel.with_body(sealed, body, 0) == made.data


@pytest.mark.parametrize("attributes", [2, 7, 0x10, 0x20, 0x80, 0xFF])
def test_only_codec_and_encryption_can_be_given_to_a_batch(attributes: int) -> None:
    batch = log(random.Random(5), sealed=0, batches_max=1, batches_min=1).data
    assert agree_on(Call("with_body", (b"", attributes)), batch) == "ValueError"


def test_a_batch_behind_a_gap_keeps_its_mark_when_sealed_and_trimmed() -> None:
    rng = random.Random(6)
    made = log(rng, sealed=0, batches_max=1, batches_min=1)
    marked = with_header(made.data, 0, attributes=kernel.FOLLOWS_GAP)
    sealed = kernel.with_body(marked, b"x", kernel.ENCRYPTED)
    assert kernel.read_header(sealed).attributes == kernel.FOLLOWS_GAP | kernel.ENCRYPTED
    trimmed = kernel.trim(marked, kernel.read_header(marked).base_offset + 1)
    assert kernel.read_header(trimmed).attributes == kernel.FOLLOWS_GAP


# ── kinds of buffers ─────────────────────────────────────────────────────────────────────────────


def test_every_kind_of_buffer_reads_alike() -> None:
    rng = random.Random(7)
    for _ in range(25):
        data = log(rng).data
        padded = bytearray(b"\xee" * 3 + data + b"\xee" * 5)
        kinds: list[object] = [
            bytearray(data),
            memoryview(data),
            memoryview(padded)[3 : 3 + len(data)],
            memoryview(padded).toreadonly()[3 : 3 + len(data)],
            array("B", data),
        ]
        if data and len(data) % 8 == 0:
            kinds.append(array("q", data))
        if data:
            mapped = mmap.mmap(-1, len(data))
            mapped[:] = data
            kinds.append(mapped)
        for given_data in kinds:
            agree_on_everything(rng, data, given_data)


def test_bytes_that_do_not_lie_in_one_piece_are_refused() -> None:
    scattered = memoryview(bytes(400))[::2]
    for name, arguments in {"check": (), "scan": (0,), "decode": (), "resync": (0, 0)}.items():
        with pytest.raises((BufferError, ValueError)):
            getattr(kernel, name)(scattered, *arguments)


@pytest.mark.parametrize("position", [-1, -56, 10**6, 2**62])
def test_positions_outside_of_the_bytes_are_refused(position: int) -> None:
    data = log(random.Random(8), batches_min=1).data
    for call in (
        Call("read_header", (position,)),
        Call("check", (position,)),
        Call("offset_at", (0, position)),
        Call("scan", (0, 0, 0, position)),
        Call("find_offset", (0, position)),
        Call("find_timestamp", (0, position)),
        Call("select", (0, 10, 10, position)),
        Call("resync", (position, 0)),
        Call("decode", (0, 10, position)),
    ):
        assert agree_on(call, data) == "ValueError"


@pytest.mark.parametrize(("start", "stop"), [(0, -2), (10, 9), (0, 10**6), (5, 0)])
def test_pieces_outside_of_the_bytes_are_refused(start: int, stop: int) -> None:
    data = log(random.Random(8), batches_min=1).data
    assert agree_on(Call("decode", (0, 10, start, stop)), data) == "ValueError"


# ── the objects ──────────────────────────────────────────────────────────────────────────────────


def test_records_are_equal_by_what_they_hold() -> None:
    data = log(random.Random(9), sealed=0, batches_max=4, batches_min=1).data
    once, again = kernel.decode(data), kernel.decode(data)
    assert once == again
    assert {*once} == {*again}
    assert len({*once}) == len(once)
    assert once[0] != object()


def test_errors_say_what_and_where_and_can_be_sent_to_another_process() -> None:
    with pytest.raises(kernel.BatchError) as caught:
        kernel.check(bytes(100), 7)
    assert (caught.value.reason, caught.value.position) == ("bad length", 7)
    copied = pickle.loads(pickle.dumps(caught.value))
    assert (copied.reason, copied.position) == ("bad length", 7)
    limit = pickle.loads(pickle.dumps(builder_kernel.LimitError("key", 5, 4)))
    assert (limit.field, limit.size, limit.limit) == ("key", 5, 4)


def test_an_empty_buffer_is_an_empty_log() -> None:
    for empty in (b"", bytearray(), memoryview(b""), array("B")):
        assert kernel.scan(empty, 5).end == 0
        assert kernel.decode(empty) == []
        assert kernel.find_offset(empty, 0) == -1
        with pytest.raises(kernel.BatchError, match="incomplete"):
            kernel.check(empty)
