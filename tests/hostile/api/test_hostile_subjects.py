"""Subjects as a way into what belongs to the servers or to another client."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pytest

from bascule.config.stream import INTERVALS
from bascule.metadata.core.model.ops import BrokerPlace, ConfigValue, CreateStream, encode_op
from bascule.names import streams_overlap, subject_covers, subject_fault, subjects_overlap
from bascule.net.nats.envelope import MessageType, pack_message
from bascule.net.nats.subjects import ControlSubjects
from bascule.proto.internal_pb2 import PropagatedRequest
from tests.support.api_client import Api, Status, refused
from tests.support.broker_fixtures import MakeStream, StartBroker, unique_name
from tests.support.broker_process import BrokerProcess
from tests.support.guarded_broker import MODEL, PREFIX_MODEL, Policed
from tests.support.nats_client import NatsClient
from tests.support.waiting import eventually

NOT_AUTHORIZED: Final = "The client is not authorized to call"


def namespace_of(broker: BrokerProcess) -> str:
    return str(broker.config["clustering.namespace"])


# ── what belongs to the servers ──────────────────────────────────────────────────────────────────

RESERVED: Final = (
    "{ns}.control.bootstrap",
    "{ns}.raft.metadata.bootstrap",
    "{ns}.cursors",
    "{ns}.>",
    "{ns}.*",
    ">",
    "*.>",
    "*.*",
    "*.control.>",
    "*.raft.>",
    "*.raft.metadata.bootstrap",
    "*.*.metadata.>",
)


@pytest.mark.parametrize("pattern", RESERVED)
def test_no_stream_is_created_on_what_the_servers_use(broker: BrokerProcess, api: Api, pattern: str) -> None:
    name, subject = unique_name("reserved"), pattern.format(ns=namespace_of(broker))
    with refused(Status.INVALID_ARGUMENT, f"overlaps `{namespace_of(broker)}.>`"):
        api.CreateStream(name=name, subject=subject)
    assert api.stream(name).error != 0


def test_no_partition_has_a_subject_that_the_servers_use(broker: BrokerProcess, api: Api) -> None:
    with refused(Status.INVALID_ARGUMENT, "belongs to the servers"):
        api.CreateStream(name=unique_name("numbered"), subject=namespace_of(broker), partitions=2)


def test_a_bootstrap_message_through_the_api_does_not_stop_the_broker(start_broker: StartBroker) -> None:
    broker = start_broker(seed=True)
    api, bootstrap = broker.api(), f"{namespace_of(broker)}.control.bootstrap"
    api.CreateStream(name="s", subject="s")
    with NatsClient(broker.nats_url) as nats:
        nats.subscribe(f"{namespace_of(broker)}.control.bootstrap")
        for timeout in (None, 5.0):
            with refused(Status.INVALID_ARGUMENT, "belongs to the servers"):
                api.PublishToSubject(subject=bootstrap, value=b"another", timeout=timeout)
            with refused(Status.INVALID_ARGUMENT, "ackInbox is invalid"):
                api.Publish(stream="s", value=b"x", ackInbox=bootstrap, timeout=timeout)
            with refused(Status.INVALID_ARGUMENT, "ackInbox is invalid"):
                api.PublishToSubject(subject="s", value=b"x", ackInbox=bootstrap, timeout=timeout)
        api.publish("s", b"good")
        assert nats.pending() == []
    assert [message.value for message in api.read("s")] == [b"good"]
    assert broker.is_running
    api.close()


@pytest.mark.parametrize("subject", ["$SYS.REQ.SERVER.PING", "$JS.API.STREAM.DELETE.orders"])
def test_no_client_commands_the_nats_server(api: Api, subject: str) -> None:
    with refused(Status.INVALID_ARGUMENT, "belongs to nats-server"):
        api.PublishToSubject(subject=subject, value=b"", timeout=None)


# ── subjects that NATS refuses ───────────────────────────────────────────────────────────────────

FAULTY: Final = ("", "a.>.b", "a..b", ".a", "a.", "a b", "a\tb", "a\r\nPUB x 0", "x" * 1901, "a\u2028b", "a\x1b[2J")


@pytest.mark.parametrize("subject", FAULTY)
def test_what_nats_refuses_is_refused_with_the_reason(api: Api, make_stream: MakeStream, subject: str) -> None:
    with refused(Status.INVALID_ARGUMENT, "Subject is invalid: "):
        api.CreateStream(name=unique_name("faulty"), subject=subject)
    with refused(Status.INVALID_ARGUMENT, "subject is invalid: "):
        api.PublishToSubject(subject=subject, value=b"x", timeout=None)
    if subject:
        with refused(Status.INVALID_ARGUMENT, "ackInbox is invalid: "):
            api.Publish(stream=make_stream().name, value=b"x", ackInbox=subject)


@pytest.mark.parametrize("subject", ["a.*", "a.>", "*.b"])
def test_a_message_has_no_wildcard_in_its_subject(api: Api, subject: str) -> None:
    with refused(Status.INVALID_ARGUMENT, "wildcard"):
        api.PublishToSubject(subject=subject, value=b"x", timeout=None)


def test_every_partition_has_a_subject_that_nats_accepts(api: Api) -> None:
    name = unique_name("rest")
    with refused(Status.INVALID_ARGUMENT, "several partitions"):
        api.CreateStream(name=name, subject=f"{name}.>", partitions=2)
    with refused(Status.INVALID_ARGUMENT, "longer than"):
        api.CreateStream(name=name, subject="x" * 1899, partitions=11)
    api.CreateStream(name=name, subject=f"{name}.>")
    assert api.PublishToSubject(subject=f"{name}.a.b", value=b"x").ack.offset == 0


@pytest.mark.parametrize("setting", ["cleanerInterval", "autoPauseTime", "syncInterval"])
def test_an_interval_of_a_millisecond_is_raised_to_one_that_costs_little(api: Api, setting: str) -> None:
    name = unique_name("busy")
    api.CreateStream(name=name, subject=name, partitions=20, **{setting: 1})
    (found,) = api.FetchMetadata(streams=[name], includeSettings=True).streamMetadata
    assert getattr(found.settings, setting) >= 5


def test_intervals_of_an_older_stream_are_raised_when_it_starts(start_broker: StartBroker) -> None:
    """An older controller has created it, as here a message on NATS that no secret protects."""
    broker = start_broker({"clustering.server.id": "only"})
    config: dict[str, ConfigValue] = dict.fromkeys(INTERVALS, 1_000_000)
    op = CreateStream("busy", "busy", 3, 1, (BrokerPlace("only"),), 1, config=config)
    with closing(broker.api()) as api, NatsClient(broker.nats_url) as nats:
        request = pack_message(MessageType.PROPAGATED_REQUEST, PropagatedRequest(op=encode_op(op)))
        nats.publish(ControlSubjects(namespace_of(broker)).propagate, request, reply="answer")
        eventually(lambda: "busy" in {one.name for one in api.FetchMetadata().streamMetadata}, "the stream exists")
        (found,) = api.FetchMetadata(streams=["busy"], includeSettings=True).streamMetadata
        assert found.settings.cleanerInterval == 100
        assert found.settings.autoPauseTime == 100
        assert found.settings.syncInterval == 5
        assert found.settings.segmentMaxAge == 1000
        for partition in range(3):
            api.publish("busy", b"x", partition)
    for name in ("cleaner interval", "auto pause time", "sync interval", "segment max age"):
        assert broker.said().count(f"stream busy: its {name} of 1ms is too short") == 1


# ── the rules ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("a.b", "a.b", True),
        ("a.b", "a.c", False),
        ("a", "a.b", False),
        ("a.*", "*.b", True),
        ("a.>", "a", False),
        ("a.>", "*.b.c", True),
        ("*", "a.b", False),
        (">", "a", True),
        ("a.*.c", "a.b.>", True),
        ("a.*.c", "a.b.d", False),
    ],
)
def test_overlap(one: str, other: str, expected: bool) -> None:
    assert subjects_overlap(one, other) is subjects_overlap(other, one) is expected


@pytest.mark.parametrize(
    ("pattern", "subject", "expected"),
    [
        ("a.*", "a.b", True),
        ("a.*", "a.*", True),
        ("a.*", "a.>", False),
        ("a.*", "a.b.c", False),
        ("a.>", "a.b.c", True),
        ("a.>", "a.*.>", True),
        ("a.>", "a", False),
        (">", "a.>", True),
        ("a.b", "a.*", False),
        ("a.b", "a", False),
        ("*", ">", False),
    ],
)
def test_coverage(pattern: str, subject: str, expected: bool) -> None:
    assert subject_covers(pattern, subject) is expected


@pytest.mark.parametrize(
    ("one", "partitions", "other", "others", "expected"),
    [
        ("a", 1, "a.1", 1, False),
        ("a", 2, "a.1", 1, True),
        ("a", 2, "a.2", 1, False),
        ("a", 2, "a.eu", 1, False),
        ("a", 2, "a.*", 1, True),
        ("a", 2, "*.1", 1, True),
        ("a.*", 3, "a.eu.2", 1, True),
        ("a", 2, "b", 2, False),
        ("a", 2, "a.01", 1, False),
    ],
)
def test_the_partitions_of_streams_overlap(one: str, partitions: int, other: str, others: int, expected: bool) -> None:
    assert streams_overlap(one, partitions, other, others) is expected
    assert streams_overlap(other, others, one, partitions) is expected


def test_valid_subjects_are_valid() -> None:
    for subject in ("a", "a.b", "a.*.c", "a.>", ">", "*", "größe.€", "a*b.c>d", "x" * 1900):
        assert subject_fault(subject) is None, subject


# ── what belongs to another client ───────────────────────────────────────────────────────────────

OWNER: Final = ["admin, *, *"]
BOB: Final = [f"bob, bobs*, {action}" for action in ("CreateStream", "Publish", "Subscribe", "FetchPartitionMetadata")]
GRANTED: Final = [
    "alice, alices*, *",
    "alice, subject:shop.*.new, CreateStream",
    "alice, subject:shop.>, PublishToSubject",
]


@pytest.fixture(params=[False, True], ids=["without-subject-lines", "with-subject-lines"])
def policed(request: pytest.FixtureRequest, start_broker: StartBroker, tmp_path: Path) -> Iterator[Policed]:
    """Bob may do anything with streams whose names begin with `bobs`."""
    lines = OWNER + BOB + (GRANTED if request.param else [])
    guarded = Policed(start_broker, tmp_path / "policed", PREFIX_MODEL, lines)
    guarded.admin_api.CreateStream(name="orders", subject="orders.s", partitions=2)
    yield guarded
    guarded.admin_api.close()


@pytest.mark.parametrize("subject", ["orders.s", "orders.s.1", "orders.*", "orders.>", "*"])
def test_a_stream_of_ones_own_taps_no_other(policed: Policed, subject: str) -> None:
    bob = policed.api("bob")
    if subject == "*":  # reaches no partition of `orders`, but one of this stream
        policed.admin_api.CreateStream(name="plain", subject="plain")
    with refused(Status.PERMISSION_DENIED, f"{NOT_AUTHORIZED} CreateStream on resource subject:{subject}"):
        bob.CreateStream(name="bobs-tap", subject=subject)
    assert policed.admin_api.stream("bobs-tap").error != 0
    bob.close()


def test_a_partition_of_ones_own_taps_no_other(policed: Policed) -> None:
    bob = policed.api("bob")
    policed.admin_api.CreateStream(name="third", subject="bobs-new.2")
    with refused(Status.PERMISSION_DENIED, NOT_AUTHORIZED):
        bob.CreateStream(name="bobs-new", subject="bobs-new", partitions=3)
    bob.CreateStream(name="bobs-new", subject="bobs-new", partitions=2)
    bob.close()


@pytest.mark.parametrize("timeout", [None, 30.0])
def test_an_ack_inbox_writes_into_no_other_stream(policed: Policed, timeout: float | None) -> None:
    bob = policed.api("bob")
    bob.CreateStream(name="bobs", subject="bobs")
    with refused(Status.PERMISSION_DENIED, f"{NOT_AUTHORIZED} PublishToSubject on resource orders.s"):
        bob.Publish(stream="bobs", value=b"x", ackInbox="orders.s", timeout=timeout)
    with refused(Status.PERMISSION_DENIED, f"{NOT_AUTHORIZED} PublishToSubject on resource orders.s"):
        bob.PublishToSubject(subject="orders.s", value=b"x", timeout=timeout)
    assert bob.publish("bobs", b"allowed").offset == 0
    assert policed.admin_api.publish("orders", b"mine").offset == 0
    assert [message.value for message in policed.admin_api.read("orders")] == [b"mine"]
    bob.close()


def test_streams_of_ones_own_are_created_as_before(policed: Policed) -> None:
    bob = policed.api("bob")
    for name, subject in (("bobs-a", "bobs-a"), ("bobs-b", "bobs.>"), ("bobs-c", "bobs-a"), ("bobs-d", "bobs.*.x")):
        bob.CreateStream(name=name, subject=subject)
        assert bob.publish(name, b"x").offset >= 0 if ">" not in subject and "*" not in subject else True
    bob.close()


def test_lines_on_subjects_grant_what_they_cover(start_broker: StartBroker, tmp_path: Path) -> None:
    policed = Policed(start_broker, tmp_path / "policed", PREFIX_MODEL, OWNER + BOB + GRANTED)
    admin, alice, bob = policed.admin_api, policed.api("alice"), policed.api("bob")
    admin.CreateStream(name="orders", subject="shop.eu.new")
    alice.CreateStream(name="alices-tap", subject="shop.eu.new")
    alice.CreateStream(name="alices-all", subject="shop.*.new")
    assert alice.PublishToSubject(subject="shop.eu.new", value=b"x", ackInbox="shop.acks").ack.offset == 0
    for subject in ("shop.>", "shop.eu.old", "shop.eu", "other"):
        with refused(Status.PERMISSION_DENIED, f"{NOT_AUTHORIZED} CreateStream on resource subject:{subject}"):
            alice.CreateStream(name="alices-more", subject=subject)
    for subject in ("shop", "other"):
        with refused(Status.PERMISSION_DENIED, NOT_AUTHORIZED):
            alice.PublishToSubject(subject=subject, value=b"x")
    with refused(Status.PERMISSION_DENIED, NOT_AUTHORIZED):
        bob.CreateStream(name="bobs-new", subject="free.subject")
    for one in (alice, bob, admin):
        one.close()


def test_a_policy_for_liftbridge_still_creates_its_streams(start_broker: StartBroker, tmp_path: Path) -> None:
    lines = ["carol, carols, CreateStream", "carol, carols, Publish", "carol, inbox.carol, PublishToSubject"]
    policed = Policed(start_broker, tmp_path / "policed", MODEL, [*lines, "admin, *, FetchMetadata"])
    carol = policed.api("carol")
    carol.CreateStream(name="carols", subject="a.subject.that.no.stream.has", partitions=3)
    assert carol.publish("carols", b"x", ackInbox="inbox.carol").offset == 0
    assert carol.PublishToSubject(subject="inbox.carol", value=b"x", timeout=None).ack.offset == 0
    carol.close()


def test_a_faulty_line_on_a_subject_stops_the_start(start_broker: StartBroker, tmp_path: Path) -> None:
    broker: Any = None
    with pytest.raises(AssertionError, match="may only be its last part"):
        broker = Policed(start_broker, tmp_path / "policed", MODEL, ["bob, subject:a.>.b, CreateStream"])
    assert broker is None


def test_a_stream_that_is_named_like_a_subject_opens_no_subject(start_broker: StartBroker, tmp_path: Path) -> None:
    policed = Policed(start_broker, tmp_path / "policed", PREFIX_MODEL, [*OWNER, "sam, s*, *"])
    policed.admin_api.CreateStream(name="orders", subject="orders.s")
    sam = policed.api("sam")
    sam.CreateStream(name="subject:orders.s", subject="sam.own")
    with refused(Status.PERMISSION_DENIED, f"{NOT_AUTHORIZED} CreateStream on resource subject:orders.s"):
        sam.CreateStream(name="s-tap", subject="orders.s")
    sam.close()
    policed.admin_api.close()
