"""What a server sends to a client, at the edge of readable memory: a kernel that reads one byte too far dies here instead of guessing.

    python -X faulthandler -m tests.parity.guards.guard_client <seed> <inputs>

prints the seed of every input before it is used, so that the last line names the one that killed the process.
"""

from __future__ import annotations

import random
import sys
from array import array

from bascule.kernels.client import messages as client_messages
from bascule.kernels.window import window as publish_window
from tests.parity.client.test_client_messages_parity import any_run, fields_of
from tests.parity.client.test_publish_window_parity import any_response, response
from tests.parity.guards.guard_pages import ROOM, Guarded
from tests.parity.inputs.generate_messages import any_envelope, any_message
from tests.parity.twins import twin_client as twin
from tests.parity.twins.twin_messages import ACK_TYPE

WINDOW = publish_window.PublishWindow(4)
WINDOW.take()


def read_messages(guarded: Guarded, rng: random.Random) -> None:
    data = any_message(rng, 9)
    expected = twin.message(data)
    for place in (guarded.at_end, guarded.at_start):
        try:
            found: twin.Received | None = fields_of(client_messages.decode_message(place(data)))
        except ValueError:
            found = None
        assert found == expected


def read_runs(guarded: Guarded, rng: random.Random) -> None:
    run = [data for data in any_run(rng) if len(data) < ROOM]
    expected = [twin.message(data) for data in run]
    for place in (guarded.at_end, guarded.at_start):
        try:
            batch = client_messages.decode_batch(place(data) for data in run)
        except ValueError:
            assert None in expected
        else:
            assert [fields_of(message) for message in batch] == expected


def read_answers(guarded: Guarded, rng: random.Random) -> None:
    answer, ack = any_response(rng), any_envelope(rng, ACK_TYPE)
    for place in (guarded.at_end, guarded.at_start):
        assert response(place(answer)) == twin.publish_response(answer)
        WINDOW.resolve_envelope(place(ack))
        publish_window.decode_ack_envelope(place(ack))


def write_columns(guarded: Guarded, rng: random.Random) -> None:
    """What our own callers give is looked at too: positions within buffers that end where memory does."""
    sizes = [rng.choice((0, 1, 7, 300)) for _ in range(rng.randrange(8))]
    ends = array("q", (sum(sizes[: index + 1]) for index in range(len(sizes))))
    values = rng.randbytes(sum(sizes))
    if ends and rng.random() < 0.5:
        ends[rng.randrange(len(ends))] += rng.choice((-1, 1, 2**40, -(2**63) // 2))
    target = publish_window.PublishTarget("s")
    good = all(0 <= before <= end <= len(values) for before, end in zip([0, *ends], ends, strict=False))
    for place in (guarded.at_end, guarded.at_start):
        try:
            columns = publish_window.PublishColumns(target, place(values), ends)
        except ValueError:
            assert not good
        else:
            assert good
            assert len(columns) == len(ends)


def main(arguments: list[str]) -> None:
    guarded = Guarded()
    first, count = map(int, arguments)
    for seed in range(first, first + count):
        print(seed, flush=True)
        rng = random.Random(seed)
        read_messages(guarded, rng)
        read_runs(guarded, rng)
        read_answers(guarded, rng)
        write_columns(guarded, rng)


if __name__ == "__main__":
    main(sys.argv[1:])
