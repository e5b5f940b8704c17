"""An attacker with full access to NATS against three brokers under load: nothing acked is lost, no broker stops, no forgery counts."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import pytest

from bascule.log.disk.operations import PosixDisk
from bascule.metadata.core.model.ops import DeleteStream, encode_op
from bascule.net.nats.envelope import MessageType, encode, pack_message
from bascule.net.nats.seal import BOOT_BYTES
from bascule.net.nats.subjects import ControlSubjects
from bascule.partition.core import codec
from bascule.partition.core.messages import Fetch, FetchAnswer, Message, Notice, Verdict
from bascule.proto.api_pb2 import ActivityStreamEvent
from bascule.proto.api_pb2 import Message as StreamMessage
from bascule.proto.extensions_pb2 import DrainRequest, ForwardedCall, RemoveServerRequest
from bascule.proto.internal_pb2 import Cursor, PropagatedRequest, RaftJoinRequest, ServerInfoResponse
from bascule.raft.core.model.message_codec import encode_message
from bascule.raft.core.model.messages import Heartbeat, TimeoutNow, VoteRequest
from bascule.raft.disk.superblock import read_superblock
from tests.chaos.cluster.cluster_history import PartitionHistory
from tests.chaos.cluster.cluster_load import ClusterLoad, Pace
from tests.chaos.cluster.cluster_verdict import judge
from tests.hostile.nats.attacker import Attacker
from tests.support.api_client import Status
from tests.support.api_client import refused as refused_call
from tests.support.broker_fixtures import unique_name
from tests.support.cluster import ASK_SECONDS, RECOVERY_SECONDS, Cluster
from tests.support.monitoring import scrape
from tests.support.waiting import eventually

PACE: Final = Pace(windowed=150, unary=30, ack_seconds=10.0, call_seconds=10.0)
ATTACK_SECONDS: Final = 5.0
SERVERS: Final = ("a", "b", "c")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("hostile")
    config = {
        "cluster.secret": "a secret that the attacker does not know",
        "cursors.stream.partitions": 1,
        "activity.stream.enabled": True,
    }
    with Cluster(directory, config=config) as found:
        found.create_stream("orders", subject=f"{directory.name}-orders")
        yield found


@pytest.fixture
def attacker(cluster: Cluster) -> Iterator[Attacker]:
    found = Attacker(cluster.nats[0].url, cluster.namespace)
    yield found
    found.close()
    for name, broker in cluster.brokers.items():
        assert broker.is_running, f"{name} did not survive the attack:\n{broker.tail()}"
        assert "Traceback" not in broker.said(), broker.tail()


@pytest.fixture
def subjects(cluster: Cluster) -> ControlSubjects:
    return ControlSubjects(cluster.namespace)


@contextmanager
def load_on(cluster: Cluster, hint: str) -> Iterator[ClusterLoad]:
    """A stream under load; in the end every acked message is looked up on every replica, and no other message may be there."""
    history = PartitionHistory(unique_name(hint))
    cluster.create_stream(history.stream)
    load = ClusterLoad(cluster, [history], PACE)
    load.start()
    try:
        load.wait_for_progress(8)
        yield load
        load.wait_for_progress(8)
        verdict = judge(cluster, load)
    finally:
        load.abort()
    assert not verdict.violations, "\n".join(verdict.violations)


def refused(cluster: Cluster) -> float:
    """Internal messages that the brokers ignored."""
    return sum(
        sum(scrape(broker).find("bascule_seal_messages_refused_total").values()) for broker in cluster.brokers.values()
    )


def publish(cluster: Cluster) -> None:
    for server in SERVERS:
        cluster.api(server).Publish(stream="orders", value=b"honest", ackPolicy=1, timeout=60)


@contextmanager
def ignored(cluster: Cluster, attacker: Attacker) -> Iterator[None]:
    """Every forgery of the block is counted as ignored, and the cluster still works."""
    before, sent = refused(cluster), attacker.sent
    yield
    forged = attacker.sent - sent
    eventually(lambda: refused(cluster) >= before + forged, f"{forged} forgeries are ignored")
    publish(cluster)


# ── the attacks, one by one ──────────────────────────────────────────────────────────────────────


def test_streams_cannot_be_deleted(cluster: Cluster, attacker: Attacker, subjects: ControlSubjects) -> None:
    op = PropagatedRequest(op=encode_op(DeleteStream("orders")))
    with ignored(cluster, attacker):
        attacker.forge(
            subjects.propagate, pack_message(MessageType.PROPAGATED_REQUEST, op), sender="a", reply="attacker.inbox"
        )


def test_brokers_cannot_be_stopped(cluster: Cluster, attacker: Attacker, subjects: ControlSubjects) -> None:
    calls = [
        ForwardedCall(method="Drain", request=DrainRequest().SerializeToString(), timeout_ms=5000),
        ForwardedCall(method="RemoveServer", request=RemoveServerRequest().SerializeToString(), timeout_ms=5000),
    ]
    with ignored(cluster, attacker):
        for server in SERVERS:
            for call in calls:
                data = pack_message(MessageType.PROPAGATED_REQUEST, call)
                attacker.forge(subjects.operations(server), data, sender="b", reply="attacker.inbox")


def test_a_stranger_cannot_join(cluster: Cluster, attacker: Attacker, subjects: ControlSubjects) -> None:
    request = pack_message(MessageType.RAFT_JOIN_REQUEST, RaftJoinRequest(node_id="mallory"))
    attacker.subscribe("attacker.inbox")
    with ignored(cluster, attacker):
        for _ in range(3):
            attacker.forge(subjects.join, request, sender="mallory", reply="attacker.inbox")
    assert attacker.heard(0.2) == []
    names = {one.id for one in cluster.api("a").FetchMetadata(timeout=ASK_SECONDS).brokers}
    assert names == set(SERVERS)


def test_no_raft_message_can_be_forged(cluster: Cluster, attacker: Attacker, subjects: ControlSubjects) -> None:
    """In the current term, which stopped a leader, and with the last term of all, which no election could exceed."""
    cluster_id = read_superblock(PosixDisk(), str(cluster.brokers["a"].data / "raft")).cluster_id
    with ignored(cluster, attacker):
        for server in SERVERS:
            sender = "b" if server == "a" else "a"
            for term in (*range(1, 12), (1 << 63) - 1, (1 << 64) - 1):
                for message in (
                    Heartbeat(sender, server, term, 1 << 40, 0),
                    TimeoutNow(sender, server, term),
                    VoteRequest(sender, server, term, 1 << 40, max(1, term - 1), False, True),
                ):
                    attacker.forge(subjects.raft(server), encode_message(message, cluster_id), sender=sender)


def test_no_replication_message_can_be_forged(cluster: Cluster, attacker: Attacker, subjects: ControlSubjects) -> None:
    view = cluster.view("orders")
    assert view is not None
    far = 1 << 40
    messages: list[tuple[MessageType, Message, bytes]] = [
        (MessageType.REPLICATION_RESPONSE, FetchAnswer(epoch, far, Verdict.OK, far, 0, far), b"") for epoch in range(10)
    ]
    messages += [(MessageType.PARTITION_NOTIFICATION, Notice(epoch, far, True), b"") for epoch in range(10)]
    messages += [(MessageType.REPLICATION_REQUEST, Fetch(epoch, far, far, far, far), b"") for epoch in range(10)]
    with ignored(cluster, attacker):
        for server in SERVERS:
            for kind, message, _ in messages:
                is_request = kind is MessageType.REPLICATION_REQUEST
                place = subjects.replication_leader if is_request else subjects.replication_follower
                for sender in sorted(view.replicas - {server}):
                    for stream_id in range(1, 8):
                        entry = codec.encode_entry((stream_id, 0), message)
                        data = encode(kind, codec.encode_head(sender) + entry)
                        attacker.forge(place(server), data)
                    attacker.forge(place(server), data, sender=sender, purpose="replication")
    assert cluster.view("orders") == view


def test_no_server_address_can_be_forged(cluster: Cluster, attacker: Attacker, subjects: ControlSubjects) -> None:
    def addresses() -> set[tuple[str, str, int]]:
        return {(one.id, one.host, one.port) for one in cluster.api("a").FetchMetadata(timeout=ASK_SECONDS).brokers}

    before = addresses()
    with ignored(cluster, attacker):
        for server in SERVERS:
            info = ServerInfoResponse(id=server, host="mallory.example", port=1)
            data = pack_message(MessageType.SERVER_INFO_RESPONSE, info)
            attacker.forge(subjects.info, data, sender=server)
            attacker.forge(subjects.info_inbox("a"), data, sender=server)
    assert addresses() == before


def test_a_broker_does_not_give_way_to_a_forged_seed(
    cluster: Cluster, attacker: Attacker, subjects: ControlSubjects
) -> None:
    attacker.forge(subjects.bootstrap, b"mallory other 1000 1000000", sender="a")
    publish(cluster)
    assert cluster.well == [*SERVERS]


# ── records of internal streams ──────────────────────────────────────────────────────────────────


def set_cursor(cluster: Cluster, cursor_id: str, offset: int, *, through: str = "a") -> None:
    api = cluster.api(through)
    api.SetCursor(stream="orders", partition=0, cursorId=cursor_id, offset=offset, timeout=RECOVERY_SECONDS)


def cursors(cluster: Cluster, cursor_id: str) -> set[int]:
    """The cursor, as every server returns it."""
    return {
        cluster.api(server)
        .FetchCursor(stream="orders", partition=0, cursorId=cursor_id, timeout=RECOVERY_SECONDS)
        .offset
        for server in cluster.well
    }


def has_events(cluster: Cluster) -> bool:
    leader = cluster.api(cluster.leader_of("__activity"))
    return bool(
        leader.FetchPartitionMetadata(stream="__activity", partition=0, timeout=ASK_SECONDS).metadata.highWatermark >= 0
    )


def test_no_record_of_an_internal_stream_can_be_forged(cluster: Cluster, attacker: Attacker) -> None:
    set_cursor(cluster, "forged", 7)
    eventually(lambda: has_events(cluster), "the first event is stored")
    value = Cursor(stream="orders", partition=0, cursor_id="forged", offset=1).SerializeToString()
    cursor = StreamMessage(stream="__cursors", key=b"forged,orders,0", value=value)
    event = ActivityStreamEvent(id=1 << 40, op="DELETE_STREAM", deleteStreamOp={"stream": "orders"})
    with ignored(cluster, attacker):
        for server in SERVERS:
            for subject, message in (
                ("cursors", cursor),
                ("activity", StreamMessage(stream="__activity", value=event.SerializeToString())),
            ):
                envelope = pack_message(MessageType.PUBLISH, message)
                attacker.forge(f"{cluster.namespace}.{subject}", envelope, sender=server, purpose="internal")
    assert cursors(cluster, "forged") == {7}
    leader = cluster.leader_of("__activity")
    genuine = [one.value for one in cluster.api(leader).read("__activity")]
    assert ActivityStreamEvent.FromString(genuine[0]).createStreamOp.stream == "__activity"
    assert event.SerializeToString() not in genuine


def test_a_recorded_seal_fits_no_other_message(cluster: Cluster, attacker: Attacker) -> None:
    """The sender and its boot are genuine, the counter is new, and the message is another one."""
    attacker.subscribe(f"{cluster.namespace}.cursors")
    set_cursor(cluster, "changed", 5)
    recorded = attacker.next_heard()
    counter_at = 4 + recorded.payload[3] + BOOT_BYTES
    front, rest = recorded.payload[:counter_at], recorded.payload[counter_at + 8 :]
    changed = rest.replace(b"\x20\x05", b"\x20\x01")  # field 4 of Cursor, its offset
    assert changed != rest
    for number in range(1, 60):
        counter = int.from_bytes(recorded.payload[counter_at : counter_at + 8], "big") + number
        attacker.forge(recorded.subject, front + counter.to_bytes(8, "big") + changed)
    set_cursor(cluster, "after", 1)
    assert cursors(cluster, "changed") == {5}


def test_no_client_publishes_to_an_internal_stream(cluster: Cluster) -> None:
    with refused_call(Status.INVALID_ARGUMENT, "only brokers publish to internal streams"):
        cluster.api("b").Publish(stream="__cursors", key=b"k,orders,0", value=b"", ackPolicy=1, timeout=60)


@pytest.mark.parametrize("leader_changes", [False, True])
def test_a_recorded_cursor_is_not_set_again(cluster: Cluster, attacker: Attacker, leader_changes: bool) -> None:
    """Not even by the next leader, which has not received the recorded message."""
    leader = cluster.leader_of("__cursors")
    front = cluster.followers_of("__cursors")[0]
    attacker.subscribe(f"{cluster.namespace}.cursors")
    set_cursor(cluster, "recorded", 5, through=front)
    recorded = attacker.next_heard()
    set_cursor(cluster, "recorded", 9, through=front)
    if leader_changes:
        cluster.kill(leader)
        eventually(lambda: cluster.leader_of("__cursors") != leader, "another server leads the cursors")
    attacker.forge(recorded.subject, recorded.payload)
    set_cursor(cluster, "after", 1, through=front)
    assert cursors(cluster, "recorded") == {9}
    if leader_changes:
        cluster.restart(leader)
        cluster.wait_until_in_sync("__cursors")


# ── all at once, under load ──────────────────────────────────────────────────────────────────────


def assault(cluster: Cluster, attacker: Attacker, seconds: float) -> None:
    """Replays, reorders, changes and floods; meanwhile brokers restart, which know nothing of what was sent before."""
    with load_on(cluster, "assault") as load, attacker.at_work():
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            load.wait_for_progress(20)
            victim = cluster.leader_of(load.histories[0].stream)
            cluster.kill(victim)
            cluster.restart(victim)
            load.wait_for_progress(20)
            cluster.wait_until_in_sync(load.histories[0].stream)
    assert attacker.sent > 100


def test_an_attacker_under_load_loses_and_forges_nothing(cluster: Cluster, attacker: Attacker) -> None:
    before = refused(cluster)
    with load_on(cluster, "flood") as load, attacker.at_work():
        deadline = time.monotonic() + ATTACK_SECONDS
        while time.monotonic() < deadline:
            load.wait_for_progress(20)
    assert refused(cluster) > before


def test_a_broker_that_restarts_under_attack_takes_nothing_from_before(cluster: Cluster, attacker: Attacker) -> None:
    assault(cluster, attacker, ATTACK_SECONDS)


@pytest.mark.soak
def test_an_attacker_achieves_nothing_in_a_long_time(cluster: Cluster, soak_seconds: float) -> None:
    attacker = Attacker(cluster.nats[0].url, cluster.namespace, time.time_ns())
    try:
        assault(cluster, attacker, soak_seconds)
    finally:
        attacker.close()
