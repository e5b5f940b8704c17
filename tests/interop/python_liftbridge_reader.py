"""Run by the Python that has python-liftbridge 0.0.7: reads a stream for ever and prints the offset and value of each message.

The client knows one broker and looks up no leaders: whoever uses it with a cluster asks one broker after the other.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
import time
from importlib import import_module
from typing import Any

lift: Any = import_module("python_liftbridge")


class Reader:
    def __init__(self, stream: str) -> None:
        self.stream = stream
        self.next_offset = 0

    def read(self, broker: str) -> None:
        """From one broker, until it ends."""
        client = lift.Lift(ip_address=broker, timeout=2)
        stream = lift.Stream(subject=self.stream, name=self.stream)
        first = self.next_offset
        position = stream.start_at_offset(first) if first else stream.start_at_earliest_received()
        try:
            messages = client.subscribe(position)
            next(messages)  # the handshake
            for message in messages:
                print(message.offset, message.value.decode(), flush=True)
                self.next_offset = message.offset + 1
        finally:
            client.close()


def main(stream: str, brokers: list[str]) -> None:
    reader = Reader(stream)
    for broker in itertools.cycle(brokers):
        with contextlib.suppress(Exception, SystemExit):
            reader.read(broker)
        time.sleep(0.1)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
