"""gRPC calls over HTTP/2 as a client. client.pxd has the hooks and methods for kernels."""

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from typing_extensions import Buffer

from bascule.kernels.grpc.messages import MessageStream
from bascule.kernels.http2.connection import Http2Connection, ReceiveBuffer
from bascule.kernels.http2.sender import ConnectionLimits

_Metadata: TypeAlias = Iterable[tuple[str | bytes, str | bytes]]

class ClientStream(MessageStream):
    """One call."""

    @property
    def connection(self) -> ClientConnection | None:
        """None before it is made and once it is closed."""
    @property
    def path(self) -> bytes: ...
    @property
    def timeout(self) -> float:
        """Seconds, −1 without."""
    @property
    def deadline(self) -> float:
        """When that ends, on the monotonic clock; −1 without timeout."""
    @property
    def status(self) -> int:
        """−1 until finished."""
    @property
    def status_text(self) -> str: ...
    @property
    def unprocessed(self) -> bool:
        """Finished, and the server has surely not looked at the call: safe to be made again."""
    @property
    def sending_closed(self) -> bool:
        """half_close() was called."""
    @property
    def received(self) -> int:
        """Messages."""
    @property
    def headers(self) -> list[tuple[bytes, bytes]] | None:
        """_Metadata of the response; None until it is there."""
    @property
    def trailers(self) -> list[tuple[bytes, bytes]] | None:
        """The same of its trailers."""
    @property
    def room_bytes(self) -> int:
        """How much may sensibly be sent now; after a 0 on_room comes."""
    def send(self, message: Buffer) -> None:
        """One message; goes nowhere before the call is made and after half_close() or its end."""
    def half_close(self) -> None:
        """No more messages of ours."""
    def cancel(self) -> None:
        """The call ends with CANCELLED, at once; the server is told."""

class ClientConnection(Http2Connection):
    """Calls to one server, without IO."""

    def __init__(
        self,
        limits: ConnectionLimits,
        receive_buffer: ReceiveBuffer | None = None,
        *,
        authority: bytes = b"localhost",
        scheme: bytes = b"http",
        agent: bytes = b"bascule",
        frame_bytes_max: int = 65536,
    ) -> None: ...
    @property
    def authority(self) -> bytes: ...
    @property
    def scheme(self) -> bytes: ...
    @property
    def peer_streams_max(self) -> int:
        """Calls at the same time that the server takes; more wait for their turn."""
    @property
    def goaway_code(self) -> int: ...
    @property
    def goaway_text(self) -> str: ...
    @property
    def pings_sent(self) -> int: ...
    @property
    def earliest_deadline(self) -> float:
        """No call's deadline is earlier; −1 when none has one."""
    @property
    def open_calls(self) -> int:
        """In progress or waiting for their turn."""
    @property
    def waiting_calls(self) -> int: ...
    def open(self, stream: ClientStream, path: bytes, metadata: _Metadata = (), timeout: float = -1) -> None:
        """Make a call. One that cannot be made ends at once with UNAVAILABLE; ValueError for what no call can have."""
    def ping(self) -> None: ...
    def expire(self, now: float) -> float:
        """End calls whose deadline has passed; returns `earliest_deadline`."""
    def lost(self, reason: str = "") -> None:
        """The transport is gone: calls end with UNAVAILABLE."""
    def close(self, text: str = "the connection was closed by its owner") -> None:
        """Calls end with CANCELLED; it is `closing` afterwards."""

class UnaryCall(ClientStream):
    """One message out, one in."""

    def __init__(self, handler: Callable[[UnaryCall], Any]) -> None: ...
    @property
    def handler(self) -> Callable[[UnaryCall], Any] | None:
        """Called when the call is finished."""
    @property
    def reply(self) -> bytes | None:
        """None unless the status is OK."""
