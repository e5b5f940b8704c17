"""HTTP/2 (RFC 9113) without IO: bytes of the peer go in, frames come out in `output`."""

from typing import final

from typing_extensions import Buffer

from bascule.kernels.http2.sender import ConnectionLimits, Http2Sender

@final
class ReceiveBuffer:
    """Where sockets are read into. One serves all connections of a loop."""

    def __init__(self, size: int) -> None: ...
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    @property
    def size(self) -> int: ...

class Http2Connection(Http2Sender):
    """What both roles share. Never raises for what a peer does: its fault puts GOAWAY into `output` and sets `closing`."""

    def __init__(self, limits: ConnectionLimits, receive_buffer: ReceiveBuffer | None = None) -> None: ...
    @property
    def established(self) -> bool:
        """The peer has sent its SETTINGS, and a client its preface before them."""
    @property
    def peer_leaving(self) -> bool:
        """The peer has sent GOAWAY: no more streams are opened."""
    @property
    def pings_answered(self) -> int:
        """Of ours."""
    def get_buffer(self) -> ReceiveBuffer | None: ...
    def received(self, count: int) -> None:
        """So many bytes were read into the receive buffer."""
    @property
    def has_backlog(self) -> bool:
        """Frames of the last read wait for `go_on`: handling them all at once would take too long."""
    def go_on(self) -> None:
        """Handle frames of the backlog for one turn."""
    def feed(self, data: Buffer, now: float = -1) -> None:
        """The same for bytes that lie elsewhere, at a time that the caller chooses."""
