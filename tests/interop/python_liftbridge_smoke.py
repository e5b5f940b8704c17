"""Run by the Python that has python-liftbridge 0.0.7: what its README shows, against the server at the given address."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

lift: Any = import_module("python_liftbridge")


def raises(error: Any, call: Any) -> bool:
    try:
        call()
    except error:
        return True
    return False


def main(address: str) -> None:
    client = lift.Lift(ip_address=address, timeout=60)
    stream = lift.Stream(subject="smoke.subject", name="smoke")
    client.create_stream(stream)
    assert raises(lift.ErrStreamExists, lambda: client.create_stream(stream))
    client.publish(lift.Message(value="none", stream="smoke"))
    client.publish(lift.Message(value="leader", stream="smoke", key="k").ack_policy_leader())
    client.publish(lift.Message(value="all", stream="smoke", correlation_id="c").ack_policy_all())
    client.publish_to_subject(lift.Message(value="subject", subject="smoke.subject"))
    values = []
    for message in client.subscribe(stream.start_at_earliest_received()):
        values.append(message.value)
        if len(values) == 5:
            break
    assert values == [b"", b"none", b"leader", b"all", b"subject"], values  # it shows the handshake
    again = client.subscribe(lift.Stream(subject="smoke.subject", name="smoke").start_at_offset(2))
    assert [next(again).offset for _ in range(3)] == [0, 2, 3]
    unknown = lift.Stream(subject="x", name="never-was").start_at_earliest_received()
    assert raises(lift.ErrNoSuchStream, lambda: list(client.subscribe(unknown)))
    metadata = client.fetch_metadata()
    assert [f"{one.host}:{one.port}" for one in metadata.brokers] == [address], metadata
    assert "smoke" in [one.name for one in metadata.metadata]
    client.close()
    print("smoke passed")


if __name__ == "__main__":
    main(sys.argv[1])
