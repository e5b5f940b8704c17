"""The link against real nats-servers: messages arrive, connections come back, and nothing is published that cannot be sent."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from bascule.errors import CallerError, InvalidConfig, Unavailable
from bascule.kernels.nats.protocol import CallbackSink, MessageSink, publish_many
from bascule.net.nats.link import LinkOptions, NatsLink
from tests.support.kernels.probes import CountingSink
from tests.support.nats_server import NatsServer
from tests.support.nats_setup import ConfiguredNats
from tests.unit.net.nats_helpers import LOOPS, linked, run, until

Message = tuple[bytes, bytes, bytes | None, bytes]


@pytest.fixture
def nats(tmp_path: Path) -> Iterator[NatsServer]:
    with NatsServer(tmp_path / "nats") as server:
        yield server


def collector() -> tuple[list[Message], CallbackSink]:
    found: list[Message] = []
    return found, CallbackSink(lambda *message: found.append(message))


@pytest.fixture(params=sorted(LOOPS))
def loop(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_messages_arrive_with_reply_and_headers(nats: NatsServer, loop: str) -> None:
    async def main() -> None:
        async with linked(nats.url) as watched:
            link = watched.link
            found, sink = collector()
            link.subscribe(b"orders.>", sink)
            await link.flush()
            link.publish(b"orders.new", b"one")
            link.publish(b"orders.new", b"two", b"answer.here")
            link.publish(b"orders.new", b"three", b"answer.here", {"Name": "value"})
            link.publish(b"orders.new", b"", headers={})
            link.publish(b"other", b"not ours")
            await link.flush()
            assert found == [
                (b"orders.new", b"", None, b"one"),
                (b"orders.new", b"answer.here", None, b"two"),
                (b"orders.new", b"answer.here", b"NATS/1.0\r\nName: value\r\n\r\n", b"three"),
                (b"orders.new", b"", b"NATS/1.0\r\n\r\n", b""),
            ]
            assert link.reader.messages == 4
            assert link.max_payload == 1048576
            assert watched.states == [(True, nats.url)]

    run(loop, main())


def test_a_lost_connection_comes_back_with_its_subscriptions(nats: NatsServer, loop: str) -> None:
    async def main() -> None:
        async with linked(nats.url) as watched:
            link = watched.link
            found, sink = collector()
            gone, gone_sink = collector()
            link.subscribe(b"a", sink)
            link.unsubscribe(link.subscribe(b"a", gone_sink))
            await link.flush()
            nats.stop()
            await until(lambda: not link.connected)
            with pytest.raises(Unavailable, match="connection to NATS is down"):
                link.publish(b"a", b"lost")
            with pytest.raises(Unavailable):
                await link.flush()
            link.subscribe(b"b", sink)
            nats.start()
            await until(lambda: link.connected)
            link.publish(b"a", b"1")
            link.publish(b"b", b"2")
            await link.flush()
            assert [message[3] for message in found] == [b"1", b"2"]
            assert gone == []
            assert [connected for connected, _ in watched.states] == [True, False, True]
            assert link.stats.publishes_refused == 1
            assert link.stats.reconnects == 1

    run(loop, main())


def test_a_message_larger_than_the_buffer_arrives_and_its_memory_is_given_back(tmp_path: Path, loop: str) -> None:
    async def main(url: str) -> None:
        async with linked(url) as watched:
            link = watched.link
            found, sink = collector()
            link.subscribe(b"large", sink)
            counted = CountingSink()
            link.subscribe(b"small", counted)
            payload = bytes(range(256)) * (5 * 4096)
            for _ in range(3):
                link.publish(b"large", payload)
            await link.flush()
            assert [message[3] for message in found] == [payload] * 3
            assert link.reader.buffer_bytes > len(payload)
            for _ in range(300):
                link.publish(b"small", b"x")
                await link.flush()
            assert counted.messages == 300
            assert link.reader.buffer_bytes <= 1 << 20

    with ConfiguredNats(tmp_path / "nats", "max_payload: 8MB") as server:
        run(loop, main(server.url))


def test_what_the_server_would_not_take_is_refused(nats: NatsServer) -> None:
    async def main() -> None:
        async with linked(nats.url) as watched:
            link = watched.link
            with pytest.raises(CallerError, match="more than the NATS server takes"):
                link.publish(b"a", bytes(link.max_payload + 1))
            for subject in (b"", b"a b", b"a\r\nPUB b 0", b"a\tb", b"x" * 5000):
                with pytest.raises(CallerError):
                    link.publish(subject, b"")
                with pytest.raises(CallerError):
                    link.subscribe(subject, CountingSink())
            with pytest.raises(CallerError):
                link.publish(b"a", b"", b"an swer")
            with pytest.raises(CallerError):
                link.publish(b"a", b"", headers={"a": "b\r\nc: d"})
            with pytest.raises(CallerError):
                link.subscribe(b"a", CountingSink(), b"que ue")
            link.publish(b"x" * 1900, b"", b"y" * 1900)
            await link.flush()
            assert watched.states == [(True, nats.url)]

    run("asyncio", main())


def test_a_queue_group_shares_the_messages(nats: NatsServer) -> None:
    async def main() -> None:
        async with linked(nats.url) as watched:
            one, two = CountingSink(), CountingSink()
            watched.link.subscribe(b"work", one, b"group")
            watched.link.subscribe(b"work", two, b"group")
            for _ in range(100):
                watched.link.publish(b"work", b"x")
            await watched.link.flush()
            assert one.messages + two.messages == 100

    run("asyncio", main())


def test_no_server_is_reported_with_what_to_do() -> None:
    async def main() -> None:
        link = NatsLink(LinkOptions(servers=("nats://127.0.0.1:1",), name="test", reconnect_wait_seconds=0.001))
        with pytest.raises(Unavailable, match=r"nats://127.0.0.1:1") as refused:
            await link.connect()
        assert refused.value.hint is not None
        assert "nats.servers" in refused.value.hint
        await link.close()

    run("asyncio", main())


@pytest.mark.parametrize("url", ["ws://127.0.0.1:1", "http://x", "nats://", "nats://x:99999"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(InvalidConfig):
        NatsLink(LinkOptions(servers=(url,), name="test"))


def test_the_next_server_takes_over(tmp_path: Path) -> None:
    async def main(first: NatsServer, second: NatsServer) -> None:
        async with linked("nats://127.0.0.1:1", first.url, second.url) as watched:
            assert watched.states == [(True, first.url)]
            first.stop()
            await until(lambda: len(watched.states) == 3)
            assert watched.states[2] == (True, second.url)

    with NatsServer(tmp_path / "one") as first, NatsServer(tmp_path / "two") as second:
        run("asyncio", main(first, second))


def test_servers_that_a_server_names_take_over(tmp_path: Path) -> None:
    async def main(first: NatsServer, second: NatsServer) -> None:
        async with linked(first.url) as watched:
            await until(lambda: second.url.removeprefix("nats://") in watched.link.info.get("connect_urls", []))
            await watched.link.flush()
            first.stop()
            await until(lambda: watched.states[-1] == (True, second.url))

    first = ConfiguredNats(tmp_path / "one", 'cluster { name: c, listen: "127.0.0.1:-1" }')
    with first:
        monitor = (tmp_path / "one" / "nats.log").read_text()
        route = monitor.split("Listening for route connections on ")[1].split()[0]
        with ConfiguredNats(
            tmp_path / "two", f'cluster {{ name: c, listen: "127.0.0.1:-1", routes: ["nats://{route}"] }}'
        ) as second:
            run("asyncio", main(first, second))


def test_reading_can_be_paused_and_nothing_is_lost(nats: NatsServer, loop: str) -> None:
    async def main() -> None:
        async with linked(nats.url) as watched, linked(nats.url) as other:
            link = watched.link
            sink = CountingSink()
            link.subscribe(b"flood", sink)
            await link.flush()
            link.pause_reading()
            link.pause_reading()
            for _ in range(200):
                publish_many(other.link.output, b"flood", bytes(1000), 100)
                other.link.schedule_flush()
                await asyncio.sleep(0)
            await other.link.flush()
            seen = sink.messages
            assert seen < 20_000
            link.resume_reading()
            await until(lambda: sink.messages == 20_000)
            assert link.stats.pauses == 1
            assert [connected for connected, _ in watched.states] == [True]

    run(loop, main())


def test_sinks_that_were_touched_are_told_once_per_read(nats: NatsServer) -> None:
    async def main() -> None:
        async with linked(nats.url) as watched:
            link = watched.link
            reads: list[list[MessageSink]] = []
            link.on_read = lambda: reads.append(link.reader.touched())
            one, two = CountingSink(), CountingSink()
            link.subscribe(b"one", one)
            link.subscribe(b"uno", one)
            link.subscribe(b"two", two)
            await link.flush()
            for _ in range(50):
                for subject in (b"one", b"uno", b"two"):
                    link.publish(subject, b"x")
            await link.flush()
            assert one.messages == 100
            assert two.messages == 50
            assert all(len(touched) == len(set(touched)) for touched in reads)
            assert {sink for touched in reads for sink in touched} == {one, two}

    run("asyncio", main())


def test_a_callback_that_fails_costs_nothing_but_its_message(nats: NatsServer) -> None:
    async def main() -> None:
        faults: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: faults.append(context["exception"]))
        async with linked(nats.url) as watched:
            found: list[bytes] = []

            def take(_subject: bytes, _reply: bytes, _headers: bytes | None, payload: bytes) -> None:
                if payload == b"bad":
                    raise ZeroDivisionError
                found.append(payload)

            watched.link.subscribe(b"a", CallbackSink(take))
            for payload in (b"1", b"bad", b"2"):
                watched.link.publish(b"a", payload)
            await watched.link.flush()
            assert found == [b"1", b"2"]
            assert [type(fault) for fault in faults] == [ZeroDivisionError]
            assert watched.link.connected

    run("asyncio", main())


def test_a_callback_may_publish_and_unsubscribe(nats: NatsServer) -> None:
    async def main() -> None:
        async with linked(nats.url) as watched:
            link = watched.link
            answers, sink = collector()
            link.subscribe(b"answers", sink)

            def answer(_subject: bytes, reply: bytes, _headers: bytes | None, payload: bytes) -> None:
                link.unsubscribe(sid)
                link.publish(reply, payload + b"!")

            sid = link.subscribe(b"questions", CallbackSink(answer))
            link.publish(b"questions", b"why", b"answers")
            await until(lambda: answers)
            link.publish(b"questions", b"again")
            await link.flush()
            await link.flush()
            assert [message[3] for message in answers] == [b"why!"]

    run("asyncio", main())


def test_nobody_listens_is_answered_by_the_server(nats: NatsServer) -> None:
    async def main() -> None:
        async with linked(nats.url) as watched:
            found, sink = collector()
            watched.link.subscribe(b"inbox", sink)
            watched.link.publish(b"nobody", b"x", b"inbox")
            await watched.link.flush()
            assert found == [(b"inbox", b"", b"NATS/1.0 503\r\nNats-Subject: nobody\r\n\r\n", b"")]

    run("asyncio", main())
