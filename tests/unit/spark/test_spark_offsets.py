"""Offsets in a checkpoint. The files in spark_offsets/ are what released versions wrote: they have to stay readable."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bascule.errors import CheckpointMismatch
from bascule.spark.read.offsets import Offsets, StreamOffsets, effective_start
from bascule.spark.read.offsets import end_of_batch as noted_end

GOLDEN = sorted((Path(__file__).parent / "spark_offsets").glob("*.json"))


def orders(offset: int, **fields: object) -> Offsets:
    return Offsets({"orders": StreamOffsets(17, {0: offset}, **fields)})  # type: ignore[arg-type]


def end_of_batch(start: Offsets, end: Offsets) -> Offsets:
    return noted_end(start, start, end)


@pytest.mark.parametrize("file", GOLDEN, ids=lambda file: file.stem)
def test_what_was_written_once_is_read_and_written_the_same(file: Path) -> None:
    text = file.read_text("utf-8").strip()
    assert json.dumps(Offsets.parse(json.loads(text)).document()) == text


def test_the_golden_files_mean_what_they_say() -> None:
    def read(name: str) -> Offsets:
        return Offsets.parse(json.loads((Path(__file__).parent / "spark_offsets" / name).read_text("utf-8")))

    assert read("end.json").streams["orders"] == StreamOffsets(17, {0: 23, 1: 45})
    assert read("initial.json").streams["orders"] == StreamOffsets(17, {0: 20, 1: 45}, is_initial=True)
    assert read("end-of-batch-0.json").streams["orders"] == StreamOffsets(17, {0: 23, 1: 45}, began={0: 20, 1: 45})
    assert read("without-id.json").streams["orders"].id is None


offsets = st.dictionaries(st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1), max_size=5)
anything = st.builds(
    Offsets,
    st.dictionaries(
        st.text(min_size=1),
        st.builds(
            StreamOffsets,
            st.one_of(st.none(), st.integers(0, 2**63 - 1)),
            offsets,
            st.booleans(),
            st.one_of(st.none(), offsets),
        ),
        max_size=4,
    ),
)


@given(anything)
def test_offsets_come_back_as_they_were(found: Offsets) -> None:
    assert Offsets.parse(json.loads(json.dumps(found.document()))) == found


@given(anything)
def test_the_text_does_not_depend_on_the_order_things_came_in(found: Offsets) -> None:
    turned = {
        name: StreamOffsets(each.id, dict(reversed(list(each.next.items()))), each.is_initial, each.began)
        for name, each in reversed(list(found.streams.items()))
    }
    assert json.dumps(Offsets(turned).document()) == json.dumps(found.document())


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        3,
        {"orders": 3},
        {"orders": {"a": 1}},
        {"orders": {"01": 1}},
        {"orders": {"-1": 1}},
        {"orders": {"0": -1}},
        {"orders": {"0": "1"}},
        {"orders": {"0": True}},
        {"orders": {"0": 1.5}},
        {"orders": {"0": 1, "id": "x"}},
        {"orders": {"0": 1, "id": -1}},
        {"orders": {"0": 1, "initial": 1}},
        {"orders": {"0": 1, "from": 1}},
        {"orders": {"0": 1, "from": {"0": -2}}},
        {"orders": {"99999999999": 1}},
        {"": {"0": 1}},
        {"logOffset": 12},
    ],
)
def test_offsets_of_somebody_else_are_refused(document: object) -> None:
    with pytest.raises(CheckpointMismatch, match="not of this source"):
        Offsets.parse(document)


def test_the_end_of_the_first_batch_says_where_it_began() -> None:
    end = end_of_batch(orders(20, is_initial=True), orders(23))
    assert end.document() == {"orders": {"0": 23, "id": 17, "from": {"0": 20}}}


def test_a_first_batch_that_is_repeated_begins_where_it_began_whatever_latest_is_by_now() -> None:
    end = end_of_batch(orders(20, is_initial=True), orders(23))
    later = orders(99, is_initial=True)
    assert effective_start(later, end) == orders(20)


def test_a_later_batch_begins_where_the_one_before_ended() -> None:
    first = end_of_batch(orders(20, is_initial=True), orders(23))
    second = end_of_batch(first, orders(30))
    assert second == orders(30)
    assert effective_start(first, second).streams["orders"].next == {0: 23}


def test_a_batch_begins_where_the_one_before_ended_whatever_its_note_says() -> None:
    assert effective_start(orders(23), orders(30, began={0: 20})).streams["orders"].next == {0: 23}


def test_nothing_new_looks_exactly_as_before() -> None:
    first = end_of_batch(orders(20, is_initial=True), orders(23))
    assert end_of_batch(first, orders(23)).document() == first.document()
    assert end_of_batch(orders(23), orders(23)).document() == orders(23).document()


def test_an_empty_first_batch_still_says_where_it_began() -> None:
    assert end_of_batch(orders(20, is_initial=True), orders(20)) == orders(20, began={0: 20})


def test_a_stream_created_again_or_found_later_says_where_it_began() -> None:
    again = Offsets({"orders": StreamOffsets(99, {0: 23}), "returns": StreamOffsets(100, {0: 7})})
    began = Offsets({"orders": StreamOffsets(99, {0: 1}), "returns": StreamOffsets(100, {0: 2})})
    end = noted_end(orders(23), began, again)
    assert end.document() == {
        "orders": {"0": 23, "id": 99, "from": {"0": 1}},
        "returns": {"0": 7, "id": 100, "from": {"0": 2}},
    }
    start = effective_start(orders(23), end)
    assert {name: dict(stream.next) for name, stream in start.streams.items()} == {"orders": {0: 1}, "returns": {0: 2}}


def test_a_stream_that_is_gone_is_not_read() -> None:
    assert effective_start(orders(23), Offsets()) == Offsets()
