"""What a builder refuses, how it says so, and that a refusal leaves no trace."""

from __future__ import annotations

import gc
import random
from array import array
from collections.abc import Callable, Iterator
from itertools import repeat
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import Buffer

from bascule.kernels.records import builder as builder_kernel
from bascule.kernels.records import records as kernel
from tests.parity.inputs.compare import agree, agree_on_building
from tests.parity.inputs.strategies import RANDOMS, examples
from tests.parity.twins import twin_builder

LIMITS: dict[str, Any] = {
    "key_bytes_max": 10,
    "value_bytes_max": 20,
    "headers_max": 3,
    "headers_bytes_max": 12,
    "subject_bytes_max": 8,
    "batch_bytes_max": 200,
    "records_max": 6,
}

Builder = builder_kernel.BatchBuilder | twin_builder.BatchBuilder
Change = Callable[[Builder], None]


def pair(**limits: Any) -> tuple[builder_kernel.BatchBuilder, twin_builder.BatchBuilder]:
    return builder_kernel.BatchBuilder(**{**LIMITS, **limits}), twin_builder.BatchBuilder(**{**LIMITS, **limits})


def start(builder: Builder) -> None:
    builder.add(b"key", b"value", [(b"n", b"v")], b"subject", b"reply", 5)


def agree_on_change(change: Change, *, started: bool, **limits: int) -> object:
    """Both refuse in the same words, or take the same bytes; after a refusal the builder is as it was."""
    ours, theirs = pair(**limits)
    if started:
        start(ours)
        start(theirs)
    before = (ours.count, ours.nbytes)
    answer = agree(lambda: change(ours), lambda: change(theirs), f"change of a builder, started: {started}")
    assert (ours.count, ours.nbytes) == (theirs.count, theirs.nbytes)
    if answer != ("NoneType", None):
        assert (ours.count, ours.nbytes) == before
    if started or ours.count:
        start(ours)
        start(theirs)
        assert bytes(ours.stamp(0, 0, 0)) == bytes(theirs.stamp(0, 0, 0))
    return answer


ACCEPTED = ("NoneType", None)

SINGLE: dict[str, tuple[Change, object]] = {
    "largest key": (lambda b: b.add(b"k" * 10, None), ACCEPTED),
    "key": (lambda b: b.add(b"k" * 11, None), ("LimitError", "key", 11, 10)),
    "largest value": (lambda b: b.add(None, b"v" * 20), ACCEPTED),
    "value": (lambda b: b.add(None, b"v" * 21), ("LimitError", "value", 21, 20)),
    "most headers": (lambda b: b.add(None, None, [(b"", b"")] * 3), ACCEPTED),
    "headers": (lambda b: b.add(None, None, [(b"", b"")] * 4), ("LimitError", "headers", 4, 3)),
    "headers without end": (
        lambda b: b.add(None, None, repeat((b"", b""))),
        ("LimitError", "headers", 4, 3),
    ),
    "largest headers": (lambda b: b.add(None, None, [(b"n" * 4, b"v" * 3), (b"", b"v")]), ACCEPTED),
    "header bytes": (
        lambda b: b.add(None, None, [(b"n" * 4, b"v" * 3), (b"n", b"v")]),
        ("LimitError", "header bytes", 13, 12),
    ),
    "largest subject": (lambda b: b.add(None, None, subject=b"s" * 8), ACCEPTED),
    "subject": (lambda b: b.add(None, None, subject=b"s" * 9), ("LimitError", "subject", 9, 8)),
    "largest reply": (lambda b: b.add(None, None, reply=b"r" * 8), ACCEPTED),
    "reply": (lambda b: b.add(None, None, reply=b"r" * 9), ("LimitError", "reply", 9, 8)),
}


@pytest.mark.parametrize("started", [False, True])
@pytest.mark.parametrize("case", SINGLE)
def test_a_record_above_a_limit_is_refused_by_name(case: str, started: bool) -> None:
    change, expected = SINGLE[case]
    assert agree_on_change(change, started=started) == expected


def test_one_record_too_many_is_refused() -> None:
    ours, theirs = pair()
    for builder in (ours, theirs):
        for _ in range(6):
            builder.add(None, b"")
    expected = ("LimitError", "records", 7, 6)
    assert agree(lambda: ours.add(None, b""), lambda: theirs.add(None, b""), "one more") == expected
    assert bytes(ours.stamp(0, 0, 0)) == bytes(theirs.stamp(0, 0, 0))


