"""Whatever idempotent producers send: the table and the twin judge it alike, and a table that was written down is the same one."""

from __future__ import annotations

import random

import pytest
from hypothesis import given

from bascule.kernels.records.producers import DUPLICATE, NEW, ProducerTable, marks
from tests.parity.inputs.ingest_helpers import small_builder
from tests.parity.inputs.strategies import RANDOMS, examples
from tests.parity.twins.twin_producers import Producers

HEADERS = (b"bascule-producer", b"bascule-epoch", b"bascule-sequence")


@examples(120)
@given(RANDOMS)
def test_the_table_judges_and_remembers_as_the_twin_does(rng: random.Random) -> None:
    size = rng.choice((1, 2, 5, 40))
    table, twin = ProducerTable(size), Producers(size)
    names = [b"%d" % number for number in range(rng.choice((1, 3, 60)))]
    sequences = dict.fromkeys(names, 0)
    offset = 0
    for _ in range(rng.randint(1, 300)):
        name = rng.choice(names)
        epoch = rng.choice((0, 0, 0, 0, 1))
        sequence = max(0, sequences[name] + rng.choice((0, 0, 0, 0, -1, -2, -70, 1)))
        verdict, original, at_most = table.judge(name, epoch, sequence)
        assert (verdict, original) == twin.judge(name, epoch, sequence)
        if verdict == DUPLICATE:
            assert original <= at_most < offset
            assert original in (-1, at_most)
        if (
            verdict == NEW or rng.random() < 0.02
        ):  # a log may hold what the rules would not have let in: it was thinned out
            table.note(name, epoch, sequence, offset)
            twin.note(name, epoch, sequence, offset)
            sequences[name] = sequence + 1
        offset += rng.choice((1, 1, 1, 2))
    assert table.entries() == twin.entries()
    assert table.count == len(twin.known)
    assert ProducerTable.decode(table.encode(), size).entries() == table.copy().entries() == twin.entries()


@examples(200)
@given(RANDOMS)
def test_a_table_made_from_the_records_of_a_log_is_the_one_that_was_kept_while_they_were_written(
    rng: random.Random,
) -> None:
    kept, data, offset, cut = Producers(3), b"", 0, rng.randint(0, 20)
    sequences = [0] * 5
    for _ in range(rng.randint(1, 5)):
        builder = small_builder()
        base, has_producer = offset, False
        for _ in range(rng.randint(1, 6)):
            headers: list[tuple[bytes, bytes]] = [(b"other", b"x")] * rng.randint(0, 1)
            if rng.random() < 0.6:
                who = rng.randrange(5)
                headers += zip(HEADERS, (b"p%d" % who, b"7", b"%d" % sequences[who]), strict=True)
                if offset >= cut:
                    kept.note(b"p%d" % who, 7, sequences[who], offset)
                sequences[who] += 1
                has_producer = True
            builder.add(None, b"v", headers)
            offset += 1
        with builder.stamp(base, 1, 1) as view:
            assert marks(view) == (has_producer, False)
            data += bytes(view)
    table = ProducerTable(3)
    half = rng.randint(cut, max(cut, offset))
    table.note_batches(data, cut, half)
    table.note_batches(data, half, offset)
    assert table.entries() == kept.entries()


@examples(200)
@given(RANDOMS)
def test_bytes_that_are_no_table_are_refused_or_are_one(rng: random.Random) -> None:
    table = ProducerTable(8)
    for number in range(rng.randint(1, 5)):
        for sequence in range(rng.randint(1, 4)):
            table.note(b"p%d" % number, number, sequence, 10 * sequence + number)
    data = bytearray(table.encode())
    for _ in range(rng.randint(1, 3)):
        data[rng.randrange(len(data))] = rng.randrange(256)
    data = data[: rng.randint(0, len(data))]
    try:
        found = ProducerTable.decode(data, 8)
    except ValueError:
        return
    assert found.encode() == bytes(data)


def test_the_producer_that_stored_longest_ago_is_forgotten() -> None:
    table = ProducerTable(2)
    table.note(b"a", 0, 0, 0)
    table.note(b"b", 0, 0, 1)
    table.note(b"a", 0, 1, 2)
    table.note(b"c", 0, 0, 3)
    assert [name for name, *_ in table.entries()] == [b"a", b"c"]
    assert table.forgotten == 1


def test_one_publisher_alone_makes_one_run() -> None:
    table = ProducerTable(2)
    for sequence in range(10_000):
        table.note(b"a", 0, sequence, 5 + sequence)
    assert table.entries() == [(b"a", 0, 9_999, [(0, 5, 10_000)])]
    assert table.judge(b"a", 0, 17) == (DUPLICATE, 22, 22)


@pytest.mark.parametrize("name", [b"", b"x" * 65])
def test_ids_have_bounds(name: bytes) -> None:
    with pytest.raises(ValueError, match="1 to 64"):
        ProducerTable(1).note(name, 0, 0, 0)
