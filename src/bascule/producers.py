"""The headers of an idempotent producer, which make a broker store a message once. Rules: docs/internals/idempotence.md.

This file is for clients, which write the headers. The leader checks them in kernels/records/producers.pyx, without Python objects.
"""

from __future__ import annotations

from typing import Final

from bascule import limits

PRODUCER_HEADER: Final = "bascule-producer"
EPOCH_HEADER: Final = "bascule-epoch"
SEQUENCE_HEADER: Final = "bascule-sequence"
PRODUCER_HEADERS: Final = (PRODUCER_HEADER, EPOCH_HEADER, SEQUENCE_HEADER)

NUMBER_MAX: Final = 10**18 - 1
"""Of epochs and sequences: 18 digits, which every language's 64-bit integer holds."""


def producer_id_fault(producer_id: object) -> str | None:
    """Why the id of a producer is invalid; None if it is valid."""
    if not isinstance(producer_id, str):
        return "it must be text"
    try:
        size = len(producer_id.encode())
    except UnicodeEncodeError:
        return "it must be valid text"
    if not 0 < size <= limits.PRODUCER_ID_BYTES_MAX:
        return f"it must have 1 to {limits.PRODUCER_ID_BYTES_MAX} bytes"
    return None


def producer_headers(producer_id: bytes, epoch: int, sequence: int) -> dict[str, bytes]:
    """The three headers of a message: the first of an epoch has sequence 0, each one after it in the same partition one more."""
    return {PRODUCER_HEADER: producer_id, EPOCH_HEADER: b"%d" % epoch, SEQUENCE_HEADER: b"%d" % sequence}
