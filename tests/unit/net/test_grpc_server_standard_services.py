"""Health and reflection, asked by the clients that gRPC itself publishes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc  # type: ignore[import-untyped]
import pytest
from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2, health_pb2_grpc  # type: ignore[import-untyped]
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc  # type: ignore[import-untyped]
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (  # type: ignore[import-untyped]
    ProtoReflectionDescriptorDatabase,
)

from bascule.net.grpc.health import HealthState, health_routes
from bascule.net.grpc.reflection import reflection_routes
from bascule.net.grpc.server import GrpcServer
from bascule.proto import api_pb2
from bascule.proto import health_pb2 as own_health
from bascule.proto import reflection_pb2 as own_reflection


class Standard:
    def __init__(self) -> None:
        self.health = HealthState()
        self.server = GrpcServer({**health_routes(self.health), **reflection_routes([api_pb2.DESCRIPTOR])})

    async def start(self) -> str:
        return f"127.0.0.1:{await self.server.start()}"


def run(scenario: object) -> None:
    asyncio.run(scenario)  # type: ignore[arg-type]


def test_check_answers_for_known_services_and_the_server_itself() -> None:
    async def scenario() -> None:
        standard = Standard()
        standard.health.set("proto.API", True)
        async with grpc.aio.insecure_channel(await standard.start()) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            for name in ("", "proto.API"):
                answer = await stub.Check(health_pb2.HealthCheckRequest(service=name))
                assert answer.status == health_pb2.HealthCheckResponse.SERVING
            standard.health.set("proto.API", False)
            answer = await stub.Check(health_pb2.HealthCheckRequest(service="proto.API"))
            assert answer.status == health_pb2.HealthCheckResponse.NOT_SERVING
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await stub.Check(health_pb2.HealthCheckRequest(service="elsewhere"))
            assert refused.value.code() == grpc.StatusCode.NOT_FOUND
            if hasattr(stub, "List"):
                listed = await stub.List(health_pb2.HealthListRequest())
                assert {name: one.status for name, one in listed.statuses.items()} == {"": 1, "proto.API": 2}
        await standard.server.stop()

    run(scenario())


def test_a_watcher_hears_of_every_change_and_of_the_end() -> None:
    async def scenario() -> None:
        standard = Standard()
        async with grpc.aio.insecure_channel(await standard.start()) as channel:
            watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service="proto.API"))
            answers: AsyncIterator[health_pb2.HealthCheckResponse] = watch.__aiter__()
            assert (await anext(answers)).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
            standard.health.set("proto.API", True)
            assert (await anext(answers)).status == health_pb2.HealthCheckResponse.SERVING
            standard.health.set("proto.API", True)
            standard.health.set("other", True)
            standard.health.set("proto.API", False)
            assert (await anext(answers)).status == health_pb2.HealthCheckResponse.NOT_SERVING
            stopping = asyncio.create_task(standard.server.stop(5))
            with pytest.raises(grpc.aio.AioRpcError) as ended:
                await anext(answers)
            assert ended.value.code() == grpc.StatusCode.UNAVAILABLE
            await stopping
            assert standard.health._watchers == set()

    run(scenario())


def test_reflection_tells_all_that_is_needed_to_call_the_api() -> None:
    async def scenario() -> None:
        standard = Standard()
        address = await standard.start()

        def ask() -> None:
            with grpc.insecure_channel(address) as channel:
                database = ProtoReflectionDescriptorDatabase(channel)
                assert sorted(database.get_services()) == [
                    "grpc.health.v1.Health",
                    "grpc.reflection.v1.ServerReflection",
                    "grpc.reflection.v1alpha.ServerReflection",
                    "proto.API",
                ]
                pool = DescriptorPool(database)
                api = pool.FindServiceByName("proto.API")
                assert {one.name for one in api.methods} == {
                    one.name for one in api_pb2.DESCRIPTOR.services_by_name["API"].methods
                }
                assert pool.FindMessageTypeByName("proto.SubscribeRequest").fields_by_name["stream"].number == 1
                health = pool.FindServiceByName("grpc.health.v1.Health")
                assert health.methods_by_name["Watch"].output_type.full_name == "grpc.health.v1.HealthCheckResponse"
                with pytest.raises(KeyError):
                    pool.FindMessageTypeByName("proto.Nothing")

        await asyncio.to_thread(ask)
        await standard.server.stop()

    run(scenario())


def test_both_versions_of_reflection_speak_the_same_messages() -> None:
    async def scenario() -> None:
        standard = Standard()
        async with grpc.aio.insecure_channel(await standard.start()) as channel:
            for version in ("v1", "v1alpha"):
                call = channel.stream_stream(
                    f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
                    request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
                    response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
                )()
                questions = [
                    reflection_pb2.ServerReflectionRequest(file_containing_symbol="proto.API.Subscribe"),
                    reflection_pb2.ServerReflectionRequest(file_by_filename="nothing.proto"),
                    reflection_pb2.ServerReflectionRequest(all_extension_numbers_of_type="proto.Message"),
                    reflection_pb2.ServerReflectionRequest(),
                ]
                kinds = []
                for question in questions:
                    await call.write(question)
                    answer = await call.read()
                    assert answer.original_request == question
                    kinds.append(answer.WhichOneof("message_response"))
                assert kinds == [
                    "file_descriptor_response",
                    "error_response",
                    "all_extension_numbers_response",
                    "error_response",
                ]
                await call.done_writing()
                assert await call.code() == grpc.StatusCode.OK
        await standard.server.stop()

    run(scenario())


def test_the_old_reflection_stub_still_works() -> None:
    async def scenario() -> None:
        standard = Standard()
        async with grpc.aio.insecure_channel(await standard.start()) as channel:
            stub = reflection_pb2_grpc.ServerReflectionStub(channel)
            answers = [
                one
                async for one in stub.ServerReflectionInfo(
                    iter([reflection_pb2.ServerReflectionRequest(list_services="")])
                )
            ]
            assert "proto.API" in [one.name for one in answers[0].list_services_response.service]
        await standard.server.stop()

    run(scenario())


def declared(file: FileDescriptor) -> dict[str, object]:
    """Names, numbers and types of everything that a file declares, without the package."""
    found: dict[str, object] = {}
    for message in file.message_types_by_name.values():
        for field in message.fields:
            oneof = field.containing_oneof.name if field.containing_oneof else None
            found[f"{message.name}.{field.name}"] = (field.number, field.type, field.is_repeated, oneof)
        for enum in message.enum_types:
            found[f"{message.name}.{enum.name}"] = {value.name: value.number for value in enum.values}
    for service in file.services_by_name.values():
        for method in service.methods:
            streams = (method.client_streaming, method.server_streaming)
            found[f"{service.name}.{method.name}"] = (method.input_type.name, method.output_type.name, streams)
    return found


@pytest.mark.parametrize(
    ("own", "public"),
    [(own_health.DESCRIPTOR, health_pb2.DESCRIPTOR), (own_reflection.DESCRIPTOR, reflection_pb2.DESCRIPTOR)],
)
def test_the_declarations_are_those_of_the_public_protocol(own: FileDescriptor, public: FileDescriptor) -> None:
    assert declared(own) == declared(public)