@pytest.mark.parametrize("room", range(-3, 4))
@pytest.mark.parametrize("started", [False, True])
def test_a_batch_is_full_at_exactly_its_limit(room: int, started: bool) -> None:
    measure, _ = pair(batch_bytes_max=10_000)
    if started:
        start(measure)

    def change(builder: Builder) -> None:
        builder.add(b"k" * 9, b"v" * 20, [(b"n", b"w")], b"other", b"reply", 300)

    change(measure)
    ours, theirs = pair(batch_bytes_max=measure.nbytes + room)
    for builder in (ours, theirs):
        if started:
            start(builder)
    answer = agree(lambda: change(ours), lambda: change(theirs), f"a batch with {room} bytes to spare")
    assert answer == (ACCEPTED if room >= 0 else ("LimitError", "batch", measure.nbytes, measure.nbytes + room))
    assert (ours.count, ours.nbytes) == (theirs.count, theirs.nbytes)


@examples(200)
@given(RANDOMS)
def test_random_records_are_taken_and_refused_alike(rng: random.Random) -> None:
    agree_on_building(rng)


# ── columns ──────────────────────────────────────────────────────────────────────────────────────


def ends(*numbers: int) -> array[int]:
    return array("q", numbers)


COLUMNS: dict[str, tuple[Change, object]] = {
    "values": (lambda b: b.add_columns(b"abcdef", ends(1, 1, 6)), ACCEPTED),
    "values and keys": (lambda b: b.add_columns(b"abc", ends(1, 3), b"kk", ends(0, 2), b"subject"), ACCEPTED),
    "nothing": (lambda b: b.add_columns(b"", ends()), ACCEPTED),
    "nothing and no keys": (lambda b: b.add_columns(b"", ends(), b"", ends()), ACCEPTED),
    "ends before the bytes do": (lambda b: b.add_columns(b"abcdef", ends(1, 2)), ACCEPTED),
    "decreasing": (lambda b: b.add_columns(b"abcdef", ends(3, 2, 6)), "ValueError"),
    "negative": (lambda b: b.add_columns(b"abcdef", ends(-1, 2)), "ValueError"),
    "most negative": (lambda b: b.add_columns(b"abcdef", ends(-(2**63), 2)), "ValueError"),
    "beyond the bytes": (lambda b: b.add_columns(b"abcdef", ends(3, 7)), "ValueError"),
    "far beyond the bytes": (lambda b: b.add_columns(b"abcdef", ends(3, 2**63 - 1)), "ValueError"),
    "beyond and back": (lambda b: b.add_columns(b"abcdef", ends(3, 100, 6)), "ValueError"),
    "decreasing keys": (lambda b: b.add_columns(b"ab", ends(1, 2), b"kk", ends(2, 1)), "ValueError"),
    "negative keys": (lambda b: b.add_columns(b"ab", ends(1, 2), b"kk", ends(-1, 1)), "ValueError"),
    "keys beyond the bytes": (lambda b: b.add_columns(b"ab", ends(1, 2), b"kk", ends(1, 3)), "ValueError"),
    "more keys": (lambda b: b.add_columns(b"ab", ends(1), b"kk", ends(1, 2)), "ValueError"),
    "fewer keys": (lambda b: b.add_columns(b"ab", ends(1, 2), b"kk", ends(1)), "ValueError"),
    "keys without ends": (lambda b: b.add_columns(b"ab", ends(1, 2), b"kk"), "ValueError"),
    "ends without keys": (lambda b: b.add_columns(b"ab", ends(1, 2), None, ends(1, 2)), "ValueError"),
    "32-bit ends": (lambda b: b.add_columns(b"ab", array("i", [1, 2])), "ValueError"),
    "32-bit key ends": (lambda b: b.add_columns(b"ab", ends(1, 2), b"kk", array("i", [1, 2])), "ValueError"),
    "ends as bytes": (lambda b: b.add_columns(b"ab", ends(1, 2).tobytes()), "ValueError"),
    "ends as floats": (lambda b: b.add_columns(b"ab", array("d", [0.0, 0.0])), "ValueError"),
    "unsigned ends": (lambda b: b.add_columns(b"ab", array("Q", [1, 2])), "ValueError"),
    "ends in two dimensions": (
        lambda b: b.add_columns(b"ab", memoryview(ends(0, 1, 1, 2)).cast("B").cast("q", (2, 2))),
        "ValueError",
    ),
    "value": (lambda b: b.add_columns(b"v" * 22, ends(1, 22)), ("LimitError", "value", 21, 20)),
    "key": (lambda b: b.add_columns(b"ab", ends(1, 2), b"k" * 12, ends(1, 12)), ("LimitError", "key", 11, 10)),
    "subject": (lambda b: b.add_columns(b"ab", ends(1, 2), subject=b"s" * 9), ("LimitError", "subject", 9, 8)),
}


