"""Kernel classes that tests and benchmarks subclass or read from Python."""

from typing_extensions import Buffer

from bascule.kernels.grpc.client import ClientStream
from bascule.kernels.headers.hpack import HpackDecoder
from bascule.kernels.headers.response_head import ResponseHead
from bascule.kernels.nats.protocol import MessageSink

class PyClientStream(ClientStream):
    """A call made in Python: override what you need."""

    def headers_received(self) -> None: ...
    def message(self, message: bytes) -> None: ...
    def messages_done(self) -> None:
        """After all messages of one read."""
    def writable(self) -> None: ...
    def ended(self, status: int, text: str) -> None:
        """Exactly once, and last."""

class CountingSink(MessageSink):
    """Counts the messages and drops them."""

    def __init__(self) -> None: ...
    @property
    def messages(self) -> int: ...
    @property
    def payload_bytes(self) -> int: ...

def read_response(decoder: HpackDecoder, block: Buffer) -> ResponseHead | None:
    """Return the response head of a header block, None if the block is no valid HPACK."""
