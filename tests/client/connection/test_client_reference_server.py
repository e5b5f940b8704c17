"""What Liftbridge's server does and ours does not, played by grpcio: the client keeps to what the specification says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

import bascule
from bascule import errors
from tests.support.api_client import METHODS, Api, Status, grpc, pb
from tests.support.on_loop import on_loop, soon


class Server:
    """Answers from scripts: for each method a list of what the next calls get, the last of it for ever."""

    def __init__(self) -> None:
        self.requests: dict[str, list[Any]] = {}
        self.scripts: dict[str, list[Any]] = {}
        self.port = 0

    def next(self, method: str, request: Any) -> Any:
        self.requests.setdefault(method, []).append(request)
        script = self.scripts[method]
        return script.pop(0) if len(script) > 1 else script[0]

    def metadata(self, **partition: Any) -> Any:
        """One broker, one stream `s` with one partition that it leads."""
        found = pb.PartitionMetadata(**{"id": 0, "leader": "b", "replicas": ["b"], "isr": ["b"], **partition})
        return pb.FetchMetadataResponse(
            brokers=[pb.Broker(id="b", host="127.0.0.1", port=self.port)],
            streamMetadata=[pb.StreamMetadata(name="s", subject="s", partitions={0: found})],
        )


def failure(status: Any, text: str = "") -> Callable[[Any], Any]:
    async def fail(context: Any) -> None:
        await context.abort(status, text)

    return fail


def handler(server: Server, method: str) -> Any:
    kinds = [Api.input(method), Api.output(method)]

    async def unary(request: Any, context: Any) -> Any:
        answer = server.next(method, request)
        return await answer(context) if callable(answer) else answer

    async def stream(request: Any, context: Any) -> AsyncIterator[Any]:
        for one in server.next(method, request):
            if callable(one):
                await one(context)
            elif isinstance(one, float):
                await asyncio.sleep(one)
            else:
                yield one

    async def session(requests: Any, context: Any) -> AsyncIterator[Any]:
        async for request in requests:
            answer = server.next(method, request)
            if callable(answer):
                await answer(context)
            elif answer is not None:
                answer.correlationId = request.correlationId
                yield answer

    make = {"Subscribe": grpc.unary_stream_rpc_method_handler, "PublishAsync": grpc.stream_stream_rpc_method_handler}
    behaviour = {"Subscribe": stream, "PublishAsync": session}.get(method, unary)
    serve = make.get(method, grpc.unary_unary_rpc_method_handler)
    return serve(behaviour, kinds[0].FromString, kinds[1].SerializeToString)


@asynccontextmanager
async def reference(**scripts: list[Any]) -> AsyncIterator[tuple[Server, bascule.Client]]:
    server = Server()
    aio = grpc.aio.server()
    handlers = {method: handler(server, method) for method in METHODS}
    aio.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("proto.API", handlers),))
    server.port = aio.add_insecure_port("127.0.0.1:0")
    server.scripts = {"FetchMetadata": [server.metadata()], "FetchPartitionMetadata": [partition(-1)], **scripts}
    await aio.start()
    try:
        async with bascule.connect(f"127.0.0.1:{server.port}", timeout=60) as client:
            yield server, client
    finally:
        await aio.stop(None)


def partition(newest: int, **fields: Any) -> Any:
    return pb.FetchPartitionMetadataResponse(
        metadata=pb.PartitionMetadata(leader="b", newestOffset=newest, highWatermark=newest, **fields)
    )


def messages(*offsets: int) -> Iterator[Any]:
    """The handshake, and messages."""
    yield pb.Message()
    for offset in offsets:
        yield pb.Message(offset=offset, value=b"x", stream="s")


NOT_LEADER = failure(Status.FAILED_PRECONDITION, "Server not partition leader")


@on_loop
async def test_a_server_that_does_not_lead_is_asked_again_with_new_metadata() -> None:
    script = [[NOT_LEADER], [NOT_LEADER], [*messages(0), 60.0]]
    async with reference(Subscribe=script) as (server, client):
        before = len(server.requests["FetchMetadata"])
        assert (await soon(anext(client.subscribe("s", start="earliest")))).offset == 0
        assert len(server.requests["Subscribe"]) == 3
        assert len(server.requests["FetchMetadata"]) >= before + 2


@on_loop
async def test_six_refusals_are_enough() -> None:
    async with reference(Subscribe=[[NOT_LEADER]]) as (server, client):
        with pytest.raises(bascule.StateError, match="not partition leader"):
            await soon(client.subscribe("s", start="earliest").open())
        assert len(server.requests["Subscribe"]) == 6


@on_loop
async def test_a_leader_that_is_not_one_yet_is_asked_for_its_offsets_again() -> None:
    async with reference(FetchPartitionMetadata=[NOT_LEADER, partition(7)]) as (_, client):
        assert (await client.fetch_partition_metadata("s")).newest_offset == 7


@pytest.mark.parametrize("status", [Status.UNAVAILABLE, Status.CANCELLED, Status.INTERNAL])
@on_loop
async def test_what_is_lost_goes_on_behind_the_last_message(status: Any) -> None:
    script = [
        [*messages(0, 1, 2), failure(status)],
        [failure(Status.UNAVAILABLE)],
        [*messages(), failure(status)],
        [*messages(3), 60.0],
    ]
    async with reference(Subscribe=script) as (server, client):
        subscription = client.subscribe("s", start="earliest")
        assert [(await soon(anext(subscription))).offset for _ in range(4)] == [0, 1, 2, 3]
        starts = [(request.startPosition, request.startOffset) for request in server.requests["Subscribe"]]
        assert starts == [(pb.EARLIEST, 0), (pb.OFFSET, 3), (pb.OFFSET, 3), (pb.OFFSET, 3)]
        await subscription.close()


@on_loop
async def test_new_means_behind_the_newest_of_the_moment_whatever_happens_then() -> None:
    script = [[*messages(), failure(Status.UNAVAILABLE)], [*messages(42), 60.0]]
    async with reference(Subscribe=script, FetchPartitionMetadata=[partition(41)]) as (server, client):
        subscription = client.subscribe("s", partition=0, start="new")
        assert (await soon(anext(subscription))).offset == 42
        starts = [(request.startPosition, request.startOffset) for request in server.requests["Subscribe"]]
        assert starts == [(pb.OFFSET, 42)] * 2
        await subscription.close()


@on_loop
async def test_ends_of_the_reference_server() -> None:
    async with reference(Subscribe=[[*messages(0), failure(Status.NOT_FOUND)]]) as (_, client):
        subscription = client.subscribe("s", start="earliest")
        await soon(anext(subscription))
        with pytest.raises(errors.StreamDeleted):
            await soon(anext(subscription))
    is_paused = asyncio.Event()

    async def end_when_paused(context: Any) -> None:
        await is_paused.wait()
        await context.abort(Status.FAILED_PRECONDITION, "")

    async with reference(Subscribe=[[*messages(0), end_when_paused]]) as (server, client):
        subscription = client.subscribe("s", start="earliest")
        await soon(anext(subscription))
        server.scripts["FetchMetadata"] = [server.metadata(paused=True)]
        is_paused.set()
        with pytest.raises(errors.PartitionPaused):
            await soon(anext(subscription))
    async with reference(
        Subscribe=[[*messages(0), failure(Status.RESOURCE_EXHAUSTED, "End of readonly partition")]]
    ) as (
        _,
        client,
    ):
        subscription = client.subscribe("s", start="earliest")
        await soon(anext(subscription))
        with pytest.raises(errors.EndOfPartition):
            await soon(anext(subscription))
    async with reference(Subscribe=[[failure(Status.RESOURCE_EXHAUSTED, "Stream is empty")]]) as (_, client):
        found = [message async for message in client.subscribe("s", start="earliest", stop=5)]
        assert not found
    async with reference(Subscribe=[[*messages(0), failure(Status.UNKNOWN, "decryption failed")]]) as (_, client):
        subscription = client.subscribe("s", start="earliest")
        await soon(anext(subscription))
        with pytest.raises(bascule.OperatorError, match="decryption"):
            await soon(anext(subscription))


@on_loop
async def test_an_election_is_waited_for() -> None:
    electing = failure(Status.INTERNAL, "no known metadata leader")
    async with reference(CreateStream=[electing, electing, pb.CreateStreamResponse()]) as (server, client):
        await client.create_stream("s")
        assert len(server.requests["CreateStream"]) == 3
    async with reference(CreateStream=[electing]) as (_, client):
        with pytest.raises(bascule.Unavailable, match="no known metadata leader"):
            await client.create_stream("s", timeout=2)


@on_loop
async def test_a_creation_that_may_have_happened_is_not_repeated() -> None:
    async with reference(CreateStream=[failure(Status.UNAVAILABLE, "going away")]) as (server, client):
        with pytest.raises(bascule.OutcomeUnknown, match="CreateStream was sent"):
            await client.create_stream("s")
        assert len(server.requests["CreateStream"]) == 1


@on_loop
async def test_errors_of_a_publish_session() -> None:
    def answer(code: int, text: str) -> Any:
        return pb.PublishResponse(asyncError=pb.PublishAsyncError(code=code, message=text), ack=pb.Ack())

    script = [
        answer(pb.PublishAsyncError.NOT_FOUND, "no such partition"),
        answer(pb.PublishAsyncError.READONLY, "readonly"),
        answer(pb.PublishAsyncError.INCORRECT_OFFSET, "incorrect expected offset"),
        answer(pb.PublishAsyncError.BAD_REQUEST, "message exceeds max replication size"),
        answer(pb.PublishAsyncError.BAD_REQUEST, "bad"),
        answer(pb.PublishAsyncError.ENCRYPTION_FAILED, "no key"),
        answer(pb.PublishAsyncError.PERMISSION_DENIED, "no"),
        answer(pb.PublishAsyncError.UNKNOWN, "who knows"),
    ]
    wanted = [
        errors.StreamNotFound,
        errors.PartitionReadonly,
        errors.IncorrectOffset,
        errors.RecordTooLarge,
        bascule.CallerError,
        bascule.OperatorError,
        errors.PermissionDenied,
        bascule.OutcomeUnknown,
    ]
    async with reference(PublishAsync=script) as (_, client):
        for kind in wanted:
            with pytest.raises(kind):
                await client.publish("s", b"x")


@on_loop
async def test_a_publish_is_never_sent_twice_unless_it_surely_did_not_arrive() -> None:
    async with reference(PublishAsync=[failure(Status.UNAVAILABLE, "stopping")]) as (server, client):
        with pytest.raises(bascule.OutcomeUnknown):
            await client.publish("s", b"x")
        assert len(server.requests["PublishAsync"]) == 1
    async with reference(Publish=[failure(Status.UNAVAILABLE, "stopping")]) as (server, client):
        with pytest.raises(bascule.OutcomeUnknown):
            await client.publish("s", b"x", correlation_id="c")
        assert len(server.requests["Publish"]) == 1
        request = server.requests["Publish"][0]
        assert (request.correlationId, request.expectedOffset, request.value) == ("c", -1, b"x")


@on_loop
async def test_answers_that_are_no_protobuf_are_told() -> None:
    async with reference() as (_, client):
        client._brokers.known.streams.clear()

        async def garbage(*_: object, **__: object) -> bytes:
            return b"\xff\xff\xff"

        client._brokers.ask = garbage  # type: ignore[method-assign]
        with pytest.raises(bascule.OperatorError, match="no FetchMetadataResponse"):
            await client.fetch_metadata()


@on_loop
async def test_cursors_are_asked_of_the_broker_that_keeps_them() -> None:
    """Ours pass the call on; Liftbridge's refuse it."""
    script = [failure(Status.FAILED_PRECONDITION, "not the leader"), pb.FetchCursorResponse(offset=7)]
    async with reference(FetchCursor=script) as (server, client):
        found = server.metadata()
        led = pb.PartitionMetadata(leader="b")
        found.streamMetadata.append(pb.StreamMetadata(name="__cursors", subject="c", partitions={0: led, 1: led}))
        server.scripts["FetchMetadata"] = [found]
        assert await client.fetch_cursor("c", "s") == 7
        assert len(server.requests["FetchCursor"]) == 2
