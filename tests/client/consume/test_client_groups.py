"""Consumer groups against real brokers: every message is dealt with once, whoever comes, leaves or dies."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

import bascule
from bascule import errors
from bascule.client.blocking import BlockingClient
from tests.support.broker_fixtures import StartBroker
from tests.support.broker_process import BrokerProcess
from tests.support.on_loop import on_loop, soon, until
from tests.support.waiting import PATIENCE_SECONDS, eventually

CONFIG: dict[str, Any] = {
    "cursors.stream.partitions": 1,
    "cursors.stream.auto.pause.time": 0,
    "groups.consumer.timeout": "2s",
    "groups.coordinator.timeout": "2s",
}
CALM: dict[str, Any] = {**CONFIG, "groups.consumer.timeout": "10s"}
"""For groups in which everybody is well: nobody is put out, and reads anything twice, because a machine was busy."""


class Worker:
    """A consumer that notes what it deals with."""

    def __init__(self, client: bascule.Client, group: str, streams: list[str], **options: Any) -> None:
        self.seen: list[tuple[str, int, int]] = []
        self.assigned: list[bascule.Assignment] = []
        self.revoked: list[bascule.Assignment] = []
        self.consumer = client.consumer(
            group, streams, on_assigned=self.assigned.extend, on_revoked=self.revoked.extend, **options
        )
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        async with self.consumer:
            async for message in self.consumer:
                self.seen.append((message.stream, message.partition, message.offset))
                await asyncio.sleep(0)

    async def leave(self) -> None:
        """As a service that is told to stop does: the message in hand is finished, then the block is left."""
        await self.consumer.close()
        with pytest.raises(errors.ClientClosed):
            await self.task

    @property
    def places(self) -> set[tuple[str, int]]:
        return {(place.stream, place.partition) for place in self.consumer.assignments}


def reads(worker: Worker, *places: tuple[str, int]) -> Callable[[], bool]:
    return lambda: worker.places == set(places)


@on_loop
async def test_a_group_remembers_how_far_it_came(broker: BrokerProcess, name: str) -> None:
    async with bascule.connect(broker.address) as client:
        await client.create_stream(name)
        await client.publish_many(name, [b"%d" % number for number in range(10)])
        async with client.consumer(name, name) as consumer:
            assert [(await soon(anext(consumer))).offset for _ in range(4)] == [0, 1, 2, 3]
        assert await client.fetch_cursor(f"__group:{name}", name) == 3
        try:
            async with client.consumer(name, name) as consumer:
                assert (await soon(anext(consumer))).offset == 4
                raise RuntimeError("the message could not be dealt with")
        except RuntimeError:
            pass
        async with client.consumer(name, name) as consumer:
            assert (await soon(anext(consumer))).offset == 4
        new = client.consumer(f"{name}-new", name, start="new")
        async with new:
            await until(lambda: new.assignments, "the partition is assigned")
            await client.publish(name, b"new")
            assert (await soon(anext(new))).offset == 10


@on_loop
async def test_checkpoints_by_hand_and_by_themselves(broker: BrokerProcess, name: str) -> None:
    cursor = f"__group:{name}"
    async with bascule.connect(broker.address) as client:
        await client.create_stream(name)
        await client.publish_many(name, [b"x"] * 10)
        async with client.consumer(name, name, auto_checkpoint=None) as consumer:
            first = await soon(anext(consumer))
            for _ in range(3):
                await soon(anext(consumer))
            await consumer.checkpoint(first)
            assert await client.fetch_cursor(cursor, name) == 0
            await consumer.checkpoint()
            assert await client.fetch_cursor(cursor, name) == 2
        assert await client.fetch_cursor(cursor, name) == 2
        with pytest.raises(errors.NotGroupMember):
            await consumer.checkpoint(first)
        async with client.consumer(name, name, auto_checkpoint=0.05) as consumer:
            for _ in range(3):
                await soon(anext(consumer))
            await soon(cursor_at_least(client, cursor, name, 4))
            assert await client.fetch_cursor(cursor, name) == 4
        async with client.consumer(f"{name}-batches", name) as consumer:
            batch = await soon(anext(consumer.batches()))
            assert batch.first_offset == 0


async def cursor_at_least(client: bascule.Client, cursor: str, stream: str, offset: int) -> None:
    while (found := await client.fetch_cursor(cursor, stream)) is None or found < offset:
        await asyncio.sleep(0.01)


@on_loop
async def test_members_come_and_go_and_every_message_is_dealt_with_once(start_broker: StartBroker, name: str) -> None:
    broker = start_broker(CALM)
    partitions = 4
    everything = [(name, number) for number in range(partitions)]
    async with bascule.connect(broker.address) as client:
        await client.create_stream(name, partitions=partitions)
        sent = 0
        stopping = asyncio.Event()

        async def publish() -> None:
            nonlocal sent
            async with client.publisher(name, partitioner="round-robin") as publisher:
                while not stopping.is_set():
                    await publisher.send(b"%d" % sent)
                    sent += 1
                    await asyncio.sleep(0.001)

        publishing = asyncio.create_task(publish())
        one = Worker(client, name, [name], consumer_id="one")
        await until(reads(one, *everything), "the first member has everything")
        two = Worker(client, name, [name], consumer_id="two", handover_timeout=60.0)
        await until(lambda: len(one.places) == 2 and len(two.places) == 2, "the partitions are divided")
        assert not one.places & two.places
        assert len(one.revoked) == 2
        await until(lambda: len(two.seen) > 50, "the second member has something to do")
        three = Worker(client, name, [name], consumer_id="three", handover_timeout=60.0)
        await until(lambda: len(three.places) == 1, "the third member has something")
        await until(lambda: len(three.seen) > 20, "the third member has something to do")
        await two.leave()
        await until(lambda: one.places | three.places == set(everything), "what was left is taken over")
        stopping.set()
        await publishing
        total = await newest_offsets(client, name, partitions)
        workers = [one, two, three]
        await until(lambda: sum(len(worker.seen) for worker in workers) >= total, "everything was dealt with")
        await one.leave()
        await three.leave()
    counts = Counter(place for worker in workers for place in worker.seen)
    assert set(counts.values()) == {1}, [place for place, count in counts.items() if count > 1][:10]
    assert len(counts) == total


async def newest_offsets(client: bascule.Client, name: str, partitions: int) -> int:
    infos = [await client.fetch_partition_metadata(name, number) for number in range(partitions)]
    return sum(info.newest_offset + 1 for info in infos)


@on_loop
async def test_a_group_that_never_rests_deals_with_everything_once(start_broker: StartBroker, name: str) -> None:
    broker = start_broker({**CONFIG, "groups.consumer.timeout": "30s"})
    partitions = 6
    chance = random.Random(5)
    stopping = asyncio.Event()
    async with bascule.connect(broker.address, timeout=60) as client:
        await client.create_stream(name, partitions=partitions)

        async def publish() -> None:
            async with client.publisher(name, partitioner="round-robin") as publisher:
                while not stopping.is_set():
                    await publisher.send(b"x")
                    await asyncio.sleep(0.001)

        def work() -> Worker:
            return Worker(client, name, [name], handover_timeout=60.0, auto_checkpoint=0.2)

        publishing = asyncio.create_task(publish())
        workers = [work()]
        gone: list[Worker] = []
        for _ in range(12):
            await asyncio.sleep(chance.random() * 0.6)
            if len(workers) < 2 or (len(workers) < 5 and chance.random() < 0.5):
                workers.append(work())
            else:
                gone.append(workers.pop(chance.randrange(len(workers))))
                await gone[-1].leave()
        stopping.set()
        await publishing
        total = await newest_offsets(client, name, partitions)
        everybody = workers + gone
        await until(lambda: sum(len(worker.seen) for worker in everybody) >= total, "everything was dealt with")
        for worker in workers:
            await worker.leave()
    counts = Counter(place for worker in everybody for place in worker.seen)
    assert [place for place, count in counts.items() if count > 1] == []
    assert len(counts) == total


@on_loop
async def test_a_member_that_leaves_while_it_hands_over_has_written_how_far_it_came(
    broker: BrokerProcess, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with bascule.connect(broker.address) as client:
        await client.create_stream(name, partitions=2)
        await client.publish_many(name, [b"x"] * 20, partitioner="round-robin")
        one = Worker(client, name, [name], consumer_id="one", auto_checkpoint=3600.0)
        await until(lambda: len(one.seen) == 20, "it has dealt with everything")
        handing_over = asyncio.Event()
        is_noted = one.consumer._is_noted

        async def stop_here(_place: bascule.Assignment) -> None:
            handing_over.set()
            monkeypatch.setattr(one.consumer, "_is_noted", is_noted)
            await asyncio.Event().wait()

        monkeypatch.setattr(one.consumer, "_is_noted", stop_here)
        two = Worker(client, name, [name], consumer_id="two", handover_timeout=60.0)
        await soon(handing_over.wait())
        await one.leave()
        assert sorted(one.revoked) == [(name, 0), (name, 1)]
        await until(reads(two, (name, 0), (name, 1)), "the other one has everything")
        await client.publish_many(name, [b"y"] * 2, partitioner="round-robin")
        await until(lambda: len(two.seen) >= 2, "it goes on")
        assert sorted(two.seen) == [(name, 0, 10), (name, 1, 10)]
        await two.leave()


@on_loop
@pytest.mark.parametrize("first", ["older", "newer"])
async def test_of_two_that_take_a_partition_at_once_one_waits_for_the_other(
    broker: BrokerProcess, name: str, first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with bascule.connect(broker.address) as client:
        await client.create_stream(name)
        place = bascule.Assignment(name, 0)
        older, newer = (client.consumer(name, name, handover_timeout=60.0) for _ in range(2))
        gates = [asyncio.Event(), asyncio.Event()]
        looked = [asyncio.Event(), asyncio.Event()]

        def wait_behind_the_look(consumer: bascule.Consumer, number: int) -> None:
            replace = consumer._replace_note

            async def later(*arguments: Any) -> None:
                looked[number].set()
                await gates[number].wait()
                await replace(*arguments)

            monkeypatch.setattr(consumer, "_replace_note", later)

        wait_behind_the_look(older, 0)
        wait_behind_the_look(newer, 1)
        taking = [asyncio.create_task(older._note(place, 1)), asyncio.create_task(newer._note(place, 2))]
        for event in looked:
            await soon(event.wait())  # both have seen that it is nobody's
        winner = 0 if first == "older" else 1
        gates[winner].set()
        await soon(taking[winner])
        gates[1 - winner].set()
        if first == "newer":
            with pytest.raises(errors.NotGroupMember):
                await soon(taking[0])
        else:
            done, _ = await asyncio.wait([taking[1]], timeout=0.5)
            assert not done
            await older._withdraw(place)
            await soon(taking[1])
        assert await client.fetch_cursor(f"__hold:{name}", name) == newer._notes[place]


@on_loop
async def test_a_consumer_that_is_closed_while_it_joins_is_no_member(
    broker: BrokerProcess, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with bascule.connect(broker.address) as client:
        await client.create_stream(name)
        leaving = client.consumer(name, name)
        join, joining, may_join = leaving._coordination.join, asyncio.Event(), asyncio.Event()

        async def join_late() -> None:
            joining.set()
            await may_join.wait()
            await join()

        monkeypatch.setattr(leaving._coordination, "join", join_late)
        opening = asyncio.create_task(leaving.open())
        await soon(joining.wait())
        await leaving.close()
        may_join.set()
        with pytest.raises(errors.ClientClosed):
            await soon(opening)
        assert leaving._tasks == []
        assert (await client._brokers.refresh((), [name])).groups.get(name) is None


@on_loop
async def test_a_consumer_that_is_closed_as_soon_as_it_has_joined_leaves_nothing(
    broker: BrokerProcess, name: str
) -> None:
    async with bascule.connect(broker.address) as client:
        await client.create_stream(name)
        leaving = await client.consumer(name, name).open()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            gc.collect()  # what tests before this one have left
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            await leaving.close()  # its tasks have not begun
            del leaving
            gc.collect()
        assert [str(one.message) for one in found if issubclass(one.category, RuntimeWarning)] == []


@on_loop
async def test_a_consumer_that_is_closed_while_it_takes_partitions_lets_go_of_them(
    broker: BrokerProcess, name: str
) -> None:
    told: list[bascule.Assignment] = []
    is_told = asyncio.Event()

    async def assigned(_places: list[bascule.Assignment]) -> None:
        is_told.set()
        await asyncio.Event().wait()

    async with bascule.connect(broker.address) as client:
        await client.create_stream(name, partitions=2)
        consumer = await client.consumer(name, name, on_assigned=assigned, on_revoked=told.extend).open()
        await soon(is_told.wait())
        readers = [held.reader for held in consumer._held.values()]
        await consumer.close()
        assert [reader.ended for reader in readers] == [True, True]
        assert told == [(name, 0), (name, 1)]
        assert [await client.fetch_cursor(f"__hold:{name}", name, number) for number in (0, 1)] == [None, None]


@on_loop
async def test_a_member_that_dies_is_replaced(start_broker: StartBroker, name: str) -> None:
    broker = start_broker(CONFIG)
    async with bascule.connect(broker.address) as client:
        await client.create_stream(name, partitions=2)
        dying = await bascule.connect(broker.address)
        one = Worker(dying, name, [name], consumer_id="one", auto_checkpoint=0.05)
        await until(reads(one, (name, 0), (name, 1)), "the first member has everything")
        await client.publish_many(name, [b"x"] * 10)
        await until(lambda: len(set(one.seen)) == 10, "it has dealt with it")
        await soon(cursor_at_least(client, f"__group:{name}", name, 8))
        for task in one.consumer._tasks:  # as kill -9 does: nothing is given back, nobody says goodbye
            task.cancel()
        one.task.cancel()
        one.consumer._closed = True
        await dying._brokers.close()
        two = Worker(client, name, [name], consumer_id="two", handover_timeout=0.2)
        await until(reads(two, (name, 0), (name, 1)), "the second member has everything")
        await client.publish_many(name, [b"y"] * 5)
        await until(lambda: len(two.seen) >= 5, "it goes on")
        assert min(offset for _, _, offset in two.seen) >= 9
        await two.leave()


@on_loop
async def test_a_group_lives_through_a_restart_of_its_coordinator(start_broker: StartBroker, name: str) -> None:
    broker = start_broker({**CALM, "groups.consumer.timeout": "30s"})  # a restart may take a while too
    broker.config["listen"] = broker.address
    async with bascule.connect(broker.address, timeout=60) as client:
        await client.create_stream(name, partitions=2)
        one = Worker(client, name, [name])
        await until(reads(one, (name, 0), (name, 1)), "the member has everything")
        await client.publish_many(name, [b"x"] * 10, ack="all")
        await until(lambda: len(one.seen) == 10, "it has dealt with it")
        await asyncio.to_thread(broker.restart)
        await client.publish_many(name, [b"y"] * 10, partition=1, ack="all")
        await until(lambda: len(one.seen) == 20, "it goes on")
        assert len(set(one.seen)) == 20
        await one.leave()


@on_loop
async def test_a_stream_that_is_deleted_is_given_up(start_broker: StartBroker, name: str) -> None:
    broker = start_broker(CALM)
    async with bascule.connect(broker.address) as client:
        other = f"{name}-other"
        await client.create_stream(name)
        await client.create_stream(other)
        one = Worker(client, name, [name, other])
        await until(reads(one, (name, 0), (other, 0)), "the member has both")
        await client.delete_stream(other)
        await until(reads(one, (name, 0)), "the member has given it up")
        await client.publish(name, b"x")
        await until(lambda: one.seen == [(name, 0, 0)], "the other one is read")
        await one.leave()


@pytest.mark.parametrize("before", [0, 3])
@on_loop
async def test_what_is_new_is_decided_once_for_the_group(broker: BrokerProcess, name: str, before: int) -> None:
    async with bascule.connect(broker.address) as client:
        await client.create_stream(name)
        await client.publish_many(name, [b"old"] * before)
        consumer = client.consumer(name, name, start="new")
        async with consumer:
            await until(lambda: consumer.assignments, "the partition is assigned")
        await client.publish_many(name, [b"a", b"b"])  # while nobody is there
        async with client.consumer(name, name, start="new") as consumer:
            assert (await soon(anext(consumer))).offset == before


@on_loop
async def test_without_cursors_a_consumer_says_so(start_broker: StartBroker, name: str) -> None:
    broker = start_broker({"cursors.stream.partitions": 0})
    async with bascule.connect(broker.address) as client:
        await client.create_stream(name)
        consumer = client.consumer(name, name)
        with pytest.raises(bascule.OperatorError, match="ursors"):
            await soon(anext(consumer))
        await consumer.close()


@on_loop
async def test_joining_fails_with_a_reason(broker: BrokerProcess, name: str) -> None:
    async with bascule.connect(broker.address) as client:
        with pytest.raises(bascule.StateError, match="stream"):
            await client.consumer(name, ["nobody"]).open()
        with pytest.raises(errors.InvalidOption, match="`group` is ''"):
            client.consumer("", [name])
        with pytest.raises(errors.InvalidOption, match="`streams` is"):
            client.consumer(name, [])
        await client.create_stream(name)
        async with client.consumer(name, name, consumer_id="me"):
            with pytest.raises(bascule.StateError):
                await client.consumer(name, name, consumer_id="me").open()


@on_loop
async def test_a_callback_that_fails_ends_the_consumer(broker: BrokerProcess, name: str) -> None:
    def fail(_: list[bascule.Assignment]) -> None:
        raise RuntimeError("no room for more")

    async with bascule.connect(broker.address) as client:
        await client.create_stream(name)
        consumer = client.consumer(name, name, on_assigned=fail)
        with pytest.raises(RuntimeError, match="no room"):
            await soon(anext(consumer))
        await consumer.close()


def test_a_member_that_hangs_is_put_out_and_joins_again(start_broker: StartBroker, name: str) -> None:
    broker = start_broker(CONFIG)
    seen: list[tuple[str, int, int]] = []
    stopping = threading.Event()

    def work(client: BlockingClient, who: str) -> None:
        with client.consumer(name, name, consumer_id=who, auto_checkpoint=0.05, handover_timeout=0.3) as consumer:
            while not stopping.is_set():
                with contextlib.suppress(TimeoutError):
                    message = client._portal.run(asyncio.wait_for(consumer._part.__anext__(), 0.1))
                    seen.append((who, message.partition, message.offset))

    with bascule.blocking.connect(broker.address) as one, bascule.blocking.connect(broker.address) as two:
        one.create_stream(name, partitions=2)
        threads = [threading.Thread(target=work, args=pair) for pair in ((one, "one"), (two, "two"))]
        try:
            for thread in threads:
                thread.start()
            sent = 0

            def more(count: int = 20) -> bool:
                """Something for everybody to do."""
                nonlocal sent
                two.publish_many(name, [b"x"] * count, partitioner="round-robin")
                sent += count
                return False

            for stage in range(3):
                if stage == 1:
                    # Whoever joins late finds everything read: there is more then.
                    eventually(lambda: len({w for w, *_ in seen}) == 2 or more(), "both have worked")
                    hanging = threading.Thread(target=one._portal.call, args=(lambda: time.sleep(4),))
                    hanging.start()
                    time.sleep(3)  # longer than the consumer timeout
                more(40)
                if stage == 1:
                    eventually(lambda: read_by(seen) >= everything(sent // 2), "the other one does its work")
                    hanging.join()
                eventually(lambda: read_by(seen) >= everything(sent // 2), "everything is read")
            eventually(lambda: {w for w, *_ in seen[-20:]} == {"one", "two"} or more(), "both work again")
        finally:
            stopping.set()
            for thread in threads:
                thread.join(PATIENCE_SECONDS)


def read_by(seen: list[tuple[str, int, int]]) -> set[tuple[int, int]]:
    return {(partition, offset) for _, partition, offset in seen}


def everything(count: int) -> set[tuple[int, int]]:
    return {(partition, offset) for partition in range(2) for offset in range(count)}
