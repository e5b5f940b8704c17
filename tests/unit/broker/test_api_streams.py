"""CreateStream, DeleteStream, PauseStream, SetStreamReadonly: codes, texts, and what is there afterwards."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest

from bascule.config.sections.streams import StreamDefaults
from bascule.config.stream import resolve
from bascule.log import LogOptions
from bascule.metadata.core.model.streams import Stream
from bascule.metadata.requests import CallDeadline
from bascule.metadata.stream_options import settings_of, stored_config
from bascule.net.grpc.status import GrpcError
from bascule.proto import api_pb2 as api
from tests.support.control_plane import SUBJECTS, Server, configured, refused, run, running, until


async def create(server: Server, name: str, **more: Any) -> Any:
    return await server.call("CreateStream", **{"subject": name, "name": name, **more})


# ── creating ─────────────────────────────────────────────────────────────────────────────────────


def test_a_created_stream_can_be_published_to_at_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as cluster:
            await create(cluster.alone, "orders", partitions=3)
            for number in range(3):
                assert (await cluster.alone.publish("orders", number)).offset == 0
            found = await cluster.alone.call("FetchMetadata")
            assert sorted(found.streamMetadata[0].partitions) == [0, 1, 2]
            assert (found.brokers[0].partitionCount, found.brokers[0].leaderCount) == (3, 3)

    run(scenario())


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"name": ""}, "Name cannot be empty"),
        ({"subject": ""}, "Subject is invalid"),
        ({"subject": "a b"}, "Subject is invalid"),
        ({"subject": "a..b"}, "Subject is invalid"),
        ({"subject": "a\r\nPUB x"}, "Subject is invalid"),
        ({"name": "__cursors"}, "Stream is reserved"),
        ({"name": "__activity"}, "Stream is reserved"),
        ({"name": "../etc"}, "Name is invalid"),
        ({"name": "a*"}, "Name is invalid"),
        ({"name": "a b"}, "Name is invalid"),
        ({"name": "nul\0"}, "Name is invalid"),
        ({"partitions": -1}, "partitions"),
        ({"partitions": 1_000_000}, "partitions"),
        ({"replicationFactor": 2}, "replicationFactor"),
        ({"replicationFactor": -2}, "replicationFactor"),
        ({"group": "a b"}, "Group is invalid"),
        ({"segmentMaxBytes": api.NullableInt64(value=-1)}, "segmentMaxBytes"),
        ({"retentionMaxAge": api.NullableInt64(value=-5)}, "retentionMaxAge"),
    ],
)
def test_a_request_that_is_wrong_is_refused_and_changes_nothing(
    tmp_path: Path, fields: dict[str, Any], text: str
) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as cluster:
            code, said = await refused(create(cluster.alone, **{"name": "orders", "subject": "s", **fields}))
            assert code == "INVALID_ARGUMENT"
            assert text in said
            assert not cluster.alone.controller.metadata.streams

    run(scenario())


def test_a_replica_on_every_server_is_never_silently_fewer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that is slow for the time of a survey would be left out for ever."""

    async def ignore(*_: object) -> None:
        pass

    async def scenario() -> None:
        async with running(tmp_path, "abc") as cluster:
            leader = await cluster.leader()
            slow = next(server for server in cluster.servers.values() if server is not leader)
            with monkeypatch.context() as patch:
                patch.setattr(slow.directory, "_on_info_request", ignore)
                leader.directory._known.pop(slow.name, None)
                code, text = await refused(create(leader, "orders", replicationFactor=-1))
                assert code == "UNAVAILABLE"
                assert "replicationFactor is -1" in text and slow.name in text and "retry" in text
                assert "orders" not in leader.controller.metadata.streams
            await slow.directory.introduce()
            await until(lambda: slow.name in leader.directory._known)
            while True:  # each of the three may be slow for a second
                with contextlib.suppress(GrpcError):
                    await create(leader, "orders", replicationFactor=-1)
                    break
            assert sorted(leader.controller.metadata.streams["orders"].partitions[0].replicas) == ["a", "b", "c"]

    run(scenario())


