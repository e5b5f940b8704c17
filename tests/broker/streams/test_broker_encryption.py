"""Streams whose values are encrypted on disk."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest

from tests.support.api_client import Api, Status, refused
from tests.support.broker_fixtures import MakeStream, StartBroker
from tests.support.broker_process import BrokerProcess

KEY_16 = "0123456789abcdef"
KEY_32 = KEY_16 * 2
SECRET = b"a value that nobody may find on the disk"


def on_disk(broker: BrokerProcess, needle: bytes) -> bool:
    for folder, _, names in os.walk(broker.data):
        for name in names:
            with contextlib.suppress(FileNotFoundError):  # a broker that runs takes files away
                if needle in Path(folder, name).read_bytes():
                    return True
    return False


@pytest.mark.parametrize("variable", ["LIFTBRIDGE_ENCRYPTION_KEY", "BASCULE_ENCRYPTION_KEY"])
@pytest.mark.parametrize("key", [KEY_16, KEY_32])
def test_encrypted_and_clear_streams_live_side_by_side(start_broker: StartBroker, key: str, variable: str) -> None:
    broker = start_broker(env={variable: key})
    api = broker.api()
    api.CreateStream(name="secret", subject="secret", encryption=True)
    api.CreateStream(name="clear", subject="clear", encryption=False)
    for number in range(3):
        api.publish("secret", SECRET + b"%d" % number, key=b"a clear key", headers={"h": b"a clear header"})
        api.publish("clear", b"a clear value")
    found = api.read("secret")
    assert [message.value for message in found] == [SECRET + b"%d" % number for number in range(3)]
    assert found[0].key == b"a clear key"
    assert found[0].headers["h"] == b"a clear header"
    assert [message.value for message in api.read("clear")] == [b"a clear value"] * 3
    assert not on_disk(broker, SECRET)
    assert on_disk(broker, b"a clear value")
    api.close()


def test_encrypted_values_are_readable_after_a_kill(start_broker: StartBroker) -> None:
    broker = start_broker(env={"LIFTBRIDGE_ENCRYPTION_KEY": KEY_32})
    api = broker.api()
    api.CreateStream(name="secret", subject="secret", encryption=True)
    session = api.publish_async()
    for number in range(100):
        session.send("secret", SECRET + b"%d" % number)
    session.take(100)
    session.finish()
    api.close()
    broker.restart()
    api = broker.api()
    assert [message.value for message in api.read("secret")] == [SECRET + b"%d" % number for number in range(100)]
    assert api.publish("secret", b"more").offset == 100
    api.close()


@pytest.mark.parametrize("key", [None, "", "short", "x" * 17, "x" * 24, "x" * 33])
def test_a_bad_key_is_told_when_an_encrypted_stream_is_created(start_broker: StartBroker, key: str | None) -> None:
    broker = start_broker(env={} if key is None else {"LIFTBRIDGE_ENCRYPTION_KEY": key})
    api = broker.api()
    with refused(Status.FAILED_PRECONDITION, "invalid AES key size"):
        api.CreateStream(name="secret", subject="secret", encryption=True)
    api.CreateStream(name="secret", subject="secret")
    assert api.publish("secret", b"x").offset == 0
    api.close()


def test_the_wrong_key_hides_the_values_and_does_not_hurt_the_rest(start_broker: StartBroker) -> None:
    broker = start_broker(env={"LIFTBRIDGE_ENCRYPTION_KEY": KEY_32})
    api = broker.api()
    api.CreateStream(name="secret", subject="secret", encryption=True)
    api.CreateStream(name="clear", subject="clear")
    api.publish("secret", SECRET)
    api.publish("clear", b"x")
    api.close()
    broker.kill()
    broker.env["LIFTBRIDGE_ENCRYPTION_KEY"] = "f" * 32
    broker.start()
    api = broker.api()
    subscription = api.open_subscription("secret")
    values = [message.value for message in subscription.rest()]
    assert SECRET not in values
    assert subscription.end()[0] is Status.UNKNOWN, subscription.end()
    assert [message.value for message in api.read("clear")] == [b"x"]
    api.close()


def test_the_servers_default_is_applied(start_broker: StartBroker) -> None:
    broker = start_broker({"streams.encryption": True}, env={"LIFTBRIDGE_ENCRYPTION_KEY": KEY_32})
    api = broker.api()
    api.CreateStream(name="secret", subject="secret")
    api.publish("secret", SECRET)
    assert [message.value for message in api.read("secret")] == [SECRET]
    assert not on_disk(broker, SECRET)
    api.close()


def test_without_the_flag_values_are_clear(api: Api, broker: BrokerProcess, make_stream: MakeStream) -> None:
    stream = make_stream()
    api.publish(stream.name, SECRET + b" that anybody may find")
    assert on_disk(broker, SECRET + b" that anybody may find")
