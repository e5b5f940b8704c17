"""An ack as a Python object."""

from typing import NamedTuple

class Ack(NamedTuple):
    """The broker's answer to a publisher. Only `msg_subject` may be invalid UTF-8; writing the ack replaces the invalid bytes."""

    stream: bytes
    partition_subject: bytes
    msg_subject: bytes
    offset: int
    ack_inbox: bytes
    correlation_id: bytes
    ack_policy: int
    reception_timestamp: int
    commit_timestamp: int
    error: int
    duplicate: bool = False
