"""The client's table of the cluster's messages is what proto/extensions.proto says."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor

from bascule.client.connection import wire
from bascule.client.connection.cluster_table import CLUSTER_TABLE
from bascule.proto import extensions_pb2 as extensions

KINDS = {
    FieldDescriptor.TYPE_STRING: "string",
    FieldDescriptor.TYPE_BYTES: "bytes",
    FieldDescriptor.TYPE_BOOL: "bool",
    FieldDescriptor.TYPE_INT32: "int32",
    FieldDescriptor.TYPE_INT64: "int64",
    FieldDescriptor.TYPE_DOUBLE: "double",
    FieldDescriptor.TYPE_ENUM: "int32",
}


def declared(field: Any) -> wire.Field:
    kind = field.message_type.name if field.message_type is not None else KINDS[field.type]
    return wire.Field(field.number, field.name, kind, bool(field.is_repeated))


def descriptors() -> dict[str, Any]:
    """All messages, and the entries of their maps."""
    messages = extensions.DESCRIPTOR.message_types_by_name
    return {**messages, **{entry.name: entry for message in messages.values() for entry in message.nested_types}}


@pytest.mark.parametrize("message", CLUSTER_TABLE)
def test_every_field_is_declared_as_in_the_proto(message: str) -> None:
    assert list(wire._FIELDS[message]) == [declared(field) for field in descriptors()[message].fields]


def test_every_message_of_the_service_is_known() -> None:
    methods = extensions.DESCRIPTOR.services_by_name["Cluster"].methods
    asked = {kind.name for method in methods for kind in (method.input_type, method.output_type)}
    assert asked <= set(CLUSTER_TABLE)


def test_a_nested_answer_comes_through() -> None:
    answer = extensions.StatusResponse(controller="a", throttle_bytes_per_second=1 << 40)
    answer.members.add(id="a", answers=True, state=extensions.Member.DRAINING, uptime_ms=5)
    move = answer.reassignments.add(stream="s", partition=3, log_end_offset=-1, to=["b", "c"])
    move.replicas.add(server="b", lag_messages=-1, in_sync=True)
    found = wire.decode("StatusResponse", answer.SerializeToString())
    assert (found["controller"], found["throttle_bytes_per_second"]) == ("a", 1 << 40)
    assert (found["members"][0]["state"], found["members"][0]["uptime_ms"]) == (2, 5)
    assert found["reassignments"][0]["to"] == ["b", "c"]
    assert found["reassignments"][0]["replicas"][0]["lag_messages"] == -1
