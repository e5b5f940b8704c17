"""The NATS client protocol over whole buffers: messages go to sinks, control lines to the shell. See protocol.pxd."""

from collections.abc import Callable
from typing import Final

from typing_extensions import Buffer

from bascule.kernels.wire.output import OutputBuffer

REASONS: Final[tuple[str, ...]]
"""What can be wrong with the bytes of a server."""

SUBJECT_BYTES_MAX: Final[int]
"""A subject and a reply of this size fit one line; nats-server ends the connection of who sends a longer one."""

Event = tuple[str, bytes]
"""`INFO`, `PONG`, `+OK` or `-ERR` with what stands behind it; `BROKEN` with one of `REASONS`, and then nothing follows."""

class MessageSink:
    """Where the messages of a subscription go. By itself it forgets them."""

class CallbackSink(MessageSink):
    """Calls `callback(subject, reply, headers, payload)` for each message, once the read that brought it is scanned.

    For what is rare: each message becomes Python objects. `headers` is the block as it came, None when there was none.
    """

    def __init__(self, callback: Callable[[bytes, bytes, bytes | None, bytes], object]) -> None: ...

class NatsReader:
    """One connection's bytes in. Not for two threads at once."""

    connected: bool
    """Logged in. Kernels that publish look at it: while it is not set, nothing may be written into `output`."""
    max_payload: int
    """The largest payload the server takes; it ends the connection of who sends more. 0 until it has told."""
    on_fault: Callable[[Exception], object] | None
    """Takes what a callback raised. Without it the exception leaves `received` and the messages behind it are lost."""

    def __init__(self, *, message_bytes_max: int, line_bytes_max: int, buffer_bytes_max: int = ...) -> None: ...
    @property
    def output(self) -> OutputBuffer:
        """What goes to the server. The reader itself writes PONG into it."""
    @property
    def messages(self) -> int:
        """How many were handed to sinks."""
    @property
    def message_bytes(self) -> int:
        """Their headers and payloads."""
    @property
    def unknown(self) -> int:
        """Messages of subscriptions that were detached, or never known."""
    @property
    def dropped(self) -> int:
        """Messages that a sink did not take."""
    @property
    def buffer_bytes(self) -> int: ...
    @property
    def waiting_bytes(self) -> int:
        """Received, but the end of the line or message is still missing."""
    def attach(self, sid: int, sink: MessageSink) -> None: ...
    def detach(self, sid: int) -> None:
        """Forget a subscription. What still comes for it is skipped."""
    def touched(self) -> list[MessageSink]:
        """The sinks that got messages since this was last asked, each once."""
    def get_buffer(self, hint: int = -1, /) -> memoryview:
        """Where the next bytes go. Good until the next call of `received` or `reset`."""
    def received(self, count: int) -> tuple[Event, ...]:
        """So many bytes were written into the buffer: hand on the messages, return the control lines."""
    def examine(self, data: Buffer) -> tuple[tuple[Event, ...], int]:
        """Scan bytes that lie elsewhere as if they were all that was received; what is complete is handed on, its size returned."""
    def reset(self) -> None:
        """Forget what was received and what was not sent: a new connection begins. Subscriptions stay."""

def publish(
    output: OutputBuffer, subject: Buffer, payload: Buffer, reply: Buffer = b"", headers: Buffer | None = None
) -> None:
    """Write a PUB or HPUB. ValueError for a subject that cannot stand in a line."""

def publish_many(output: OutputBuffer, subject: bytes, payload: bytes, count: int) -> None:
    """The same message many times over, to measure with."""
