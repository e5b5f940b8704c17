"""Servers that do what no server should: the link names the reason, drops what is half there, and comes back."""

from __future__ import annotations

import asyncio

import pytest

from bascule import limits
from bascule.errors import Unavailable
from bascule.kernels.nats.protocol import CallbackSink, NatsReader, publish_many
from bascule.net.nats.connection import Connection
from bascule.net.nats.link import LinkOptions, NatsLink
from tests.support.kernels.probes import CountingSink
from tests.unit.net.nats_helpers import INFO, LOOPS, accept, linked, run, scripted, serve_on, stay, until


@pytest.fixture(params=sorted(LOOPS))
def loop(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (b"HELLO\r\n", "no operation of NATS"),
        (b"\r\n", "no operation of NATS"),
        (b"MSG a 1\r\n", "malformed"),
        (b"MSG a x 1\r\n", "malformed"),
        (b"MSG a 1 -1\r\n", "malformed"),
        (b"MSG a 1 99999999999999999999999\r\n", "malformed"),
        (b"MSG a 1 999999999999\r\n", "larger than any"),
        (b"HMSG a 1 5 4\r\n1234\r\n", "malformed"),
        (b"MSG a 1 2\r\nabc\r\n", "no line break"),
        (b"x" * (limits.NATS_LINE_BYTES_MAX + 1), "too long"),
        (b"INFO {\r\n", "INFO cannot be read"),
        (b"INFO []\r\n", "INFO cannot be read"),
        (b'INFO {"max_payload": -5}\r\n', "INFO cannot be read"),
    ],
)
def test_bytes_that_make_no_sense_end_the_connection_by_name(sent: bytes, reason: str) -> None:
    async def spoil(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await accept(reader, writer)
        await reader.readuntil(b"SUB a 1\r\n")
        writer.write(sent)
        await serve_on(reader, writer)

    async def main() -> None:
        async with scripted(spoil, stay) as url, linked(url) as watched:
            watched.link.subscribe(b"a", CountingSink())
            await until(lambda: len(watched.states) == 3)
            connected, why = watched.states[1]
            assert not connected
            assert reason in why
            await watched.link.flush()

    run("asyncio", main())


def test_half_a_message_is_not_carried_into_the_next_connection(loop: str) -> None:
    async def die(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await accept(reader, writer)
        await reader.readuntil(b"SUB a 1\r\n")
        writer.write(b"MSG a 1 3\r\nabc\r\nMSG a 1 10\r\n12345")
        await writer.drain()

    async def go_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await accept(reader, writer)
        await reader.readuntil(b"SUB a 1\r\n")
        writer.write(b"MSG a 1 3\r\nxyz\r\n")
        await serve_on(reader, writer)

    async def main() -> None:
        async with scripted(die, go_on) as url, linked(url) as watched:
            found: list[bytes] = []
            watched.link.subscribe(b"a", CallbackSink(lambda *message: found.append(message[3])))
            await until(lambda: len(found) == 2)
            assert found == [b"abc", b"xyz"]

    run(loop, main())


def test_a_message_may_come_byte_by_byte(loop: str) -> None:
    async def dribble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await accept(reader, writer)
        await reader.readuntil(b"SUB a 1\r\n")
        for byte in b"PING\r\nMSG a 1 r 3\r\na\nc\r\nHMSG a 1 12 13\r\nNATS/1.0\r\n\r\nx\r\n+OK\r\nmsg a 7 0\r\n\r\n":
            writer.write(bytes((byte,)))
            await writer.drain()
            await asyncio.sleep(0.0005)
        assert await reader.readline() == b"PONG\r\n"
        await serve_on(reader, writer)

    async def main() -> None:
        async with scripted(dribble) as url, linked(url) as watched:
            found: list[tuple[bytes, bytes, bytes | None, bytes]] = []
            watched.link.subscribe(b"a", CallbackSink(lambda *message: found.append(message)))
            await until(lambda: len(found) == 2 and watched.link.reader.unknown == 1)
            assert found == [(b"a", b"r", None, b"a\nc"), (b"a", b"", b"NATS/1.0\r\n\r\n", b"x")]
            await watched.link.flush()
            assert len(watched.states) == 1

    run(loop, main())


def test_what_a_server_complains_about_is_told() -> None:
    async def complain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await accept(reader, writer)
        writer.write(b"-ERR 'Slow Consumer'\r\n-err 'Permissions Violation for Publish to \"a\"'\r\n")
        await serve_on(reader, writer)

    async def main() -> None:
        async with scripted(complain) as url, linked(url) as watched:
            await until(lambda: len(watched.errors) == 2)
            assert watched.errors == ["Slow Consumer", 'Permissions Violation for Publish to "a"']
            assert watched.link.stats.errors == 2
            assert watched.link.connected

    run("asyncio", main())


def test_a_server_that_answers_no_more_is_given_up() -> None:
    async def play_dead(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await accept(reader, writer)
        assert await reader.readexactly(12) == b"PING\r\nPING\r\n"
        await reader.read()

    async def main() -> None:
        async with scripted(play_dead, stay) as url, linked(url, ping_seconds=0.02) as watched:
            await until(lambda: len(watched.states) >= 3)
            assert "has not answered" in watched.states[1][1]

    run("asyncio", main())


def test_a_silent_server_that_answers_is_kept() -> None:
    async def main() -> None:
        async with scripted(stay) as url, linked(url, ping_seconds=0.1) as watched:
            await asyncio.sleep(0.5)
            await watched.link.flush()
            assert len(watched.states) == 1

    run("asyncio", main())


def test_who_waits_for_a_server_that_dies_is_told() -> None:
    async def die(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await accept(reader, writer)
        await reader.readuntil(b"PING\r\n")

    async def main() -> None:
        async with scripted(die, stay) as url, linked(url) as watched:
            with pytest.raises(Unavailable, match="was lost"):
                await watched.link.flush()

    run("asyncio", main())


def test_flushing_has_an_end() -> None:
    async def ignore(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await accept(reader, writer)
        await reader.readuntil(b"PING\r\n")
        await asyncio.sleep(0.05)
        writer.write(b"PONG\r\n")
        await serve_on(reader, writer)

    async def main() -> None:
        async with scripted(ignore) as url, linked(url) as watched:
            with pytest.raises(Unavailable, match="does not answer within"):
                await watched.link.flush(0.01)
            # The answer that came too late is not taken for the next one's.
            await watched.link.flush()

    run("asyncio", main())


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (b"", "does not answer within"),
        (b"GET / HTTP/1.1\r\n\r\n", "make no sense"),
        (b"PONG\r\n", "says PONG instead of INFO"),
        (INFO + b"-ERR 'Authorization Violation'\r\n", "refuses the login: Authorization Violation"),
        (INFO + b"-ERR 'maximum connections exceeded'\r\n", "maximum connections exceeded"),
        (INFO + INFO, "says INFO instead of PONG"),
        (INFO + b"PONG\r\nHELLO\r\n", "make no sense"),
    ],
)
def test_a_login_that_fails_says_why(sent: bytes, reason: str) -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(sent)
        await reader.read()

    async def main() -> None:
        async with scripted(greet) as url:
            options = LinkOptions(
                servers=(url,),
                name="t",
                connect_attempts=2,
                reconnect_wait_seconds=0.01,
                connect_seconds_max=60 if sent else 0.2,
            )
            link = NatsLink(options)
            with pytest.raises(Unavailable) as failed:
                await link.connect()
            assert reason in failed.value.message
            await link.close()

    run("asyncio", main())


def test_a_login_that_is_refused_later_is_told_and_tried_again() -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(INFO)
        await reader.readuntil(b"PING\r\n")
        writer.write(b"-ERR 'Authorization Violation'\r\n")

    async def leave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await accept(reader, writer)

    async def main() -> None:
        async with scripted(leave, refuse, refuse, stay) as url, linked(url) as watched:
            await until(lambda: len(watched.states) == 3)
            assert len(watched.errors) == 2
            assert all("refuses the login" in error for error in watched.errors)

    run("asyncio", main())


def test_output_waits_where_it_is_counted_while_the_server_does_not_read(loop: str) -> None:
    goes_on = asyncio.Event()
    payload, count = bytes(1000), 20_000

    async def stall(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await accept(reader, writer)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        await goes_on.wait()
        writer.transport.resume_reading()  # type: ignore[attr-defined]
        for _ in range(count):
            assert await reader.readline() == b"PUB a 1000\r\n"
            assert len(await reader.readexactly(1002)) == 1002
        await serve_on(reader, writer)

    async def main() -> None:
        async with scripted(stall) as url, linked(url) as watched:
            link = watched.link
            rooms: list[int] = []
            link.on_room = lambda: rooms.append(link.unsent)
            for _ in range(count // 100):
                publish_many(link.output, b"a", payload, 100)
                link.schedule_flush()
                await asyncio.sleep(0)
            held = link.unsent - len(link.output)
            assert len(link.output) > 5_000_000
            assert held <= limits.NATS_WRITE_BYTES_MAX
            assert rooms == []
            goes_on.set()
            await link.flush()
            assert len(rooms) >= 1
            assert link.unsent == 0

    run(loop, main())


class SlowTransport(asyncio.Transport):
    """Takes everything. The test says when its buffer is full and when it is empty."""

    def get_extra_info(self, _name: str, _default: object = None) -> SlowTransport:
        return self

    def fileno(self) -> int:
        return -1

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def write(self, _data: object) -> None:
        pass


def test_output_that_found_a_full_socket_and_leaves_at_once_when_it_is_not_is_told_of() -> None:
    async def main() -> None:
        rooms: list[bool] = []
        reader = NatsReader(message_bytes_max=1000, line_bytes_max=1000)
        connection = Connection(reader, lambda _events: None, lambda _reason: None)
        connection.on_room = lambda: rooms.append(True)
        connection.connection_made(SlowTransport())
        connection.pause_writing()
        reader.output.append(b"PING\r\n")
        connection.schedule_flush()
        await asyncio.sleep(0)
        assert len(reader.output) == 6
        connection.resume_writing()
        assert len(reader.output) == 0
        assert rooms == [True]

    run("asyncio", main())


def test_what_was_not_sent_when_the_connection_died_is_counted_and_forgotten(loop: str) -> None:
    published = asyncio.Event()

    async def reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await accept(reader, writer)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        await published.wait()
        await asyncio.sleep(0.1)  # as much as the system takes has left
        writer.transport.abort()

    async def main() -> None:
        async with scripted(reset, stay) as url, linked(url) as watched:
            link = watched.link
            publish_many(link.output, b"a", bytes(1000), 20_000)
            link.schedule_flush()
            published.set()
            await until(lambda: len(watched.states) == 3)
            assert link.stats.bytes_discarded > 1_000_000
            await link.flush()

    run(loop, main())


def test_closing_twice_or_before_connecting_is_fine() -> None:
    async def main() -> None:
        link = NatsLink(LinkOptions(servers=("nats://127.0.0.1:1",), name="t"))
        await link.close()
        async with scripted(stay) as url, linked(url) as watched:
            await watched.link.close()
            assert watched.states[-1] == (False, "closed")

    run("asyncio", main())


def test_a_link_that_is_closed_while_it_looks_for_a_server_stops_looking() -> None:
    async def leave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await accept(reader, writer)

    async def hang(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async def main() -> None:
        async with scripted(leave, hang) as url, linked(url) as watched:
            await until(lambda: len(watched.states) == 2)
            await asyncio.sleep(0.05)
        assert not [task for task in asyncio.all_tasks() if task.get_name() == "nats-link"]

    run("asyncio", main())
