"""The messages that kernels read and write, as Python objects. A parser returns None for bytes that are no such message."""

from typing import NamedTuple

from typing_extensions import Buffer

from bascule.kernels.envelope.ack_object import Ack

class Publish(NamedTuple):
    """A request to publish, or the message of a publish envelope. Texts are bytes, which are valid UTF-8."""

    key: bytes
    value: bytes
    stream: bytes
    partition: int
    subject: bytes
    headers: tuple[tuple[bytes, bytes], ...] | None
    """Each name once, in the order of the entries that count; None when there are more entries than the kernel looks at."""
    ack_inbox: bytes
    correlation_id: bytes
    ack_policy: int
    expected_offset: int

def parse_publish_request(data: Buffer) -> Publish | None: ...
def parse_publish_to_subject(data: Buffer) -> Publish | None: ...
def parse_publish_envelope(data: Buffer) -> Publish | None: ...
def parse_ack_envelope(data: Buffer) -> Ack | None: ...
def record_headers(envelope: Buffer) -> tuple[int, bytes] | None:
    """How many headers a publish envelope has, and their bytes in a record."""

def publish_envelope(request: Buffer, inbox: bytes = b"", *, to_subject: bool = False) -> bytes | None:
    """The envelope for a PublishRequest, or a PublishToSubjectRequest; `inbox` takes the place of the request's."""

def ack_envelope(ack: Ack) -> bytes: ...
def publish_response(ack: Ack, *, with_correlation_id: bool = True) -> bytes: ...
def publish_error(code: int, message: bytes, correlation_id: bytes = b"") -> bytes: ...
