"""The client's own codec against protobuf's: the same bytes, the same fields, for every message of its table."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bascule.client.connection import wire
from bascule.errors import OperatorError
from tests.support.api_client import pb

INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
KINDS: dict[str, st.SearchStrategy[Any]] = {
    "int32": st.integers(-(1 << 31), (1 << 31) - 1),
    "int64": INT64,
    "uint64": st.integers(0, (1 << 64) - 1),
    "bool": st.booleans(),
    "string": st.text(max_size=5),
    "bytes": st.binary(max_size=5),
}
ENUMS = ("error", "ackError", "code", "ackPolicy", "startPosition", "stopPosition")
MAPS = {"HeadersEntry", "PartitionsEntry"}
MESSAGES = sorted(set(wire.TABLE) - MAPS)


def values_of(message: str) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional={field.name: value_of(field) for field in wire._FIELDS[message]})


def value_of(field: wire.Field) -> st.SearchStrategy[Any]:
    if field.kind in MAPS:
        inner = KINDS["bytes"] if field.kind == "HeadersEntry" else values_of("PartitionMetadata")
        keys = KINDS["string"] if field.kind == "HeadersEntry" else KINDS["int32"]
        return st.dictionaries(keys, inner, max_size=3).map(
            lambda entries: [{"key": key, "value": entries[key]} for key in sorted(entries)]
        )
    one = KINDS[field.kind] if field.kind in KINDS else values_of(field.kind)
    if field.kind == "int32" and field.name in ENUMS:
        one = st.integers(0, 3)
    return st.lists(one, max_size=3) if field.repeated else one


def to_protobuf(message: str, values: dict[str, Any]) -> Any:
    found = getattr(pb, message)()
    for field in wire._FIELDS[message]:
        if field.name not in values:
            continue
        value = values[field.name]
        if field.kind in MAPS:
            target = getattr(found, field.name)
            for entry in value:
                if field.kind == "HeadersEntry":
                    target[entry["key"]] = entry["value"]
                else:
                    target[entry["key"]].CopyFrom(to_protobuf("PartitionMetadata", entry["value"]))
        elif field.kind in wire.TABLE:
            if field.repeated:
                getattr(found, field.name).extend(to_protobuf(field.kind, one) for one in value)
            else:
                getattr(found, field.name).CopyFrom(to_protobuf(field.kind, value))
        elif field.repeated:
            getattr(found, field.name).extend(value)
        else:
            setattr(found, field.name, value)
    return found


def complete(message: str, values: dict[str, Any]) -> dict[str, Any]:
    """With the defaults of everything that was left out."""
    found: dict[str, Any] = {}
    for field in wire._FIELDS[message]:
        value = values.get(field.name, wire._default(field))
        if field.kind in wire.TABLE and value:
            value = [complete(field.kind, one) for one in value] if field.repeated else complete(field.kind, value)
        elif field.kind in wire.TABLE and not field.repeated and value == {}:
            value = complete(field.kind, {})
        found[field.name] = value
    return found


@pytest.mark.parametrize("message", MESSAGES)
@given(data=st.data())
def test_what_is_encoded_is_what_protobuf_reads(message: str, data: st.DataObject) -> None:
    values = data.draw(values_of(message))
    assert getattr(pb, message).FromString(wire.encode(message, **values)) == to_protobuf(message, values)


@pytest.mark.parametrize("message", MESSAGES)
@given(data=st.data())
def test_what_protobuf_writes_is_decoded(message: str, data: st.DataObject) -> None:
    values = data.draw(values_of(message))
    found = wire.decode(message, to_protobuf(message, values).SerializeToString(deterministic=True))
    assert in_order(message, found) == in_order(message, complete(message, values))


def in_order(message: str, fields: dict[str, Any]) -> dict[str, Any]:
    """With the entries of maps in one order, however deep they lie: protobuf promises none."""
    found = dict(fields)
    for field in wire._FIELDS[message]:
        value = found[field.name]
        if field.kind in wire.TABLE and value:
            found[field.name] = (
                [in_order(field.kind, one) for one in value] if field.repeated else in_order(field.kind, value)
            )
        if field.kind in MAPS:
            found[field.name] = sorted(found[field.name], key=lambda entry: str(entry["key"]))
    return found


@given(data=st.binary(max_size=60), message=st.sampled_from(MESSAGES))
def test_foreign_bytes_are_refused_or_read_and_nothing_else(data: bytes, message: str) -> None:
    try:
        wire.decode(message, data)
    except OperatorError as error:
        assert message in error.message


def test_fields_of_the_table_are_those_of_the_proto() -> None:
    for message in MESSAGES:
        described = {field.name: field.number for field in getattr(pb, message).DESCRIPTOR.fields}
        assert {field.name: field.number for field in wire._FIELDS[message]} == described
