"""Protobuf messages that are declared in a few lines of Python, in a pool of their own.

The services every gRPC server offers (health, reflection) are declared by other packages too; in the pool that all share, ours
would collide with theirs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    MethodDescriptorProto,
    ServiceDescriptorProto,
)
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

_SCALARS: Final = {
    "string": FieldDescriptorProto.TYPE_STRING,
    "bytes": FieldDescriptorProto.TYPE_BYTES,
    "int32": FieldDescriptorProto.TYPE_INT32,
}


def message(
    name: str,
    *fields: FieldDescriptorProto,
    nested: Sequence[DescriptorProto] = (),
    enums: Sequence[EnumDescriptorProto] = (),
    oneof: str | None = None,
) -> DescriptorProto:
    """Fields that were declared with `one_of=True` are in the one `oneof`."""
    declared = DescriptorProto(name=name, field=fields, nested_type=nested, enum_type=enums)
    if oneof is not None:
        declared.oneof_decl.add(name=oneof)
    return declared


def map_entry(name: str, value_type: str) -> DescriptorProto:
    entry = message(name, field("key", 1, "string"), field("value", 2, value_type))
    entry.options.map_entry = True
    return entry


def field(
    name: str, number: int, kind: str, *, repeated: bool = False, enum: bool = False, one_of: bool = False
) -> FieldDescriptorProto:
    """`kind` is a scalar type, or the full name of a message or enum with a dot before it."""
    declared = FieldDescriptorProto(
        name=name,
        number=number,
        label=FieldDescriptorProto.LABEL_REPEATED if repeated else FieldDescriptorProto.LABEL_OPTIONAL,
    )
    if kind in _SCALARS:
        declared.type = _SCALARS[kind]
    else:
        declared.type = FieldDescriptorProto.TYPE_ENUM if enum else FieldDescriptorProto.TYPE_MESSAGE
        declared.type_name = kind
    if one_of:
        declared.oneof_index = 0
    return declared


def enum(name: str, values: Mapping[str, int]) -> EnumDescriptorProto:
    declared = EnumDescriptorProto(name=name)
    for value, number in values.items():
        declared.value.add(name=value, number=number)
    return declared


def service(name: str, *methods: MethodDescriptorProto) -> ServiceDescriptorProto:
    return ServiceDescriptorProto(name=name, method=methods)


def method(
    name: str, request: str, reply: str, *, client_streaming: bool = False, server_streaming: bool = False
) -> MethodDescriptorProto:
    return MethodDescriptorProto(
        name=name,
        input_type=request,
        output_type=reply,
        client_streaming=client_streaming,
        server_streaming=server_streaming,
    )


def message_class(pool: DescriptorPool, name: str) -> Any:
    return GetMessageClass(pool.FindMessageTypeByName(name))


def add_file(pool: DescriptorPool, file: FileDescriptorProto) -> None:
    pool.AddSerializedFile(file.SerializeToString())
