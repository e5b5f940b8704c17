"""Traffic of NATS that ends where the readable memory ends.

python -X faulthandler -m tests.parity.guards.guard_nats <seed> <inputs>
"""

from __future__ import annotations

import random
import sys

from bascule.kernels.nats.protocol import publish
from bascule.kernels.wire.output import OutputBuffer
from tests.parity.guards.guard_pages import ROOM, Guarded
from tests.parity.inputs.generate_nats import Pair, any_traffic
from tests.parity.twins import twin_nats


def read(guarded: Guarded, seed: int) -> None:
    data = any_traffic(random.Random(seed))[:ROOM]
    for place in (guarded.at_end, guarded.at_start):
        pair = Pair()
        events, scanned = pair.kernel.examine(place(data))
        pair.kernel_events += events
        pair.twin.feed(data)
        if not pair.twin.is_broken:
            assert scanned == len(data) - len(pair.twin.rest)
            pair.twin.rest = b""
        pair.agree()


def write(guarded: Guarded, others: Guarded, seed: int) -> None:
    rng = random.Random(seed)
    subject, payload = bytes(rng.choices(b"abc.*>", k=rng.randint(1, 40))), rng.randbytes(rng.choice((0, 1, 8, 500)))
    output = OutputBuffer()
    publish(output, guarded.at_end(subject), others.at_end(payload))
    publish(output, guarded.at_start(subject), others.at_start(payload))
    assert bytes(output) == twin_nats.publish_line(subject, payload, b"", None) * 2


def main(arguments: list[str]) -> None:
    guarded, others = Guarded(), Guarded()
    first, count = map(int, arguments)
    for seed in range(first, first + count):
        print(seed, flush=True)
        read(guarded, seed)
        write(guarded, others, seed)


if __name__ == "__main__":
    main(sys.argv[1:])
