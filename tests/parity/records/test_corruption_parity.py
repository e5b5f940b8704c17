"""Damaged bytes: both sides see the same damage, at the same place, and call it by the same name."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bascule.kernels.records import records as kernel
from tests.parity.inputs.compare import Call, agree_on, agree_on_everything
from tests.parity.inputs.generate import LENGTHS_EXTREME, any_bytes, damage, log, repair_checksums, splice, with_header
from tests.parity.inputs.strategies import RANDOMS, examples
from tests.parity.twins import twin_records
from tests.parity.twins.twin_builder import BatchBuilder
from tests.parity.twins.twin_format import (
    HEADER_BYTES,
    MAGIC,
    OFFSET_MAX,
    VERSION,
    Header,
    pack_field,
    pack_record,
    pack_varint,
    seal_checksum,
)


@examples(300)
@given(RANDOMS)
def test_any_bytes_read_alike(rng: random.Random) -> None:
    agree_on_everything(rng, any_bytes(rng))


@pytest.mark.parametrize("seed", range(6))
def test_damaged_logs_read_alike(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(250):
        agree_on_everything(rng, damage(rng, log(rng)))


@pytest.mark.parametrize("seed", range(6))
def test_wrong_numbers_under_good_checksums_read_alike(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(250):
        agree_on_everything(rng, log(rng, batches_min=1, oddity=rng.choice((0.003, 0.01, 0.03)), sealed=0.05).data)


def test_spliced_logs_read_alike() -> None:
    rng = random.Random(10)
    for _ in range(200):
        agree_on_everything(rng, splice(rng, log(rng), log(rng)))


@examples(200)
@given(st.binary(max_size=300), RANDOMS)
def test_noise_reads_alike(data: bytes, rng: random.Random) -> None:
    agree_on_everything(rng, data)


def test_every_cut_of_a_log_reads_alike() -> None:
    rng = random.Random(11)
    made = log(rng, batches_min=4, batches_max=4, records_max=3)
    for cut in range(len(made.data) + 1):
        agree_on(Call("scan", (made.first_offset,)), made.data[:cut])
        agree_on(Call("decode"), made.data[:cut])
        agree_on(Call("select", (made.first_offset, made.next_offset, 2**20)), made.data[:cut])
        agree_on(Call("find_offset", (made.next_offset - 1,)), made.data[:cut])
        agree_on(Call("check"), made.data[:cut])


@pytest.mark.parametrize("length", LENGTHS_EXTREME)
@pytest.mark.parametrize("checksum", ["stale", "good"])
def test_extreme_lengths_read_alike(length: int, checksum: str) -> None:
    rng = random.Random(length)
    made = log(rng, batches_min=3, batches_max=3)
    for position in made.positions:
        data = made.data[: position + 4] + length.to_bytes(4, "little") + made.data[position + 8 :]
        for _ in range(5):
            agree_on_everything(rng, repair_checksums(data) if checksum == "good" else data)


# ── every byte ───────────────────────────────────────────────────────────────────────────────────


def small_log() -> bytes:
    """Three batches that use every field of the format, in as few bytes as that takes."""
    builder = BatchBuilder(
        key_bytes_max=99,
        value_bytes_max=99,
        headers_max=9,
        headers_bytes_max=99,
        subject_bytes_max=99,
        batch_bytes_max=999,
        records_max=9,
    )
    builder.add(b"k", b"v", [(b"n", b"x")], b"s", b"r", 1)
    builder.add(b"k", None, (), b"o", b"", 200)
    first = bytes(builder.stamp(0, 1, 10))
    builder.clear()
    builder.add(None, b"", (), b"s")
    second = twin_records.with_body(bytes(builder.stamp(2, 1, 300)), b"\x07sealed", kernel.ENCRYPTED)
    builder.clear()
    builder.add(b"k", b"w", (), b"s")
    builder.add(b"", b"w", (), b"s")
    third = bytes(builder.stamp(3, 2, 300))
    return first + second + third


EVERYTHING = (
    Call("read_header"),
    Call("check"),
    Call("offset_at", (11,)),
    Call("decode"),
    Call("scan", (0,), (("structure", True),)),
    Call("scan", (0,), (("structure", True), ("checksums", False))),
    Call("scan", (0,)),
    Call("find_offset", (4,)),
    Call("find_timestamp", (300,)),
    Call("select", (2, OFFSET_MAX, 1000)),
    Call("select", (0, 3, 1000)),
    Call("resync", (1, 0)),
    Call("trim", (1,)),
    Call("with_body", (b"body", 0)),
)


@pytest.mark.parametrize("checksum", ["stale", "good"])
def test_every_byte_of_a_small_log_may_be_wrong(checksum: str) -> None:
    data = small_log()
    assert kernel.scan(data, 0, structure=True).reason is None
    for at, byte in enumerate(data):
        for wrong in {0, 1, 0x1F, 0x20, 0x7F, 0x80, 0xFF, byte ^ 1, byte ^ 0x80, (byte + 1) % 256, (byte - 1) % 256}:
            damaged = data[:at] + bytes([wrong]) + data[at + 1 :]
            if checksum == "good":
                damaged = repair_checksums(damaged)
            for call in EVERYTHING:
                agree_on(call, damaged)


def test_no_damaged_byte_of_a_batch_passes_its_check() -> None:
    data = small_log()
    size = kernel.check(data)
    for at in range(size):
        for bit in range(8):
            damaged = bytearray(data[:size])
            damaged[at] ^= 1 << bit
            with pytest.raises(kernel.BatchError):
                kernel.check(damaged)
            assert kernel.scan(damaged, 0).batches == 0


# ── each check by itself ─────────────────────────────────────────────────────────────────────────


def batch(body: bytes, **fields: int) -> bytes:
    numbers = {
        "length": HEADER_BYTES + len(body),
        "magic": MAGIC,
        "version": VERSION,
        "attributes": 0,
        "count": 1,
        "base_offset": 0,
        "last_delta": 0,
        "body_bytes": len(body),
        "leader_epoch": 0,
        "first_timestamp": 0,
        "max_timestamp": 0,
    }
    return seal_checksum(Header(crc=0, **{**numbers, **fields}), body)


SUBJECT = pack_field(b"s")
RECORD = pack_record(0, 0, b"k", b"v")
GOOD = SUBJECT + RECORD

HEADERS_WRONG = {
    "length below the header": ("bad length", {"length": 55}),
    "length zero wins over the magic": ("bad length", {"length": 0, "magic": 0}),
    "magic": ("bad magic", {"magic": 0x5CBA}),
    "version zero is no magic of ours": ("bad magic", {"version": 0}),
    "version three": ("future version", {"version": 3}),
    "version wins over attributes": ("future version", {"version": 255, "attributes": 255}),
    "codec two": ("bad attributes", {"attributes": 2}),
    "codec seven": ("bad attributes", {"attributes": 7}),
    "bit six": ("bad attributes", {"attributes": 0x40}),
    "bit seven": ("bad attributes", {"attributes": 0x80}),
    "attributes win over a length beyond the end": ("bad attributes", {"attributes": 0x40, "length": 2**32 - 1}),
    "length one beyond the end": ("incomplete", {"length": HEADER_BYTES + len(GOOD) + 1}),
    "largest length": ("incomplete", {"length": 2**32 - 1}),
    "negative offset": ("bad offsets", {"base_offset": -1}),
    "most negative offset": ("bad offsets", {"base_offset": -(2**63)}),
    "last offset beyond int64": ("bad offsets", {"base_offset": OFFSET_MAX, "last_delta": 1}),
    "offset behind the batch beyond int64": ("bad offsets", {"base_offset": OFFSET_MAX}),
    "more records than offsets": ("bad offsets", {"count": 2}),
    "far more records than offsets": ("bad offsets", {"count": 2**32 - 1, "last_delta": 2**32 - 3}),
    "offsets win over timestamps": ("bad offsets", {"base_offset": -1, "first_timestamp": -1}),
    "negative time": ("bad timestamps", {"first_timestamp": -1}),
    "last time before the first": ("bad timestamps", {"first_timestamp": 1}),
    "more records than in the body": ("bad records", {"count": 2, "last_delta": 1}),
    "fewer records than in the body": ("bad records", {"count": 0}),
    "largest count": ("bad records", {"count": 2**32 - 1, "last_delta": 2**32 - 2}),
    "last time is not the last record's": ("bad records", {"max_timestamp": 1}),
    "size in the clear one less": ("bad records", {"body_bytes": len(GOOD) - 1}),
    "size in the clear one more": ("bad records", {"body_bytes": len(GOOD) + 1}),
}


@pytest.mark.parametrize("case", HEADERS_WRONG)
def test_a_wrong_header_is_called_by_its_name(case: str) -> None:
    reason, fields = HEADERS_WRONG[case]
    data = batch(GOOD, **fields)
    assert agree_on(Call("check"), data) == ("BatchError", reason, 0)
    for call in EVERYTHING:
        agree_on(call, data)
        agree_on(call, data + batch(GOOD))


LAST_OF_TEN = b"\xff" * 9 + b"\x01"


def sized(fields: bytes) -> bytes:
    return pack_field(fields)


BODIES_WRONG = {
    "nothing": b"",
    "subject length only": b"\x05",
    "subject beyond the end": b"\x80",
    "subject length of 2^64 - 1": LAST_OF_TEN + RECORD,
    "subject length above 2^64": b"\xff" * 9 + b"\x02" + RECORD,
    "no record": SUBJECT,
    "record size zero": SUBJECT + b"\0",
    "record size beyond the end": SUBJECT + pack_varint(len(RECORD)) + RECORD[1:],
    "record size of 2^64 - 1": SUBJECT + LAST_OF_TEN + RECORD[1:],
    "record size of eleven bytes": SUBJECT + b"\x87" + b"\x80" * 9 + b"\x00" + RECORD[1:],
    "record size right but for bit 64": SUBJECT + b"\x87" + b"\x80" * 8 + b"\x02" + RECORD[1:],
    "record size right but for bit 69": SUBJECT + b"\x87" + b"\x80" * 8 + b"\x40" + RECORD[1:],
    "bytes behind the record": SUBJECT + RECORD + b"\0",
    "bytes left in the record": SUBJECT + sized(RECORD[1:] + b"\0"),
    "flags only": SUBJECT + sized(b"\0"),
    "no time": SUBJECT + sized(b"\0\0"),
    "flag 32": SUBJECT + sized(b"\x20\0\0"),
    "flag 128": SUBJECT + sized(b"\x80\0\0"),
    "offset beyond the last": SUBJECT + sized(b"\0\x01\0"),
    "offset of 2^64 - 1": SUBJECT + sized(b"\0" + LAST_OF_TEN + b"\0"),
    "time beyond the last": SUBJECT + sized(b"\0\0\x01"),
    "time of 2^64 - 1": SUBJECT + sized(b"\0\0" + LAST_OF_TEN),
    "key without length": SUBJECT + sized(b"\x01\0\0"),
    "key beyond the record": SUBJECT + sized(b"\x01\0\0\x02k") + b"k",
    "key length of 2^64 - 1": SUBJECT + sized(b"\x01\0\0" + LAST_OF_TEN + b"k"),
    "value beyond the record": SUBJECT + sized(b"\x02\0\0\x02v") + b"v",
    "own subject beyond the record": SUBJECT + sized(b"\x04\0\0\x02v") + b"v",
    "reply beyond the record": SUBJECT + sized(b"\x08\0\0\x02v") + b"v",
    "no header count": SUBJECT + sized(b"\x10\0\0"),
    "one header too few": SUBJECT + sized(b"\x10\0\0\x02\x01n\x01v"),
    "one header too many": SUBJECT + sized(b"\x10\0\0\x01\x01n\x01v\x01n\x01v"),
    "header name without a value": SUBJECT + sized(b"\x10\0\0\x01\x01n"),
    "header value beyond the record": SUBJECT + sized(b"\x10\0\0\x01\x01n\x02v") + b"v",
    "header count of 2^64 - 1": SUBJECT + sized(b"\x10\0\0" + LAST_OF_TEN + b"\0\0" * 40),
    "header count of 2^32": SUBJECT + sized(b"\x10\0\0" + pack_varint(2**32)),
    "header count of 2^32 and one header": SUBJECT + sized(b"\x10\0\0" + pack_varint(2**32 + 1) + b"\0\0"),
}


@pytest.mark.parametrize("case", BODIES_WRONG)
def test_a_wrong_body_is_bad_records(case: str) -> None:
    data = batch(BODIES_WRONG[case])
    assert agree_on(Call("check"), data) == ("BatchError", "bad records", 0)
    for call in EVERYTHING:
        agree_on(call, data)
        agree_on(call, batch(GOOD) + data)


BODIES_ODD = {
    "a longer varint than needed": b"\x81\0s" + b"\x87\x80\0" + RECORD[1:],
    "a varint of ten bytes": SUBJECT + b"\x87" + b"\x80" * 8 + b"\0" + RECORD[1:],
    "headers announced, none there": SUBJECT + sized(b"\x10\0\0\0"),
    "an empty reply": SUBJECT + sized(b"\x08\0\0\0"),
    "the batch's subject once more": SUBJECT + sized(b"\x04\0\0\x01s"),
    "no key and no value": SUBJECT + sized(b"\0\0\0"),
    "an empty subject": b"\0" + RECORD,
}


@pytest.mark.parametrize("case", BODIES_ODD)
def test_an_odd_body_that_breaks_no_rule_is_good(case: str) -> None:
    data = batch(BODIES_ODD[case])
    assert agree_on(Call("check"), data) == ("int", len(data))
    for call in EVERYTHING:
        agree_on(call, data)


@pytest.mark.parametrize(
    ("offsets", "times", "good"),
    [
        ((0, 1, 2), (0, 0, 0), True),
        ((0, 2, 9), (0, 5, 7), True),
        ((1, 5), (7, 7), True),
        ((0, 0), (0, 7), False),
        ((1, 0), (0, 7), False),
        ((0, 10), (0, 7), False),
        ((0, 1), (7, 6), False),
        ((0, 1), (0, 8), False),
        ((0, 1), (0, 6), False),
    ],
)
def test_offsets_rise_and_times_never_fall_inside_a_batch(
    offsets: tuple[int, ...], times: tuple[int, ...], good: bool
) -> None:
    rows = zip(offsets, times, strict=True)
    body = SUBJECT + b"".join(pack_record(offset, time, b"k", b"v") for offset, time in rows)
    last = max(times) if good else 7
    data = batch(body, count=len(offsets), last_delta=9, base_offset=100, first_timestamp=50, max_timestamp=50 + last)
    expected = ("int", len(data)) if good else ("BatchError", "bad records", 0)
    assert agree_on(Call("check"), data) == expected
    for call in EVERYTHING:
        agree_on(call, data)


# ── batches that do not continue each other ──────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"base_offset": 1}, None),
        ({"base_offset": 1, "attributes": kernel.FOLLOWS_GAP}, None),
        ({"base_offset": 2}, "bad offsets"),
        ({"base_offset": 2, "attributes": kernel.FOLLOWS_GAP}, None),
        ({"base_offset": 0}, "bad offsets"),
        ({"base_offset": 0, "attributes": kernel.FOLLOWS_GAP}, "bad offsets"),
        ({"base_offset": 2, "first_timestamp": 4, "max_timestamp": 4}, "bad offsets"),
        ({"base_offset": 2, "first_timestamp": 4, "max_timestamp": 1}, "bad offsets"),
        ({"base_offset": 1, "first_timestamp": 4, "max_timestamp": 4}, "bad timestamps"),
        ({"base_offset": 1, "first_timestamp": 4, "max_timestamp": 4, "leader_epoch": 0}, "bad timestamps"),
        ({"base_offset": 1, "leader_epoch": 2}, "bad epoch"),
        ({"base_offset": 1, "leader_epoch": 2, "count": 0}, "bad epoch"),
        ({"base_offset": 1, "leader_epoch": 2**64 - 1}, None),
        ({"base_offset": 1, "count": 0}, "bad records"),
    ],
)
def test_a_batch_that_does_not_continue_is_called_by_its_name(fields: dict[str, int], reason: str | None) -> None:
    before = batch(GOOD, leader_epoch=3, first_timestamp=5, max_timestamp=5)
    behind = batch(GOOD, **{"leader_epoch": 3, "first_timestamp": 5, "max_timestamp": 5, **fields})
    answer = agree_on(Call("scan", (0,), (("structure", True),)), before + behind)
    assert isinstance(answer, list)
    assert answer[0]["reason"][1] == reason
    assert answer[0]["batches"] == ("int", 1 if reason else 2)
    # the same by arguments instead of by a batch in front
    answer = agree_on(Call("scan", (1, 5, 3), (("structure", True),)), behind)
    assert isinstance(answer, list)
    assert answer[0]["reason"][1] == reason


def test_a_gap_may_stand_in_front_of_the_first_batch_only() -> None:
    one, other = batch(GOOD, base_offset=7), batch(GOOD, base_offset=9)
    for data, batches in ((one, 1), (one + other, 1)):
        answer = agree_on(Call("scan", (3,), (("gap", True),)), data)
        assert isinstance(answer, list)
        assert answer[0]["batches"] == ("int", batches)
    assert kernel.scan(one, 8, gap=True).reason == "bad offsets"


def test_the_last_offset_there_can_be_is_read_alike() -> None:
    data = batch(GOOD, base_offset=OFFSET_MAX - 1)
    scanned = kernel.scan(data, OFFSET_MAX - 1)
    assert (scanned.reason, scanned.next_offset) == (None, OFFSET_MAX)
    for call in EVERYTHING:
        agree_on(call, data)
        agree_on(call, with_header(data, 0, base_offset=OFFSET_MAX))
        agree_on(call, with_header(data, 0, last_delta=2**32 - 1))
