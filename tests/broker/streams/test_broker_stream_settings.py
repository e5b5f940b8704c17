"""Settings of one stream that differ from the server's: they are checked, stored, shown and obeyed, on every replica."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.support.api_client import Api, Status, pb, refused
from tests.support.broker_fixtures import MakeStream, StartBroker, unique_name
from tests.support.broker_process import BrokerProcess
from tests.support.cluster import Cluster
from tests.support.monitoring import scrape
from tests.support.nats_server import NatsServer
from tests.support.waiting import eventually

HOUR_MS = 3_600_000
CHOSEN: dict[str, Any] = {
    "sync": "interval",
    "syncInterval": 250,
    "compression": "zstd",
    "compactMinLag": 60_000,
    "compactTombstoneRetention": 0,
}


def settings_of(api: Api, stream: str) -> Any:
    (found,) = api.FetchMetadata(streams=[stream], includeSettings=True).streamMetadata
    return found.settings


def shown(api: Api, stream: str) -> dict[str, Any]:
    settings = settings_of(api, stream)
    return {name: getattr(settings, name) for name in CHOSEN}


# ── what is shown ────────────────────────────────────────────────────────────────────────────────


def test_what_was_chosen_is_shown_and_the_rest_is_the_servers(start_broker: StartBroker) -> None:
    broker = start_broker(
        {"streams.sync": "always", "streams.retention.max.bytes": 12345, "streams.compression": "zstd"}
    )
    with closing(broker.api()) as api:
        api.CreateStream(name="chosen", subject="chosen", minIsr=1, compactEnabled=True, **CHOSEN)
        api.CreateStream(name="plain", subject="plain")
        found = settings_of(api, "chosen")
        assert shown(api, "chosen") == CHOSEN
        assert (found.compactEnabled, found.retentionMaxBytes, found.minIsr) == (True, 12345, 1)
        assert shown(api, "plain") == {
            "sync": "always",
            "syncInterval": 1000,
            "compression": "zstd",
            "compactMinLag": 0,
            "compactTombstoneRetention": 24 * HOUR_MS,
        }


def test_a_client_that_does_not_ask_gets_no_settings(api: Api, make_stream: MakeStream) -> None:
    name = make_stream(**CHOSEN).name
    for _ in range(2):
        assert not api.stream(name).HasField("settings")
        assert shown(api, name) == CHOSEN
    everything = api.FetchMetadata(includeSettings=True).streamMetadata
    assert all(one.HasField("settings") for one in everything)
    (unknown,) = api.FetchMetadata(streams=["never-was"], includeSettings=True).streamMetadata
    assert not unknown.HasField("settings")


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("sync", "never", "`sync` is `never`: it must be one of `ack`, `interval`, `always`"),
        ("sync", "", "`sync` is ``: it must be one of"),
        ("compression", "gzip", "`compression` is `gzip`: it must be one of `none`, `zstd`"),
        ("compression", "x" * 100_000, "`compression` is `xxx"),
        ("syncInterval", 0, "`syncInterval` is 0ms: it must be a duration of at least 1ms"),
        ("syncInterval", -1, "`syncInterval` is -1ms"),
        ("compactMinLag", -5, "`compactMinLag` is -5ms: it must be a duration of 0 or more"),
        (
            "compactTombstoneRetention",
            1 << 60,
            "`compactTombstoneRetention` is 1152921504606846976ms: it must be a duration of at most",
        ),
    ],
)
def test_a_bad_value_is_refused_and_nothing_is_created(api: Api, field: str, value: Any, text: str) -> None:
    name = unique_name("bad")
    with refused(Status.INVALID_ARGUMENT, text):
        api.CreateStream(name=name, subject=name, **{field: value})
    assert api.stream(name).error == pb.StreamMetadata.UNKNOWN_STREAM


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_settings_outlive_a_restart_and_a_snapshot(start_broker: StartBroker, how: str) -> None:
    broker = start_broker({"clustering.raft.snapshot.threshold": 4})
    with closing(broker.api()) as api:
        api.CreateStream(name="chosen", subject="chosen", **CHOSEN)
        for number in range(20):
            api.CreateStream(name=f"other-{number}", subject="other")
        eventually(lambda: newest_snapshot(broker) > 5, "a snapshot holds the stream")
    if how == "killed":
        broker.kill()
    else:
        assert broker.stop() == 0
    # Another default of the server is for streams that are created from now on.
    broker.config["streams.sync"] = "always"
    broker.start()
    with closing(broker.api()) as api:
        assert shown(api, "chosen") == CHOSEN
        assert shown(api, "other-3")["sync"] == "ack"
        api.CreateStream(name="later", subject="later")
        assert shown(api, "later")["sync"] == "always"


def newest_snapshot(broker: BrokerProcess) -> int:
    """The index of the Raft log up to which a snapshot holds everything."""
    numbers = [path.name.split("-")[1:] for path in (broker.data / "raft").glob("snapshot-*")]
    return max((max(int(part) for part in parts if part.isdigit()) for parts in numbers), default=0)


# ── what they do ─────────────────────────────────────────────────────────────────────────────────


def syncs(broker: BrokerProcess) -> float:
    """Files that were forced to the disk so far."""
    return scrape(broker).value("bascule_log_sync_seconds")


@pytest.mark.parametrize(
    ("sync", "policy", "waits"),
    [
        ("always", pb.LEADER, True),
        ("always", pb.ALL, True),
        ("ack", pb.LEADER, False),
        ("ack", pb.ALL, True),
        ("interval", pb.LEADER, False),
        ("interval", pb.ALL, False),
    ],
)
def test_acks_wait_for_the_disk_as_the_stream_says(
    start_broker: StartBroker, sync: str, policy: int, waits: bool
) -> None:
    broker = start_broker({"http.listen": "127.0.0.1:0", "streams.sync": "ack" if sync != "ack" else "always"})
    with closing(broker.api()) as api:
        api.CreateStream(name="s", subject="s", sync=sync, syncInterval=HOUR_MS)
        api.publish("s", b"first", ackPolicy=policy)
        before = syncs(broker)
        for number in range(20):
            assert api.publish("s", b"x", ackPolicy=policy).offset == number + 1
        assert syncs(broker) - before >= 20 if waits else syncs(broker) == before
        assert len(api.read("s")) == 21


def test_each_stream_is_synced_at_its_own_interval(start_broker: StartBroker) -> None:
    broker = start_broker({"http.listen": "127.0.0.1:0"})
    with closing(broker.api()) as api:
        api.CreateStream(name="seldom", subject="seldom", sync="interval", syncInterval=HOUR_MS)
        api.CreateStream(name="often", subject="often", sync="interval", syncInterval=20)
        api.publish("seldom", b"x")
        time.sleep(1.5)  # longer than the server's interval
        before = syncs(broker)
        assert before == 0
        for _ in range(3):
            api.publish("often", b"x")
            eventually(lambda before=before: syncs(broker) > before, "it is synced without anything that waits")  # type: ignore[misc]
            before = syncs(broker)


def log_bytes(broker: BrokerProcess, stream: str) -> bytes:
    return b"".join(path.read_bytes() for path in sorted((broker.data / "streams" / stream / "0").glob("*.log")))


def test_a_compressed_stream_is_compressed_on_disk(start_broker: StartBroker) -> None:
    broker = start_broker()
    text = b"the same words again and again; " * 1000
    api = broker.api()
    api.CreateStream(name="small", subject="small", compression="zstd")
    api.CreateStream(name="large", subject="large", compression="none")
    for round_number in range(2):
        for name in ("small", "large"):
            for _ in range(5):
                api.publish(name, text, key=b"k", ackPolicy=pb.ALL)
            assert [message.value for message in api.read(name)] == [text] * 5 * (round_number + 1)
        assert len(log_bytes(broker, "large")) > 150_000 * (round_number + 1)
        assert len(log_bytes(broker, "small")) < 10_000 * (round_number + 1)
        api.close()
        broker.restart()
        api = broker.api()
    api.close()


COMPACTED: dict[str, Any] = {"compactEnabled": True, "cleanerInterval": 50, "segmentMaxBytes": 300}


def test_compaction_leaves_messages_for_the_lag_and_tombstones_for_their_retention(api: Api) -> None:
    names = {}
    for kind, settings in {
        "now": {"compactMinLag": 0, "compactTombstoneRetention": 0},
        "lagging": {"compactMinLag": HOUR_MS},
        "remembering": {"compactMinLag": 0, "compactTombstoneRetention": HOUR_MS},
    }.items():
        names[kind] = unique_name(kind)
        api.CreateStream(name=names[kind], subject=names[kind], **COMPACTED, **settings)
        for number in range(20):
            api.publish(names[kind], b"%d" % number, key=b"same")
        api.publish(names[kind], b"", key=b"same", headers={"bascule-tombstone": b"1"})
        for number in range(20):
            api.publish(names[kind], b"%d" % number, key=b"other")

    def left(kind: str, key: bytes) -> list[bytes]:
        return [message.value for message in api.read(names[kind]) if message.key == key]

    eventually(lambda: left("now", b"same") == [], "the deleted key is gone, and what deleted it")
    eventually(lambda: left("remembering", b"same") == [b""], "what deleted the key is there, and nothing else")
    assert left("lagging", b"same") == [b"%d" % number for number in range(20)] + [b""]
    assert len(left("lagging", b"other")) == 20


def test_every_replica_obeys(tmp_path: Path, nats_server: NatsServer) -> None:
    with Cluster(tmp_path / "obeying", nats=nats_server) as cluster:
        api = cluster.api(cluster.servers[0])
        api.CreateStream(name="s", subject="s", replicationFactor=3, **CHOSEN)
        for server in cluster.servers:
            eventually(lambda server=server: has_settings(cluster.api(server)), f"{server} knows the settings")  # type: ignore[misc]
        text = b"the same words again and again; " * 1000
        for _ in range(5):
            api.publish("s", text, ackPolicy=pb.ALL)
        for broker in cluster.brokers.values():
            eventually(lambda broker=broker: log_bytes(broker, "s"), "the replica has the messages")  # type: ignore[misc]
            assert len(log_bytes(broker, "s")) < 10_000


def has_settings(api: Api) -> bool:
    (found,) = api.FetchMetadata(streams=["s"], includeSettings=True).streamMetadata
    return found.HasField("settings") and shown(api, "s") == CHOSEN
