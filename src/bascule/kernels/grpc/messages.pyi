"""Messages of gRPC in the DATA of a stream, whichever side of the call this is."""

from bascule.kernels.http2.connection import Http2Connection
from bascule.kernels.http2.sender import Http2Stream

class MessageStream(Http2Stream):
    """One side of a call."""

    @property
    def connection(self) -> Http2Connection | None:
        """None once closed."""
    @property
    def finished(self) -> bool:
        """Nothing more is taken from the peer."""
    def withhold(self, on: bool) -> None:
        """While on, the peer stops after its window."""
