"""Connecting, streams, metadata and cursors against a real broker; and what each failure says."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from datetime import timedelta

import pytest

import bascule
from bascule import errors
from bascule.client.connection import brokers
from bascule.client.connection.metadata import SettingsInfo
from tests.support.api_client import Api
from tests.support.broker_fixtures import StartBroker
from tests.support.broker_process import BrokerProcess
from tests.support.on_loop import on_loop, soon
from tests.support.waiting import pause


@on_loop
async def test_connecting_both_ways(broker: BrokerProcess) -> None:
    client = await bascule.connect(broker.address)
    assert not client.is_closed
    await client.close()
    await client.close()
    assert client.is_closed
    async with bascule.connect([broker.address]) as client:
        assert (await client.fetch_metadata()).brokers
    assert client.is_closed


@on_loop
async def test_a_wrong_address_is_told_at_once_and_by_name() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(bascule.Unavailable, match=address) as caught:
            await soon(bascule.connect(address)._connect())
    assert "bascule server" in str(caught.value.hint)


@on_loop
async def test_a_host_that_does_not_exist_is_told() -> None:
    with pytest.raises(bascule.Unavailable, match="no broker can be reached"):
        await bascule.connect("host.invalid:1", timeout=3)


@on_loop
async def test_something_that_is_no_broker_is_told() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(bascule.Unavailable, match="no broker can be reached"):
            await bascule.connect(f"127.0.0.1:{port}", timeout=3)


@pytest.mark.disturbs
@on_loop
async def test_the_only_broker_there_is_may_be_slow_for_a_moment(
    start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(brokers, "CONNECT_SECONDS_MAX", 0.05)
    broker = start_broker()
    pause(broker.pid)
    try:
        connecting = asyncio.create_task(bascule.connect(broker.address)._connect())
        await asyncio.wait([connecting], timeout=0.3)  # longer than one of several brokers is waited for
    finally:
        os.kill(broker.pid, signal.SIGCONT)
    client = await soon(connecting)
    await client.close()


@on_loop
async def test_one_broker_that_answers_is_enough(broker: BrokerProcess) -> None:
    async with bascule.connect(["127.0.0.1:1", broker.address]) as client:
        assert (await client.fetch_metadata([])).brokers


@on_loop
async def test_a_stream_is_created_with_everything_that_can_be_asked_for(broker: BrokerProcess, name: str) -> None:
    async with bascule.connect(broker.address) as client:
        await client.create_stream(
            name,
            f"{name}.subject",
            partitions=3,
            replication_factor=1,
            group="g",
            retention_max_bytes=1 << 30,
            retention_max_messages=1000,
            retention_max_age=timedelta(days=1),
            cleaner_interval=60,
            segment_max_bytes=1 << 20,
            segment_max_age=timedelta(hours=1),
            compact=True,
            compact_max_goroutines=2,
            compact_min_lag=timedelta(minutes=1),
            tombstone_retention=timedelta(hours=3),
            auto_pause_time=timedelta(hours=2),
            auto_pause_disable_if_subscribers=True,
            min_insync_replicas=1,
            optimistic_concurrency_control=False,
            encryption=False,
            compression="zstd",
            sync="interval",
            sync_interval=0.25,
        )
        found = (await client.fetch_metadata([name, "nobody"])).streams
        assert set(found) == {name}
        assert found[name].subject == f"{name}.subject"
        assert list(found[name].partitions) == [0, 1, 2]
        assert found[name].settings == SettingsInfo(
            retention_max_bytes=1 << 30,
            retention_max_messages=1000,
            retention_max_age=timedelta(days=1),
            cleaner_interval=timedelta(minutes=1),
            segment_max_bytes=1 << 20,
            segment_max_age=timedelta(hours=1),
            compact=True,
            compact_min_lag=timedelta(minutes=1),
            tombstone_retention=timedelta(hours=3),
            auto_pause_time=timedelta(hours=2),
            auto_pause_disable_if_subscribers=True,
            min_insync_replicas=1,
            optimistic_concurrency_control=False,
            encryption=False,
            compression="zstd",
            sync="interval",
            sync_interval=timedelta(milliseconds=250),
        )
        with pytest.raises(errors.StreamExists, match="exists already"):
            await client.create_stream(name)
        await client.delete_stream(name)
        with pytest.raises(errors.StreamNotFound):
            await client.delete_stream(name)
        assert not (await client.fetch_metadata([name])).streams


def test_the_blocking_client_sets_and_shows_the_same(broker: BrokerProcess, name: str) -> None:
    with bascule.blocking.connect(broker.address) as client:
        client.create_stream(name, sync="always", compression="zstd")
        settings = client.fetch_metadata([name]).streams[name].settings
        assert settings is not None
        assert (settings.sync, settings.compression) == ("always", "zstd")
        assert settings.sync_interval == timedelta(seconds=1)  # the server's default
        with pytest.raises(errors.InvalidOption, match="`sync` is 'never'"):
            client.create_stream(f"{name}-bad", sync="never")  # type: ignore[arg-type]
        assert not client.fetch_metadata([f"{name}-bad"]).streams


@on_loop
async def test_the_servers_refusals_keep_their_words(broker: BrokerProcess) -> None:
    async with bascule.connect(broker.address) as client:
        with pytest.raises(bascule.CallerError, match="reserved"):
            await client.create_stream("__cursors", "x")
        with pytest.raises(bascule.CallerError):
            await client.create_stream("too-many-replicas", replication_factor=7)
        with pytest.raises(bascule.CallerError, match="`syncInterval` is 0ms"):
            await client.create_stream("x", sync_interval=0)
        with pytest.raises(errors.InvalidOption, match="`partitions` is 0"):
            await client.create_stream("x", partitions=0)


@on_loop
async def test_partition_metadata_pause_and_readonly(broker: BrokerProcess, name: str) -> None:
    async with bascule.connect(broker.address) as client:
        await client.create_stream(name, partitions=2)
        info = await client.fetch_partition_metadata(name, 1)
        assert (info.id, info.newest_offset, info.high_watermark) == (1, -1, -1)
        assert info.messages_received.first is None
        await client.publish(name, b"x", partition=1)
        info = await client.fetch_partition_metadata(name, 1)
        assert (info.newest_offset, info.messages_received.first is None) == (0, False)
        await client.set_readonly(name, [1])
        assert (await client.fetch_partition_metadata(name, 1)).readonly
        assert not (await client.fetch_partition_metadata(name, 0)).readonly
        await client.set_readonly(name, [1], False)
        await client.pause_stream(name)
        with pytest.raises(errors.PartitionPaused, match="is paused"):
            await client.fetch_partition_metadata(name, 1)
        with pytest.raises(errors.StreamNotFound, match="partitions are 0 to 1"):
            await client.fetch_partition_metadata(name, 2)
        with pytest.raises(errors.StreamNotFound, match="no stream `nobody`"):
            await client.fetch_partition_metadata("nobody")


@on_loop
async def test_cursors(broker: BrokerProcess, name: str) -> None:
    async with bascule.connect(broker.address) as client:
        assert await client.fetch_cursor("c", name) is None
        await client.set_cursor("c", name, 0, 41)
        await client.set_cursor("c", name, 1, 0)
        assert await client.fetch_cursor("c", name) == 41
        assert await client.fetch_cursor("c", name, 1) == 0
        with pytest.raises(errors.InvalidOption, match="`cursor` is ''"):
            await client.set_cursor("", name, 0, 1)


@on_loop
async def test_a_client_that_was_closed_says_so(broker: BrokerProcess, name: str) -> None:
    client = await bascule.connect(broker.address)
    await client.close()
    for act in (
        client.fetch_metadata,
        lambda: client.publish(name, b""),
        lambda: client.fetch_cursor("c", name),
    ):
        with pytest.raises(errors.ClientClosed):
            await act()
    with pytest.raises(errors.ClientClosed):
        client.subscribe(name)


@pytest.mark.disturbs
@on_loop
async def test_calls_live_through_a_restart(start_broker: StartBroker, name: str) -> None:
    broker = start_broker()
    broker.config["listen"] = broker.address  # the same after the restart
    async with bascule.connect(broker.address, timeout=60) as client:
        await client.create_stream(name)
        broker.kill()
        waiting = asyncio.create_task(client.fetch_metadata([name]))
        await asyncio.sleep(0.2)
        await asyncio.to_thread(broker.start)
        assert name in (await waiting).streams


@on_loop
async def test_a_deadline_ends_a_call_to_a_broker_that_is_gone(start_broker: StartBroker) -> None:
    broker = start_broker()
    async with bascule.connect(broker.address) as client:
        broker.kill()
        with pytest.raises(bascule.Unavailable):
            await soon(client.fetch_metadata(timeout=0.5))


@on_loop
async def test_the_api_sees_what_the_client_did(broker: BrokerProcess, api: Api, name: str) -> None:
    async with bascule.connect(broker.address) as client:
        await client.create_stream(name, f"{name}.s", partitions=2)
    assert set(api.stream(name).partitions) == {0, 1}