@pytest.mark.parametrize("started", [False, True])
@pytest.mark.parametrize("case", COLUMNS)
def test_columns_are_taken_wholly_or_refused_by_name(case: str, started: bool) -> None:
    change, expected = COLUMNS[case]
    assert agree_on_change(change, started=started) == expected


@pytest.mark.parametrize("started", [False, True])
@pytest.mark.parametrize(
    ("values", "value_ends", "field"),
    [(b"", ends(*[0] * 8), "records"), (b"v" * 120, ends(20, 40, 60, 80, 100, 120), "batch")],
)
def test_columns_that_end_above_a_limit_leave_nothing_behind(
    values: bytes, value_ends: Buffer, field: str, started: bool
) -> None:
    ours, theirs = pair(batch_bytes_max=170, records_max=7)
    for builder in (ours, theirs):
        if started:
            start(builder)
        before = (builder.count, builder.nbytes)
        with pytest.raises((builder_kernel.LimitError, twin_builder.LimitError)) as caught:
            builder.add_columns(values, value_ends, subject=b"other")
        assert isinstance(caught.value, builder_kernel.LimitError | twin_builder.LimitError)
        assert caught.value.field == field
        assert caught.value.size > caught.value.limit
        assert (builder.count, builder.nbytes) == before
        start(builder)
    assert bytes(ours.stamp(0, 0, 0)) == bytes(theirs.stamp(0, 0, 0))


@examples(150)
@given(
    st.binary(max_size=40),
    st.lists(st.integers(-2, 45) | st.sampled_from([2**31, 2**32, 2**63 - 1, -(2**63)]), max_size=6),
    st.binary(max_size=20) | st.none(),
    st.lists(st.integers(-1, 22), max_size=6),
    st.booleans(),
)
def test_random_columns_are_taken_and_refused_alike(
    values: bytes, value_ends: list[int], keys: bytes | None, key_ends: list[int], tidy: bool
) -> None:
    if tidy:
        value_ends.sort()
        key_ends.sort()
        key_ends = (key_ends + [len(keys or b"")] * 6)[: len(value_ends)]
    ours, theirs = pair(batch_bytes_max=10_000, value_bytes_max=100, key_bytes_max=100, records_max=100)
    for builder in (ours, theirs):
        start(builder)
    arguments = (values, ends(*value_ends), keys, None if keys is None else ends(*key_ends))
    agree(lambda: ours.add_columns(*arguments), lambda: theirs.add_columns(*arguments), arguments)
    assert bytes(ours.stamp(0, 0, 0)) == bytes(theirs.stamp(0, 0, 0))


# ── stamping ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("base_offset", "timestamp", "good"),
    [
        (0, 0, True),
        (2**63 - 3, 0, True),
        (2**63 - 2, 0, False),
        (2**63 - 1, 0, False),
        (-1, 0, False),
        (0, -1, False),
        (0, 2**63 - 1 - 1000, True),
        (0, 2**63 - 1000, False),
    ],
)
def test_offsets_and_times_must_fit(base_offset: int, timestamp: int, good: bool) -> None:
    ours, theirs = pair()
    for builder in (ours, theirs):
        builder.add(None, b"")
        builder.add(None, b"", time_delta=1000)

    def stamp(builder: Builder) -> bytes:
        return bytes(builder.stamp(base_offset, 0, timestamp))

    answer = agree(lambda: stamp(ours), lambda: stamp(theirs), (base_offset, timestamp))
    assert (answer != "ValueError") == good
    if good:
        assert kernel.check(stamp(ours)) == ours.nbytes


@pytest.mark.parametrize("time_delta", [2**63 - 1, 2**63, 2**64 - 5, 2**64 - 1])
def test_a_time_that_overflows_is_refused_and_never_wraps(time_delta: int) -> None:
    ours, _ = pair()
    with pytest.raises((ValueError, OverflowError)):
        ours.add(None, b"", time_delta=time_delta)
        ours.stamp(0, 0, 10)


@pytest.mark.parametrize("epoch", [-1, 2**64])
def test_epochs_must_fit(epoch: int) -> None:
    ours, _ = pair()
    ours.add(None, b"")
    with pytest.raises((ValueError, OverflowError)):
        ours.stamp(0, epoch, 0)


def test_a_batch_without_records_is_never_stamped() -> None:
    for builder in pair():
        with pytest.raises(ValueError, match="record"):
            builder.stamp(0, 0, 0)


# ── memory ───────────────────────────────────────────────────────────────────────────────────────


