"""Acks on their way to publishers: over NATS, or straight to a receiver of this process."""

from collections.abc import Callable
from typing import final

from bascule.kernels.envelope.ack_object import Ack
from bascule.kernels.ingest.sink import PreparedBatch
from bascule.kernels.nats.protocol import MessageSink, NatsReader

class AckReceiver:
    """Somebody in this process that waits for acks; kernels subclass it."""

class CallbackReceiver(AckReceiver):
    """Hands every ack to a callable, as an object: for tests and for what is rare."""

    def __init__(self, callback: Callable[[Ack], object]) -> None: ...

@final
class AckRouter:
    """From the inbox of an ack, `prefix` and a decimal number, to the receiver of that number."""

    on_fault: Callable[[Exception], object] | None
    """Takes what a receiver raised; without it the exception leaves acknowledge() and the acks behind it are lost."""

    def __init__(self, prefix: bytes, on_fault: Callable[[Exception], object] | None = None) -> None: ...
    @property
    def prefix(self) -> bytes: ...
    @property
    def receivers(self) -> dict[int, AckReceiver]:
        """Whoever waits puts itself in and takes itself out."""
    @property
    def delivered(self) -> int: ...
    @property
    def unknown(self) -> int:
        """Acks for inboxes that nobody has, or has any more."""

@final
class AckWriter:
    """Answers the ack entries of batches, into the output of the NATS connection or through the router."""

    seal: Callable[[bytes, bytes], bytes] | None
    """Returns the bytes before the payload of a bundle on a subject."""

    def __init__(self, reader: NatsReader, router: AckRouter, family: bytes = b"") -> None:
        """`family` is how the ack inboxes of all brokers begin: acks for other brokers leave in bundles."""
    @property
    def family(self) -> bytes: ...
    @property
    def reader(self) -> NatsReader: ...
    @property
    def router(self) -> AckRouter: ...
    @property
    def sent(self) -> int: ...
    @property
    def unsendable(self) -> int:
        """Acks that could not leave: not connected, larger than the server takes, or no memory."""
    def acknowledge(
        self, batch: PreparedBatch, which: int, base_offset: int, reception_timestamp: int, commit_timestamp: int
    ) -> None:
        """Ack every stored message of the batch whose policy is `which` (LEADER or ALL)."""
    def reject(self, batch: PreparedBatch, error: int, reception_timestamp: int = 0, commit_timestamp: int = 0) -> None:
        """The batch could not be appended: everybody who waits for one of its records gets `error`."""
    def write_errors(
        self, batch: PreparedBatch, reception_timestamp: int = 0, commit_timestamp: int = 0, judged: bool = True
    ) -> None:
        """Answer the messages that were refused while scanning, all or only those that are not judgements. TOO_LARGE carries no commit
        timestamp."""
    def has_judgements(self, batch: PreparedBatch) -> bool:
        """Whether messages were refused for a reason that follows from the log: INCORRECT_OFFSET, PRODUCER_FENCED, OUT_OF_SEQUENCE. The
        reason is right as long as this server leads."""
    def write_judgements(self, batch: PreparedBatch, error: int = 0, commit_timestamp: int = 0) -> None:
        """Answer the judgements of the batch: as they are, or all with `error`."""

@final
class AckSink(MessageSink):
    """Acks of partitions that other servers lead: subscribe it to the router's prefix without the last dot."""

    open: Callable[[bytes, bytes], memoryview | None] | None
    """Returns the acks of a bundle that was published to a subject, or None if no broker sent it."""

    def __init__(self, router: AckRouter) -> None: ...
    @property
    def router(self) -> AckRouter: ...
    @property
    def invalid(self) -> int:
        """Messages that were no bundle of acks for this process."""