def test_names_with_dots_are_fine(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as cluster:
            await create(cluster.alone, "ems.helb.sensors", subject="foo.*")
            await cluster.alone.publish("ems.helb.sensors")

    run(scenario())


def test_a_name_is_given_once_whatever_the_subject(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, "abc") as cluster:
            leader = await cluster.leader()
            await create(leader, "orders")
            for server in cluster.servers.values():
                answer = await refused(create(server, "orders", subject="other"))
                assert answer == ("ALREADY_EXISTS", "stream already exists")

    run(scenario())


def test_a_partition_has_as_many_replicas_as_it_was_asked_for(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, "abc") as cluster:
            server = cluster.servers["b"]
            for factor in (4, -2):
                code, text = await refused(create(server, "many", replicationFactor=factor))
                assert code == "INVALID_ARGUMENT"
                assert text.startswith(f"Invalid replicationFactor {factor}, cluster size 3")
            for factor, replicas in ((-1, 3), (0, 1), (1, 1), (2, 2), (3, 3)):
                await create(server, f"s{factor}", replicationFactor=factor)
                assert len(server.controller.metadata.streams[f"s{factor}"].partitions[0].replicas) == replicas

    run(scenario())


def test_a_stream_created_through_a_follower_is_up_wherever_its_partitions_are(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, "abc") as cluster:
            leader = await cluster.leader()
            follower = next(server for server in cluster.servers.values() if server is not leader)
            await create(follower, "orders", partitions=6)
            leaders = {partition.leader for partition in follower.controller.metadata.streams["orders"].partitions}
            assert leaders == {"a", "b", "c"}
            for number in range(6):
                await follower.publish("orders", number)

    run(scenario())


def test_without_a_metadata_leader_the_exact_text_is_said(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, "ab") as cluster:
            survivor = cluster.servers["a"]
            await cluster.servers.pop("b").stop()
            await until(lambda: survivor.controller.leader is None)
            loop = asyncio.get_running_loop()
            expected = ("INTERNAL", "no known metadata leader")
            began = loop.time()
            asked = sum(subject == SUBJECTS.info for subject, _ in cluster.bus.published)
            call = survivor.call("CreateStream", None, name="x", subject="x")
            assert await refused(call) == expected
            # at once: nobody was even asked where the partitions could go
            assert asked == sum(subject == SUBJECTS.info for subject, _ in cluster.bus.published)
            call = survivor.call("CreateStream", 0.5, name="x", subject="x")
            assert await refused(call) == expected
            assert 0.4 <= loop.time() - began < 40
            call = survivor.call("DeleteStream", None, name="x")
            assert await refused(call) == expected
            assert (await survivor.call("FetchMetadata", None)).brokers[0].id == "a"

    run(scenario())


def test_a_creation_that_nobody_starts_ends_all_the_same(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as cluster:
            cluster.alone.partitions.is_slow = True
            began = asyncio.get_running_loop().time()
            await create(cluster.alone, "orders")
            assert 0.3 < asyncio.get_running_loop().time() - began < 40

    run(scenario())


# ── encryption ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("key", [None, "short", "x" * 17])
def test_encryption_needs_a_master_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str | None) -> None:
    monkeypatch.delenv("BASCULE_ENCRYPTION_KEY", raising=False)
    monkeypatch.delenv("LIFTBRIDGE_ENCRYPTION_KEY", raising=False)
    if key is not None:
        monkeypatch.setenv("LIFTBRIDGE_ENCRYPTION_KEY", key)

    async def scenario() -> None:
        async with running(tmp_path) as cluster:
            code, text = await refused(create(cluster.alone, "secret", encryption=api.NullableBool(value=True)))
            assert code == "FAILED_PRECONDITION"
            assert "invalid AES key size" in text
            await create(cluster.alone, "clear", encryption=api.NullableBool(value=False))

    run(scenario())


def test_with_a_master_key_streams_may_be_encrypted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIFTBRIDGE_ENCRYPTION_KEY", "0123456789abcdef")

    async def scenario() -> None:
        async with running(tmp_path) as cluster:
            cluster.alone.partitions.is_slow = True
            call = create(cluster.alone, "secret", encryption=api.NullableBool(value=True))
            await call
            assert cluster.alone.controller.metadata.streams["secret"].config["encryption"] is True

    run(scenario())


# ── settings ─────────────────────────────────────────────────────────────────────────────────────


def test_settings_are_resolved_at_creation_and_stored(tmp_path: Path) -> None:
    config = configured(
        streams=StreamDefaults(retention_max_bytes=1000, compact_enabled=True, concurrency_control=True)
    )

    async def scenario() -> None:
        async with running(tmp_path, config=config) as cluster:
            await create(
                cluster.alone,
                "orders",
                retentionMaxBytes=api.NullableInt64(value=0),
                retentionMaxAge=api.NullableInt64(value=1_000_000),
                retentionMaxMessages=api.NullableInt64(value=7),
                cleanerInterval=api.NullableInt64(value=2_000),
                segmentMaxBytes=api.NullableInt64(value=4096),
                segmentMaxAge=api.NullableInt64(value=5_000),
                compactEnabled=api.NullableBool(value=False),
                compactMaxGoroutines=api.NullableInt32(value=3),
                autoPauseTime=api.NullableInt64(value=100),
                autoPauseDisableIfSubscribers=api.NullableBool(value=True),
                minIsr=api.NullableInt32(value=1),
            )
            settings = settings_of(cluster.alone.controller.metadata.streams["orders"])
            log = settings.log_options
            assert (log.retention_bytes_max, log.retention_records_max) == (0, 7)
            assert (log.retention_age_max_ns, log.segment_age_max_ns) == (1000 * 10**9, 5 * 10**9)
            assert (log.segment_bytes_max, log.compact) == (4096, False)
            assert settings.cleaner_interval_ms == 2000
            assert (settings.auto_pause_time_ns, settings.auto_pause_disable_if_subscribers) == (100_000_000, True)
            assert settings.concurrency_control  # the server's default, which nobody overrode
            await create(cluster.alone, "defaults")
            log = settings_of(cluster.alone.controller.metadata.streams["defaults"]).log_options
            assert (log.retention_bytes_max, log.compact) == (1000, True)

    run(scenario())


def stream_with(config: dict[str, Any]) -> Stream:
    return Stream("orders", 1, "s", "", 0, config, [])


def test_settings_that_are_missing_or_unknown_are_the_defaults() -> None:
    defaults = settings_of(stream_with(stored_config(resolve(configured().cluster))))
    assert settings_of(stream_with({})) == defaults
    nonsense = {
        "segment_max_bytes": -1,
        "retention_max_age_ns": "long",
        "compression": "lzma",
        "sync": "maybe",
        "compact_enabled": 1,
        "from_the_future": True,
        "concurrency_control": True,
    }
    found = settings_of(stream_with(nonsense))
    assert found.concurrency_control
    assert found.log_options.compression == defaults.log_options.compression
    assert found.log_options.sync == defaults.log_options.sync
    assert found.log_options.segment_bytes_max == LogOptions().segment_bytes_max


# ── deleting ─────────────────────────────────────────────────────────────────────────────────────


def test_a_deleted_stream_is_gone_on_all_servers_with_its_data(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, "abc") as cluster:
            leader = await cluster.leader()
            follower = next(server for server in cluster.servers.values() if server is not leader)
            await create(leader, "orders", partitions=3)
            for number in range(3):
                await leader.publish("orders", number)
            await follower.call("DeleteStream", name="orders")
            await until(lambda: not any("orders" in s.controller.metadata.streams for s in cluster.servers.values()))
            await until(lambda: not list(tmp_path.glob("*/logs/streams/orders")))
            answer = await refused(follower.call("DeleteStream", name="orders"))
            assert answer == ("NOT_FOUND", "stream does not exist")

    run(scenario())


@pytest.mark.parametrize("name", ["__cursors", "__activity"])
def test_reserved_streams_cannot_be_deleted(tmp_path: Path, name: str) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as cluster:
            answer = await refused(cluster.alone.call("DeleteStream", name=name))
            assert answer == ("INVALID_ARGUMENT", "Stream is reserved")

    run(scenario())


# ── pausing and readonly ─────────────────────────────────────────────────────────────────────────


def test_pausing_all_is_idempotent_and_weighs_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as cluster:
            server = cluster.alone
            await create(server, "orders", partitions=2)
            for _ in range(2):
                await server.call("PauseStream", name="orders")
            found = await server.call("FetchMetadata")
            assert all(each.paused for each in found.streamMetadata[0].partitions.values())
            assert (found.brokers[0].partitionCount, found.brokers[0].leaderCount) == (0, 0)

    run(scenario())


def test_a_publish_resumes_only_its_partition(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as cluster:
            server = cluster.alone
            await create(server, "orders", partitions=2)
            await server.call("PauseStream", name="orders")
            await server.publish("orders", 1)
            found = (await server.call("FetchMetadata")).streamMetadata[0].partitions
            assert (found[0].paused, found[1].paused) == (True, False)

    run(scenario())


def test_a_stream_paused_to_be_resumed_as_a_whole_is(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, "abc") as cluster:
            server = cluster.servers["c"]
            await create(server, "orders", partitions=3)
            await server.call("PauseStream", name="orders", resumeAll=True)
            await server.publish("orders", 0)
            found = (await server.call("FetchMetadata")).streamMetadata[0].partitions
            assert not any(partition.paused for partition in found.values())

    run(scenario())


def test_many_that_resume_at_once_are_one_op(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as cluster:
            server = cluster.alone
            await create(server, "orders")
            await server.call("PauseStream", name="orders")
            before = server.controller.metadata.applied_index
            await asyncio.gather(*(server.starts.resume("orders", 0) for _ in range(100)))
            assert server.controller.metadata.applied_index == before + 1

    run(scenario())


def test_resuming_what_is_not_there_or_does_not_start_is_said(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as cluster:
            server = cluster.alone
            assert (await refused(server.starts.resume("nobody", 0)))[0] == "NOT_FOUND"
            await create(server, "orders")
            assert (await refused(server.starts.resume("orders", 1)))[0] == "NOT_FOUND"
            await server.call("PauseStream", name="orders")
            server.partitions.is_slow = True
            assert (await refused(server.starts.resume("orders", 0)))[0] == "INTERNAL"

    run(scenario())


@pytest.mark.parametrize("name", ["PauseStream", "SetStreamReadonly"])
def test_unknown_streams_and_partitions_are_not_found_and_nothing_happens(tmp_path: Path, name: str) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as cluster:
            server = cluster.alone
            await create(server, "orders", partitions=2)
            assert (await refused(server.call(name, name="nobody")))[0] == "NOT_FOUND"
            assert (await refused(server.call(name, name="orders", partitions=[0, 2])))[0] == "NOT_FOUND"
            found = (await server.call("FetchMetadata")).streamMetadata[0].partitions
            assert not any(partition.paused or partition.readonly for partition in found.values())

    run(scenario())


def test_readonly_partitions_take_nothing_until_it_is_taken_back(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, "ab") as cluster:
            server = cluster.servers["b"]
            await create(server, "orders", partitions=2)
            await server.call("SetStreamReadonly", name="orders", partitions=[1], readonly=True)
            await server.publish("orders", 0)
            assert (await refused(server.publish("orders", 1)))[0] == "FAILED_PRECONDITION"
            await server.call("SetStreamReadonly", name="orders", readonly=True)
            assert (await refused(server.publish("orders", 0)))[0] == "FAILED_PRECONDITION"
            await server.call("SetStreamReadonly", name="orders", readonly=False)
            for number in range(2):
                await server.publish("orders", number)

    run(scenario())


def test_a_deadline_leaves_time_for_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bascule.metadata.requests.time.monotonic", lambda: 1000.0)
    assert CallDeadline.after(None).left(3) == 3
    assert CallDeadline.after(1.0).left() == pytest.approx(0.9)
    assert CallDeadline.after(0).left() == 0
