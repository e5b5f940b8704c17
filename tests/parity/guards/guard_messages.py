"""Messages that end where the readable memory ends: a kernel that reads one byte too far dies here instead of guessing.

    python -X faulthandler -m tests.parity.guards.guard_messages <seed> <inputs>

prints the seed of every input before it is used, so that the last line names the one that killed the process.
"""

from __future__ import annotations

import random
import sys

from bascule.kernels.calls import delivery
from bascule.kernels.ingest.sink import nats_headers
from tests.parity.calls.test_delivery_parity import EVERYTHING, deliver_all
from tests.parity.guards.guard_pages import ROOM, Guarded
from tests.parity.inputs.generate import any_bytes
from tests.parity.inputs.generate_messages import any_envelope, any_message
from tests.parity.twins import twin_ingest, twin_messages
from tests.support.kernels import message_objects as kernel


def read(guarded: Guarded, rng: random.Random) -> None:
    request, to_subject, envelope, ack = (
        any_message(rng, 5),
        any_message(rng, 4),
        any_envelope(rng),
        any_envelope(rng, twin_messages.ACK_TYPE),
    )
    block = b"NATS/1.0" + bytes(rng.choice(b"\r\n: \tab") for _ in range(rng.randrange(30)))
    for place in (guarded.at_end, guarded.at_start):
        assert kernel.parse_publish_request(place(request)) == twin_messages.publish_request(request)
        assert kernel.parse_publish_to_subject(place(to_subject)) == twin_messages.publish_to_subject(to_subject)
        assert kernel.parse_publish_envelope(place(envelope)) == twin_messages.publish_envelope(envelope)
        assert kernel.parse_ack_envelope(place(ack)) == twin_messages.ack_envelope(ack)
        assert nats_headers(place(block)) == twin_ingest.nats_headers(block)
        kernel.record_headers(place(envelope))
        kernel.publish_envelope(place(request), b"inbox")
        kernel.publish_envelope(place(to_subject), to_subject=True)


def deliver(guarded: Guarded, rng: random.Random) -> None:
    data = any_bytes(rng)
    if len(data) > ROOM:
        return
    expected = deliver_all(data, delivery.Cursor(), EVERYTHING, None)
    for place in (guarded.at_end, guarded.at_start):
        assert deliver_all(place(data), delivery.Cursor(), EVERYTHING, rng) == expected


def main(arguments: list[str]) -> None:
    guarded = Guarded()
    first, count = map(int, arguments)
    for seed in range(first, first + count):
        print(seed, flush=True)
        rng = random.Random(seed)
        read(guarded, rng)
        deliver(guarded, rng)


if __name__ == "__main__":
    main(sys.argv[1:])
