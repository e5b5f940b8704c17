"""Two servers that replicate over a real nats-server: in order, gathered, cut and put together; through stalls and restarts."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from bascule import limits
from bascule.net.nats import envelope
from bascule.net.nats.envelope import MessageType
from bascule.partition.core import codec
from bascule.partition.core.codec import PartitionKey
from bascule.partition.core.messages import EpochAnswer, EpochQuery, Fetch, FetchAnswer, Message, Notice, Verdict
from bascule.partition.replication.half_answers import HalfAnswers
from bascule.partition.replication.link import ReplicationLink
from tests.support.nats_client import NatsClient
from tests.support.nats_server import NatsServer
from tests.support.nats_setup import ConfiguredNats
from tests.support.replication_wire import Heard, ReplicationWire, replication_link
from tests.support.waiting import pause
from tests.unit.net.nats_helpers import LOOPS, run, until

KEY = (7, 1)


@pytest.fixture
def nats(tmp_path: Path) -> Iterator[NatsServer]:
    with NatsServer(tmp_path / "nats") as server:
        yield server


@pytest.fixture(params=sorted(LOOPS))
def loop(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Pair:
    """`a` and `b`, connected and listening, and what each has heard."""

    def __init__(self, url: str) -> None:
        self.a, self.heard_by_a = replication_link("a", url, reconnect_wait_seconds=0.01)
        self.b, self.heard = replication_link("b", url, reconnect_wait_seconds=0.01)

    async def connect(self) -> None:
        for link in (self.a, self.b):
            await link.link.connect()
            link.start()
            await link.link.flush(60)

    async def close(self) -> None:
        await self.a.link.close()
        await self.b.link.close()

    async def settle(self) -> None:
        """All that `a` said until now has been heard."""
        await asyncio.sleep(0)
        await self.a.link.flush(60)
        await self.b.link.flush(60)


@asynccontextmanager
async def paired(url: str) -> AsyncIterator[Pair]:
    pair = Pair(url)
    await pair.connect()
    try:
        yield pair
    finally:
        await pair.close()


def answer(number: int, size: int, **fields: Any) -> FetchAnswer:
    return FetchAnswer(3, number, Verdict.OK, data=random.Random(number).randbytes(size), **fields)


def from_a(*said: tuple[PartitionKey, Message]) -> list[Heard]:
    return [("a", key, message) for key, message in said]


# ── over a real server ───────────────────────────────────────────────────────────────────────────


def test_requests_and_answers_arrive_with_sender_partition_and_time(nats: NatsServer, loop: str) -> None:
    async def main() -> None:
        async with paired(nats.url) as pair:
            asked: list[tuple[Any, ...]] = []
            answered: list[tuple[Any, ...]] = []
            pair.b.on_request = lambda *request: asked.append(request)
            pair.a.on_answer = lambda *given: answered.append(given)
            pair.a.send("b", (1, 2), Fetch(3, 4, 5, 5, 0))
            pair.a.send("b", (1, 3), EpochQuery(3, 4, 2))
            pair.a.send("c", (1, 2), Fetch(3, 4, 5, 5, 0))
            await pair.settle()
            assert [request[:3] for request in asked] == [
                ("a", (1, 2), Fetch(3, 4, 5, 5, 0)),
                ("a", (1, 3), EpochQuery(3, 4, 2)),
            ]
            assert pair.heard == []
            assert asked[0][3] > 0
            pair.b.send("a", (1, 2), answer(4, 1000))
            pair.b.send("a", (1, 3), EpochAnswer(3, 4, Verdict.OK, 2, 17))
            pair.b.send("a", (1, 4), Notice(3, 16, is_beginning=True))
            await until(lambda: len(answered) == 3)
            assert [given[:3] for given in answered] == [
                ("b", (1, 2), answer(4, 1000)),
                ("b", (1, 3), EpochAnswer(3, 4, Verdict.OK, 2, 17)),
                ("b", (1, 4), Notice(3, 16, is_beginning=True)),
            ]
            assert answered[0][3] >= asked[0][3]
            assert pair.heard_by_a == []

    run(loop, main())


def test_what_is_said_in_one_turn_leaves_together_and_in_order(nats: NatsServer, loop: str) -> None:
    async def main() -> None:
        async with paired(nats.url) as pair:
            first = [((stream, 0), Fetch(3, stream, 5, 5, 0)) for stream in range(1_000)]
            for key, fetch in first:
                pair.a.send("b", key, fetch)
                pair.a.send("c", key, fetch)
            await pair.settle()
            assert pair.a.stats.messages_out == 2
            assert pair.b.stats.messages_in == 1
            assert pair.heard == from_a(*first)
            second = [((stream, 0), Fetch(3, stream, 6, 6, 0, is_fetch=False)) for stream in range(10)]
            for key, fetch in second:
                pair.a.send("b", key, fetch)
                await asyncio.sleep(0)
            await pair.settle()
            assert pair.heard == from_a(*first, *second)
            assert pair.b.stats.messages_in == 11
            assert pair.b.stats.bytes_in == pair.b.link.reader.message_bytes
            assert pair.a.stats.entries_out == 2_010
            assert pair.b.stats.entries_in == 1_010

    run(loop, main())


def test_answers_larger_than_the_servers_messages_are_put_together(tmp_path: Path, loop: str) -> None:
    async def main(url: str) -> None:
        async with paired(url) as pair:
            assert pair.a.link.max_payload == 4096
            sizes = [0, 1, 4_000, 4_017, 4_018, 4_019, 4_020, 4_021, 4_022, 8_100, 100_000, limits.MIB, 3]
            said = [((1, number), answer(number, size)) for number, size in enumerate(sizes)]
            for key, message in said:
                pair.a.send("b", key, message)
            await until(lambda: len(pair.heard) == len(said))
            assert pair.heard == from_a(*said)
            data_bytes = sum(sizes)
            assert data_bytes / 4096 < pair.a.stats.messages_out <= data_bytes / 4000 + 12
            assert pair.a.stats.messages_out == pair.b.stats.messages_in
            assert pair.b.half_answers.held_bytes == pair.b.half_answers.broken == 0
            # Many turns, many partitions, both servers at once.
            for number in range(100, 140):
                pair.a.send("b", (1, number % 3), answer(number, number * 500))
                pair.b.send("a", (1, number % 3), answer(number, number * 400))
                await asyncio.sleep(0)
            await until(lambda: len(pair.heard) == len(said) + 40 and len(pair.heard_by_a) == 40)
            for number, heard in zip(range(100, 140), pair.heard[len(said) :], strict=True):
                assert heard == ("a", (1, number % 3), answer(number, number * 500))

    with ConfiguredNats(tmp_path / "nats", "max_payload: 4096") as server:
        run(loop, main(server.url))


def test_an_answer_of_the_largest_size_arrives(tmp_path: Path) -> None:
    async def main(url: str) -> None:
        async with paired(url) as pair:
            data = random.Random(1).randbytes(limits.MIB) * (limits.REPLICATION_ANSWER_BYTES_MAX // limits.MIB)
            assert len(data) == limits.REPLICATION_ANSWER_BYTES_MAX
            pair.a.send("b", KEY, FetchAnswer(3, 1, Verdict.OK, data=data))
            await until(lambda: pair.heard)
            assert pair.heard[0][2].data == data

    # It is more than a server keeps for a receiver by default.
    with ConfiguredNats(tmp_path / "nats", "max_pending: 256MB") as server:
        run("uvloop", main(server.url))


def test_after_the_server_was_away_followers_are_told_and_all_works_again(nats: NatsServer, loop: str) -> None:
    async def main() -> None:
        async with paired(nats.url) as pair:
            connected: list[bool] = []
            states: list[bool] = []
            pair.a.on_state = lambda is_connected, _reason: states.append(is_connected)

            def ask_again() -> None:
                connected.append(pair.a.link.connected)
                pair.a.send("b", KEY, Fetch(3, 9, 5, 5, 0))

            pair.a.on_connected = ask_again
            nats.stop()
            await until(lambda: not pair.a.link.connected and not pair.b.link.connected)
            pair.a.send("b", KEY, Fetch(3, 8, 5, 5, 0))
            assert pair.a.stats.entries_dropped == 1
            assert pair.a.has_room
            assert connected == []
            nats.start()
            await until(lambda: pair.a.link.connected and pair.b.link.connected)
            assert connected == [True]
            assert states == [False, True]
            await pair.b.link.flush(60)
            pair.a.send("b", KEY, Fetch(3, 10, 5, 5, 0))
            await pair.settle()
            # Its word at the reconnect may have been earlier than the other's subscription.
            assert pair.heard[-1] == ("a", KEY, Fetch(3, 10, 5, 5, 0))
            assert all(heard[2].number in (9, 10) for heard in pair.heard)

    run(loop, main())


def test_what_was_said_in_the_turn_in_which_the_connection_died_is_dropped(nats: NatsServer) -> None:
    async def main() -> None:
        async with paired(nats.url) as pair:
            pair.a.send("b", KEY, Fetch(3, 8, 5, 5, 0))
            pair.a.link._drop("test")
            await asyncio.sleep(0)
            assert pair.a.stats.entries_dropped == 1
            await until(lambda: pair.a.link.connected)
            await pair.settle()
            assert pair.heard == []

    run("asyncio", main())


@asynccontextmanager
async def stalled(server: NatsServer) -> AsyncIterator[Callable[[], None]]:
    """The server is there and does nothing until the function is called."""
    assert server._process is not None
    pid = server._process.pid
    pause(pid)
    try:
        yield lambda: os.kill(pid, signal.SIGCONT)
    finally:
        os.kill(pid, signal.SIGCONT)


async def fill(link: ReplicationLink) -> int:
    """Answer as a leader does: as long as there is room. How many answers that took."""
    count = 0
    while link.has_room:
        link.send("b", KEY, answer(count, limits.MIB))
        count += 1
        await asyncio.sleep(0)
        assert count < 1_000
    return count


async def stall_and_go_on(pair: Pair, nats: NatsServer) -> None:
    rooms: list[bool] = []
    pair.a.on_room = lambda: rooms.append(pair.a.has_room)
    async with stalled(nats) as wake:
        sent = await fill(pair.a)
        beyond = pair.a.link.unsent - limits.REPLICATION_OUTPUT_BYTES_MAX
        assert 0 <= beyond < 2 * limits.MIB
        assert not pair.a.has_room
        assert rooms == []
        wake()
        await until(lambda: rooms)
    assert rooms == [True]
    assert pair.a.has_room
    await until(lambda: len(pair.heard) == sent)
    assert pair.heard == from_a(*((KEY, answer(number, limits.MIB)) for number in range(sent)))
    pair.heard.clear()


def test_a_server_that_stalls_ends_the_room_and_gives_it_back_each_time(nats: NatsServer, loop: str) -> None:
    async def main() -> None:
        async with paired(nats.url) as pair:
            await stall_and_go_on(pair, nats)
            await stall_and_go_on(pair, nats)

    run(loop, main())


def test_a_connection_that_dies_full_gives_its_room_back(nats: NatsServer, loop: str) -> None:
    async def main() -> None:
        async with paired(nats.url) as pair:
            rooms: list[bool] = []
            pair.a.on_room = lambda: rooms.append(pair.a.has_room)
            async with stalled(nats):
                await fill(pair.a)
                pair.a.link._drop("test")
                assert rooms == [True]
            await until(lambda: pair.a.link.connected)
            pair.a.send("b", KEY, Notice(3, 4))
            # Messages of the connection that died may still come after it.
            await until(lambda: ("a", KEY, Notice(3, 4)) in pair.heard)

    run(loop, main())


def test_what_is_said_is_with_the_socket_a_turn_later_or_two_behind_other_output(nats: NatsServer, loop: str) -> None:
    async def main() -> None:
        async with paired(nats.url) as pair:
            pair.a.send("b", KEY, Notice(3, 4))
            await asyncio.sleep(0)
            assert (pair.a.stats.messages_out, pair.a.link.unsent) == (1, 0)
            pair.a.link.schedule_flush()
            pair.a.send("b", KEY, Notice(3, 5))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert (pair.a.stats.messages_out, pair.a.link.unsent) == (2, 0)
            await until(lambda: pair.heard == from_a((KEY, Notice(3, 4)), (KEY, Notice(3, 5))))

    run(loop, main())


def test_a_lost_connection_leaves_no_half_answer(nats: NatsServer) -> None:
    async def main() -> None:
        async with paired(nats.url) as pair:
            [(subject, first), *_] = await ReplicationWire(max_payload=1_000).say((KEY, answer(1, 2_000)))
            pair.a.link.publish(subject.encode(), first)
            await pair.settle()
            assert pair.b.half_answers.held_bytes > 900
            pair.b.link._drop("test")
            assert pair.b.half_answers.held_bytes == 0

    run("asyncio", main())


def test_foreign_bytes_are_counted_and_logged_now_and_then(
    nats: NatsServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bascule.partition.replication.link._COMPLAINT_NS", 3_600 * 10**9)  # in place of once a second
    good = codec.encode_head("x") + codec.encode_entry(KEY, Notice(3, 4))

    async def main() -> None:
        async with paired(nats.url) as pair:
            with NatsClient(nats.url) as client:
                for payload in (b"", b"hello", os.urandom(1000), envelope.encode(MessageType.PUBLISH, good)):
                    client.publish("test.replication.b.leader", payload)
                    client.publish("test.replication.b.follower", payload)
                client.publish("test.replication.b.leader", envelope.encode(MessageType.PARTITION_NOTIFICATION, good))
                own = codec.encode_head("b") + codec.encode_entry(KEY, Notice(3, 4))
                client.publish("test.replication.b.follower", envelope.encode(MessageType.PARTITION_NOTIFICATION, own))
                checked = envelope.encode(MessageType.PARTITION_NOTIFICATION, good, checksum=True)
                client.publish("test.replication.b.follower", checked)
                client.publish("test.replication.b.follower", checked[:-1] + bytes((checked[-1] ^ 1,)))
                client.flush()
            await pair.b.link.flush(60)
            assert pair.heard == [("x", KEY, Notice(3, 4))]
            assert pair.b.stats.messages_malformed == 11
            assert pair.b.stats.messages_in == 1

    with caplog.at_level(logging.WARNING, logger="bascule.partition.replication.link"):
        run("asyncio", main())
    assert [record.getMessage() for record in caplog.records] == [
        "a malformed replication message was dropped, number 1: 0 bytes are no envelope with a payload"
    ]


def test_a_link_that_stopped_hears_nothing_more(nats: NatsServer) -> None:
    async def main() -> None:
        async with paired(nats.url) as pair:
            pair.b.stop()
            pair.a.send("b", KEY, Notice(3, 4))
            await pair.settle()
            assert pair.heard == []

    run("asyncio", main())


# ── without one ──────────────────────────────────────────────────────────────────────────────────


def test_data_that_came_whole_is_handed_on_without_a_copy() -> None:
    async def main() -> None:
        wire = ReplicationWire()
        said = ((1, 1), answer(1, 100_000)), ((1, 2), answer(2, 100_000)), ((1, 3), FetchAnswer(3, 3, Verdict.OK))
        [(_, payload)] = await wire.carry(*said)
        assert wire.heard == from_a(*said)
        views = [heard[2].data for heard in wire.heard]
        assert isinstance(views[0].obj, bytes)
        assert views[0].obj is views[1].obj
        assert len(views[0].obj) == len(payload)
        assert views[2] == b""

    asyncio.run(main())


def test_data_is_cut_only_when_no_message_could_hold_it() -> None:
    async def main() -> None:
        wire = ReplicationWire(max_payload=1_000)
        messages = await wire.carry(((1, 1), answer(1, 600)), ((1, 2), answer(2, 600)), ((1, 3), answer(3, 2_000)))
        assert [len(payload) for _, payload in messages] == [678, 678, 1_000, 1_000, 234]
        assert wire.heard[0][2].data.readonly
        assert wire.b.half_answers.broken == 0

    asyncio.run(main())


def test_messages_stay_small_whatever_the_server_would_take() -> None:
    async def main() -> None:
        wire = ReplicationWire(max_payload=64 * limits.MIB)
        messages = await wire.carry((KEY, answer(1, 3 * limits.MIB)))
        assert [len(payload) for _, payload in messages[:3]] == [limits.REPLICATION_MESSAGE_BYTES_MAX] * 3
        assert len(messages) == 4
        assert wire.heard == from_a((KEY, answer(1, 3 * limits.MIB)))

    asyncio.run(main())


def test_room_that_one_turn_filled_is_given_back_even_if_nothing_had_to_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        wire = ReplicationWire()
        # A socket that takes everything at once: nobody is told that there is room, for there was no want of it.
        take_all = asyncio.get_running_loop().call_soon
        monkeypatch.setattr(wire.a.link, "schedule_flush", lambda: take_all(wire.a.link.output.clear))
        rooms: list[bool] = []
        wire.a.on_room = lambda: rooms.append(wire.a.has_room)
        while wire.a.has_room:
            wire.a.send("b", KEY, answer(1, limits.MIB))
        await until(lambda: rooms)
        await asyncio.sleep(0)
        assert rooms == [True]

    asyncio.run(main())


def test_a_server_says_nothing_to_itself() -> None:
    async def main() -> None:
        wire = ReplicationWire()
        wire.a.send("a", KEY, Notice(3, 4))
        await asyncio.sleep(0)
        assert len(wire.a.link.output) == 0
        assert wire.a.stats.entries_dropped == 1

    asyncio.run(main())


def test_a_payload_limit_that_nothing_fits_in_drops_everything() -> None:
    async def main() -> None:
        wire = ReplicationWire(max_payload=78)
        assert await wire.say((KEY, Notice(3, 4)), (KEY, answer(1, 10))) == []
        assert wire.a.stats.entries_dropped == 2

    asyncio.run(main())


def test_a_listener_that_fails_costs_only_its_own_partition() -> None:
    async def main() -> None:
        faults: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: faults.append(context))
        wire = ReplicationWire()
        heard: list[PartitionKey] = []

        def listen(_sender: str, key: PartitionKey, _message: object, _now_ns: int) -> None:
            heard.append(key)
            if key == (1, 2):
                raise RuntimeError("broken")

        wire.b.on_request = listen
        await wire.carry(*(((1, number), Fetch(3, 4, 5, 5, 0)) for number in range(5)))
        assert heard == [(1, number) for number in range(5)]
        assert [context["message"] for context in faults] == ["the message of a for partition (1, 2) was not handled"]

    asyncio.run(main())


def test_a_lost_piece_costs_its_answer_and_no_other() -> None:
    async def main() -> None:
        for lost in range(5):
            wire = ReplicationWire(max_payload=1_000)
            messages = await wire.say((KEY, answer(1, 4_000)), (KEY, answer(2, 4_000)))
            assert len(messages) == 10
            for number, (subject, payload) in enumerate(messages):
                if number != lost:
                    wire.bring(subject, payload)
            assert wire.heard == from_a((KEY, answer(2, 4_000)))
            assert wire.b.half_answers.broken > 0
            assert wire.b.half_answers.held_bytes == 0

    asyncio.run(main())


def test_a_whole_answer_ends_a_half_one() -> None:
    async def main() -> None:
        wire = ReplicationWire(max_payload=1_000)
        [(subject, first), *_] = await wire.say((KEY, answer(1, 2_000)))
        wire.bring(subject, first)
        assert wire.b.half_answers.held_bytes > 900
        await wire.carry(((7, 2), answer(2, 10)))
        assert wire.heard == from_a(((7, 2), answer(2, 10)))
        assert (wire.b.half_answers.held_bytes, wire.b.half_answers.broken) == (0, 1)

    asyncio.run(main())


# ── half answers ─────────────────────────────────────────────────────────────────────────────────


def piece(number: int, position: int, size: int, *, epoch: int = 3) -> tuple[FetchAnswer, int, int]:
    data = bytes((number,)) * size
    return FetchAnswer(epoch, number, Verdict.OK, data=data), 100, position


@pytest.mark.parametrize(
    ("key", "second"),
    [
        ((7, 1), piece(2, 60, 40)),
        ((7, 1), piece(1, 60, 40, epoch=4)),
        ((7, 2), piece(1, 60, 40)),
        ((7, 1), piece(1, 61, 39)),
        ((7, 1), piece(1, 59, 41)),
        ((7, 1), (piece(1, 60, 40)[0], 101, 60)),
    ],
)
def test_a_piece_that_does_not_continue_drops_the_whole_answer(
    key: PartitionKey, second: tuple[FetchAnswer, int, int]
) -> None:
    halves = HalfAnswers()
    assert halves.add("a", (7, 1), *piece(1, 0, 60)) is None
    assert halves.held_bytes == 60
    assert halves.add("a", key, *second) is None
    assert (halves.held_bytes, halves.broken) == (0, 1)
    assert halves.add("a", (7, 1), *piece(1, 60, 40)) is None
    assert (halves.held_bytes, halves.broken) == (0, 2)


def test_an_abandoned_answer_is_replaced_and_other_servers_do_not_matter() -> None:
    halves = HalfAnswers()
    assert halves.add("a", (7, 1), *piece(1, 0, 60)) is None
    assert halves.add("b", (7, 1), *piece(5, 0, 10)) is None
    assert halves.add("a", (7, 2), *piece(2, 0, 30)) is None
    assert (halves.held_bytes, halves.broken) == (40, 1)
    whole = halves.add("a", (7, 2), *piece(2, 30, 70))
    assert whole == FetchAnswer(3, 2, Verdict.OK, data=b"\x02" * 100)
    assert halves.add("b", (7, 1), *piece(5, 10, 90)) == FetchAnswer(3, 5, Verdict.OK, data=b"\x05" * 100)
    assert (halves.held_bytes, halves.broken) == (0, 1)
    halves.add("a", (7, 1), *piece(3, 0, 60))
    halves.clear()
    assert (halves.held_bytes, halves.broken) == (0, 2)


def test_the_memory_of_half_answers_is_bounded_in_bytes_and_in_number() -> None:
    halves = HalfAnswers(bytes_max=250)
    for number in range(5):
        halves.add(f"server-{number}", KEY, *piece(number, 0, 60))
        assert halves.held_bytes <= 250
    assert halves.broken == 1
    assert halves.add("server-0", KEY, *piece(0, 60, 40)) is None
    assert halves.add("server-4", KEY, *piece(4, 60, 40)) is not None
    many = HalfAnswers()
    for number in range(3_000):
        many.add(f"server-{number}", KEY, *piece(1, 0, 1))
    assert many.held_bytes == limits.RAFT_MEMBERS_MAX


def test_what_is_announced_is_not_allocated() -> None:
    halves = HalfAnswers()
    first = FetchAnswer(3, 1, Verdict.OK, data=b"x")
    assert halves.add("a", KEY, first, limits.REPLICATION_ANSWER_BYTES_MAX, 0) is None
    assert halves.held_bytes == 1
