"""Messages of the broker itself: to internal streams sealed for the partition's leader, to other streams like those of a client."""

from collections.abc import Callable
from typing import final

from bascule.kernels.calls.publish import PublishGate
from bascule.kernels.ingest.acks import AckReceiver

@final
class InternalReceiver(AckReceiver):
    """Waits for the ack of one message."""

@final
class InternalGate:
    """Publishes for the broker itself."""

    def __init__(self, gate: PublishGate, seal: Callable[[bytes, bytes], bytes] | None) -> None:
        """`seal` returns the seal of a payload to a subject; None: no partition has a receiver."""
    def publish(
        self, request: bytes, callback: Callable[[bytes | None], None]
    ) -> InternalReceiver | tuple[int, int, bytes, bool] | None:
        """Publish an encoded PublishRequest.

        `callback` gets the Ack, or None when the connection to NATS was lost. A tuple is a refusal: gRPC status, code of
        PublishAsyncError, text, and whether it is only because the partition is paused. None: published, no ack is wanted.
        """
    def cancel(self, receiver: InternalReceiver | None) -> None:
        """Do not call the callback any more."""
