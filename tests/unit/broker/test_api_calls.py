"""The control plane through the gRPC server, as a client that nobody of us wrote calls it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from bascule.config.sections.cluster import CursorStream
from bascule.net.grpc.server import GrpcServer
from bascule.proto import api_pb2 as api
from tests.support.api_client import grpc
from tests.support.control_plane import Cluster, configured, run, running, until

Calls = Callable[..., Any]


@asynccontextmanager
async def served(cluster: Cluster) -> AsyncIterator[Calls]:
    """Calls by their names; grpcio has its own threads and is asked from another one."""
    server = GrpcServer(cluster.alone.routes)
    port = await server.start("127.0.0.1", 0)
    channel = grpc.insecure_channel(f"127.0.0.1:{port}")

    async def call(name: str, /, timeout: float | None = 20, data: bytes | None = None, **fields: Any) -> Any:
        request = getattr(api, f"{name}Request")(**fields)
        response = getattr(api, f"{name}Response")
        method = channel.unary_unary(
            f"/proto.API/{name}",
            request_serializer=lambda message: message.SerializeToString() if data is None else data,
            response_deserializer=response.FromString,
        )
        return await asyncio.to_thread(method, request, timeout=timeout)

    try:
        yield call
    finally:
        await asyncio.to_thread(channel.close)
        await server.stop()


def test_every_call_of_the_control_plane_is_answered(tmp_path: Path) -> None:
    async def scenario() -> None:
        config = configured(cursors=CursorStream(stream_partitions=1))
        async with running(tmp_path, config=config) as cluster, served(cluster) as call:
            await until(lambda: "__cursors" in cluster.alone.controller.metadata.streams)
            await call("CreateStream", name="orders", subject="orders", partitions=2)
            found = await call("FetchMetadata", streams=["orders"])
            assert found.brokers[0].host == "a.example"
            assert sorted(found.streamMetadata[0].partitions) == [0, 1]
            assert (await call("FetchPartitionMetadata", stream="orders", partition=1)).metadata.newestOffset == -1
            await call("SetCursor", stream="orders", cursorId="c", offset=7)
            assert (await call("FetchCursor", stream="orders", cursorId="c")).offset == 7
            joined = await call("JoinConsumerGroup", groupId="g", consumerId="c", streams=["orders"])
            assert joined.consumerTimeout == 15_000_000_000
            assigned = await call("FetchConsumerGroupAssignments", groupId="g", consumerId="c", epoch=joined.epoch)
            assert list(assigned.assignments[0].partitions) == [0, 1]
            with pytest.raises(grpc.RpcError, match="candidates"):
                await call("ReportConsumerGroupCoordinator", groupId="g", consumerId="c", coordinator="a")
            await call("LeaveConsumerGroup", groupId="g", consumerId="c")
            await call("SetStreamReadonly", name="orders", readonly=True)
            await call("PauseStream", name="orders")
            await call("DeleteStream", name="orders", timeout=None)

    run(scenario())


def code_of(error: pytest.ExceptionInfo[Any]) -> tuple[Any, str]:
    return error.value.code(), error.value.details()


def test_refusals_arrive_with_their_code_and_text(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as cluster, served(cluster) as call:
            with pytest.raises(grpc.RpcError) as error:
                await call("DeleteStream", name="nobody")
            assert code_of(error) == (grpc.StatusCode.NOT_FOUND, "stream does not exist")
            with pytest.raises(grpc.RpcError) as error:
                await call("CreateStream", name="größe", subject="a b")
            code, text = code_of(error)
            assert code == grpc.StatusCode.INVALID_ARGUMENT
            assert text.startswith("Subject is invalid: it has a space")

    run(scenario())


def test_bytes_that_are_no_request_are_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as cluster, served(cluster) as call:
            with pytest.raises(grpc.RpcError) as error:
                await call("CreateStream", data=b"\xff\xff\xff")
            assert code_of(error)[0] == grpc.StatusCode.INTERNAL
            assert (await call("FetchMetadata")).brokers[0].id == "a"

    run(scenario())
