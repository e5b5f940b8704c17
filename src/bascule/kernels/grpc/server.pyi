"""gRPC calls over HTTP/2 as a server. server.pxd has the hooks and methods for kernels."""

from collections.abc import Callable
from typing import Any

from typing_extensions import Buffer

from bascule.kernels.grpc.messages import MessageStream
from bascule.kernels.http2.connection import ReceiveBuffer
from bascule.kernels.http2.sender import ConnectionLimits
from bascule.kernels.http2.server import Http2Server
from bascule.kernels.memory.account import MemoryAccount

class GrpcStream(MessageStream):
    """One call."""

    lasting: bool
    """Goes on until somebody ends it: a server that stops does not wait for it."""

    @property
    def connection(self) -> GrpcConnection | None:
        """None once closed."""
    @property
    def path(self) -> bytes: ...
    @property
    def metadata(self) -> list[tuple[bytes, bytes]]:
        """Without pseudo headers and grpc's own; -bin decoded. Not to be changed: calls share it."""
    @property
    def timeout(self) -> float:
        """Seconds, −1 when the client set none."""
    @property
    def deadline(self) -> float:
        """When that ends, on the monotonic clock; −1 without timeout."""
    @property
    def peer(self) -> Any:
        """The client of the call; None until it is known."""
    @property
    def finished(self) -> bool:
        """finish() was called, or the call is closed: nothing more is taken or given."""
    def admit(self, peer: Any) -> None:
        """The client is known: the call begins, with the messages that have arrived meanwhile. Does nothing when the call is over."""
    def send_headers(self) -> None:
        """Response headers now instead of with the first message."""
    def finish(self, status: int, message: str = "") -> None:
        """Trailers behind what is outgoing. Does nothing when the call is over."""

class GrpcConnection(Http2Server):
    """Calls of one client. `peer` has `common_name` and `address`."""

    identify: Callable[[GrpcStream], Any] | None
    """Returns the peer of a new call, or None when `admit` or `finish` will follow. None: every call has the connection's peer."""

    def __init__(
        self,
        limits: ConnectionLimits,
        receive_buffer: ReceiveBuffer | None = None,
        routes: dict[bytes, Callable[[], GrpcStream]] | None = None,
        *,
        memory: MemoryAccount | None = None,
    ) -> None: ...
    @property
    def routes(self) -> dict[bytes, Callable[[], GrpcStream]]: ...
    @property
    def timed_calls(self) -> int:
        """Open calls with a deadline."""
    @property
    def waiting_calls(self) -> int:
        """Open calls that will end by themselves."""
    def end_calls(self, status: int, message: str) -> None:
        """Finish all open calls."""
    def expire(self, now: float) -> None:
        """Finish calls whose deadline has passed."""

class CallStream(GrpcStream):
    """A call answered in Python: override what you need."""

    def opened(self) -> None: ...
    def received(self, message: bytes) -> None: ...
    def client_finished(self) -> None: ...
    def writable(self) -> None: ...
    def ended(self) -> None:
        """Exactly once, whatever ended it."""
    def send(self, message: Buffer) -> None: ...
    @property
    def room_bytes(self) -> int:
        """How much may sensibly be sent now; after a 0 writable() will be called."""

class UnaryStream(GrpcStream):
    """One message in, one out."""

    task: Any
    """What works on the answer: its cancel() is called when the call ends before that."""

    def __init__(self, handler: Callable[[UnaryStream, bytes], Any]) -> None: ...
    @property
    def handler(self) -> Callable[[UnaryStream, bytes], Any] | None: ...
    def reply(self, message: Buffer) -> None:
        """The answer, and status OK."""
