"""The control plane's NATS: requests are answered or refused in time, handlers run in order and may fail."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from bascule import limits
from bascule.errors import Unavailable
from bascule.net.nats.bus import NatsBus
from tests.support.nats_server import NatsServer
from tests.unit.net.nats_helpers import accept, run, scripted, serve_on, until


@pytest.fixture
def nats(tmp_path: Path) -> Iterator[NatsServer]:
    with NatsServer(tmp_path / "nats") as server:
        yield server


def test_a_request_is_answered_and_many_do_not_mix(nats: NatsServer) -> None:
    async def main() -> None:
        server, client = await NatsBus.connect([nats.url], "server"), await NatsBus.connect([nats.url], "client")

        async def answer(data: bytes, reply: str) -> None:
            await server.publish(reply, data.upper())
            await server.publish(reply, b"once is enough")

        await server.subscribe("ask", answer)
        await server.link.flush(60)
        questions = [b"q%d" % number for number in range(200)]
        answers = await asyncio.gather(*(client.request("ask", question, 60) for question in questions))
        assert answers == [question.upper() for question in questions]
        await client.close()
        await server.close()

    run("asyncio", main())


def test_nobody_no_answer_and_no_connection_are_told_apart(nats: NatsServer) -> None:
    async def main() -> None:
        bus = await NatsBus.connect([nats.url], "test")
        states: list[bool] = []
        bus.on_state = lambda connected, _reason: states.append(connected)
        with pytest.raises(Unavailable, match="no server listens on ask"):
            await bus.request("ask", b"", 60)

        async def be_silent(_data: bytes, _reply: str) -> None:
            pass

        await bus.subscribe("ask", be_silent)
        with pytest.raises(Unavailable, match=r"no answer on ask within 0.01 s"):
            await bus.request("ask", b"", 0.01)
        asking = asyncio.create_task(bus.request("ask", b"", 60))
        await asyncio.sleep(0.05)
        nats.stop()
        with pytest.raises(Unavailable, match="was lost"):
            await asking
        assert not bus.is_connected
        with pytest.raises(Unavailable, match="is down"):
            await bus.publish("a", b"")
        with pytest.raises(Unavailable, match="is down"):
            await bus.request("a", b"", 1)
        nats.start()
        await until(lambda: bus.is_connected)
        assert states == [False, True]
        await bus.close()

    run("asyncio", main())


def test_handlers_run_one_after_the_other_and_may_fail(nats: NatsServer) -> None:
    async def main() -> None:
        faults: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: faults.append(context["exception"]))
        bus = await NatsBus.connect([nats.url], "test")
        done: list[bytes] = []

        async def handle(data: bytes, _reply: str) -> None:
            await asyncio.sleep(0.002 if len(done) % 2 else 0)
            if data == b"bad":
                raise ZeroDivisionError
            done.append(data)

        await bus.subscribe("a", handle)
        for data in (b"1", b"bad", b"2", b"3"):
            await bus.publish("a", data)
        await until(lambda: len(done) == 3)
        assert done == [b"1", b"2", b"3"]
        assert [type(fault) for fault in faults] == [ZeroDivisionError]
        await bus.close()

    run("asyncio", main())


def test_a_handler_that_stands_still_costs_bounded_memory(nats: NatsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BUS_MESSAGES_WAITING_MAX", 10)

    async def main() -> None:
        bus = await NatsBus.connect([nats.url], "test")

        async def stand_still(_data: bytes, _reply: str) -> None:
            await asyncio.sleep(60)

        await bus.subscribe("a", stand_still)
        for _ in range(100):
            await bus.publish("a", b"x")
        await bus.link.flush(60)
        assert bus.messages_dropped >= 89
        await bus.close()

    run("asyncio", main())


def test_a_message_that_is_too_large_cannot_be_published(nats: NatsServer) -> None:
    async def main() -> None:
        bus = await NatsBus.connect([nats.url], "test")
        with pytest.raises(Unavailable, match="cannot publish to a"):
            await bus.publish("a", bytes(2 << 20))
        await bus.close()

    run("asyncio", main())


def test_an_error_of_the_server_does_not_end_the_bus() -> None:
    async def complain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await accept(reader, writer)
        writer.write(b"-ERR 'Slow Consumer'\r\n-ERR 'User Authentication Expired'\r\n")
        await serve_on(reader, writer)

    async def main() -> None:
        async with scripted(complain) as url:
            bus = await NatsBus.connect([url], "test")
            await bus.link.flush(60)
            assert bus.link.stats.errors == 2
            assert bus.is_connected
            await bus.close()

    run("asyncio", main())
