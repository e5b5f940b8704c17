"""Publishing through the API: requests become PUB lines, acks become responses."""

from collections.abc import Callable
from typing import Any, Protocol, final

from bascule.kernels.calls.targets import Targets
from bascule.kernels.grpc.server import GrpcStream
from bascule.kernels.ingest.acks import AckReceiver
from bascule.kernels.nats.protocol import NatsReader

class _Timer(Protocol):
    def cancel(self) -> None: ...

class Shell(Protocol):
    """What takes time, or needs the event loop."""

    def schedule_flush(self) -> None: ...
    def watch_output(self) -> None:
        """Call `PublishGate.drained()` once NATS has taken most of what is published."""
    def resume(self, stream: PublishAsyncStream | PublishStream, name: str, partition: int) -> None:
        """Resume the partition, then call `stream.resumed(None)`, or with the text of what went wrong."""
    def half_closed(self, stream: PublishAsyncStream) -> None:
        """Call `stream.give_up()` when acks have had enough time."""
    def call_later(self, seconds: float, callback: Callable[[], None]) -> _Timer: ...
    def refusal(self, peer: Any, stream: str) -> tuple[int, str] | None:
        """Status and text if the client may not publish to this stream; None if it may."""
    def subject_refusal(self, peer: Any, subject: bytes, field: str) -> tuple[int, str] | None:
        """Status and text if the client may not publish to this subject; None if it may. `field` is the request's."""

@final
class PublishGate:
    """What all publishing calls of a broker share."""

    checks_authorization: bool
    @property
    def receivers(self) -> dict[int, AckReceiver]: ...
    @property
    def published(self) -> int:
        """Messages handed to NATS so far."""
    @property
    def sessions(self) -> list[PublishAsyncStream]:
        """The open sessions."""
    @property
    def unanswered(self) -> int:
        """Messages whose acks are still to come."""
    def __init__(
        self,
        *,
        targets: Targets,
        nats: NatsReader,
        receivers: dict[int, AckReceiver],
        inbox_prefix: bytes,
        shell: Shell,
        payload_bytes_max: int,
        output_bytes_max: int,
        unread_bytes_max: int,
    ) -> None:
        """`output_bytes_max` may wait to be sent to NATS, `unread_bytes_max` of acks may wait for a client, before windows close."""
    def connection_lost(self) -> None: ...
    def drained(self) -> None: ...

class PublishAsyncStream(GrpcStream):
    @property
    def granted(self) -> dict[bytes, Any]:
        """The streams that the client may publish to, and the client; empty unless the gate checks authorization."""
    def __init__(self, gate: PublishGate) -> None: ...
    def resumed(self, text: str | None) -> None: ...
    def give_up(self) -> None: ...

class PublishStream(GrpcStream):
    def __init__(self, gate: PublishGate, to_subject: bool = False) -> None: ...
    def resumed(self, text: str | None) -> None: ...