def test_a_stamped_batch_outlives_its_builder() -> None:
    builder, theirs = pair()
    for one in (builder, theirs):
        start(one)
    view = builder.stamp(0, 0, 0)
    del builder
    gc.collect()
    assert bytes(view) == bytes(theirs.stamp(0, 0, 0))


def test_a_stamped_batch_is_read_only() -> None:
    builder, _ = pair()
    start(builder)
    view = builder.stamp(0, 0, 0)
    assert view.readonly
    assert (view.format, view.itemsize, view.ndim) == ("B", 1, 1)


@pytest.mark.parametrize(
    "change",
    [
        lambda b: b.add(None, b"v"),
        lambda b: b.add_columns(b"v", ends(1)),
        lambda b: b.clear(),
    ],
    ids=["add", "add_columns", "clear"],
)
def test_a_builder_does_not_change_under_a_view(change: Callable[[builder_kernel.BatchBuilder], None]) -> None:
    builder, _ = pair()
    start(builder)
    view = builder.stamp(0, 0, 0)
    before = bytes(view)
    with pytest.raises(BufferError):
        change(builder)
    assert bytes(view) == before
    view.release()
    change(builder)


def test_a_builder_does_not_take_itself_in() -> None:
    """Its own bytes may move while they are copied."""
    builder, _ = pair(key_bytes_max=100_000, value_bytes_max=100_000, batch_bytes_max=1_000_000)
    builder.add(None, b"v" * 4000)
    with pytest.raises((BufferError, TypeError)):
        builder.add(builder, builder)  # type: ignore[arg-type]
    assert builder.count == 1


def test_headers_that_stamp_the_builder_while_they_are_read_are_refused() -> None:
    builder, _ = pair(value_bytes_max=100_000, batch_bytes_max=1_000_000)
    builder.add(None, b"v" * 4000)
    views: list[memoryview] = []

    def headers() -> Iterator[tuple[bytes, bytes]]:
        views.append(builder.stamp(0, 0, 0))
        yield b"n", b"v"

    with pytest.raises(BufferError):
        builder.add(None, b"w" * 50_000, headers())
    assert kernel.check(views[0]) == len(views[0])
    assert builder.count == 1


def test_headers_that_fail_half_way_leave_the_builder_as_it_was() -> None:
    def headers() -> Iterator[tuple[bytes, bytes]]:
        yield b"n", b"v"
        raise KeyError("half way")

    ours, theirs = pair()
    for builder in (ours, theirs):
        start(builder)
        with pytest.raises(KeyError):
            builder.add(None, b"w", headers(), b"other")
    assert bytes(ours.stamp(0, 0, 0)) == bytes(theirs.stamp(0, 0, 0))


@pytest.mark.parametrize(
    "arguments",
    [
        ("text", None),
        (None, "text"),
        (None, 5),
        (None, None, [b"n"]),
        (None, None, [(b"n", None)]),
        (None, None, [("n", b"v")]),
        (None, None, [(b"n", b"v", b"w")]),
        (None, None, (), None),
        (None, None, (), "subject"),
        (None, None, (), b"", None),
    ],
)
def test_what_is_not_bytes_is_refused_without_a_trace(arguments: tuple[object, ...]) -> None:
    builder, theirs = pair()
    for one in (builder, theirs):
        start(one)
    with pytest.raises((TypeError, ValueError)):
        builder.add(*arguments)  # type: ignore[arg-type]
    assert bytes(builder.stamp(0, 0, 0)) == bytes(theirs.stamp(0, 0, 0))


def look_at(builder: Any) -> bytes:
    """Past the type checker: a builder has a buffer, which is nobody's business before it is stamped."""
    return bytes(memoryview(builder))


def test_a_builder_shows_nothing_before_it_is_stamped() -> None:
    ours, _ = pair()
    with pytest.raises(BufferError, match="stamped"):
        look_at(ours)
    ours.add(None, b"v")
    with pytest.raises(BufferError, match="stamped"):
        look_at(ours)
    bytes(ours.stamp(0, 0, 0))
    ours.add(None, b"more")
    with pytest.raises(BufferError, match="stamped"):
        look_at(ours)


def test_refusals_are_the_errors_that_were_asked_for() -> None:
    builder = builder_kernel.BatchBuilder(**LIMITS, error=KeyError)
    with pytest.raises(KeyError):
        builder.add(b"k" * 11, None)
    with pytest.raises(KeyError):
        builder.add(None, None, [(b"", b"")] * 4)
    with pytest.raises(KeyError):
        builder.add_columns(b"v" * 22, ends(1, 22))
