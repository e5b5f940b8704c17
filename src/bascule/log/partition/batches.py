"""What goes into a log and where it landed: builders with the limits that every log enforces, and the answer to an append."""

from __future__ import annotations

from dataclasses import dataclass

from bascule import limits
from bascule.errors import RecordTooLarge
from bascule.kernels.records.builder import BatchBuilder


@dataclass(frozen=True, slots=True)
class Appended:
    """Where an append landed."""

    base_offset: int
    last_offset: int
    timestamp: int


def new_batch() -> BatchBuilder:
    """An empty builder with the limits every log enforces."""
    return BatchBuilder(
        key_bytes_max=limits.RECORD_KEY_BYTES_MAX,
        value_bytes_max=limits.RECORD_VALUE_BYTES_MAX,
        headers_max=limits.RECORD_HEADERS_MAX,
        headers_bytes_max=limits.RECORD_HEADERS_BYTES_MAX,
        subject_bytes_max=limits.RECORD_SUBJECT_BYTES_MAX,
        batch_bytes_max=limits.BATCH_BYTES_MAX,
        records_max=limits.BATCH_RECORDS_MAX,
        error=_too_large,
    )


def _too_large(field: str, size: int, limit: int) -> RecordTooLarge:
    if field in ("batch", "records"):
        what = "bytes" if field == "batch" else "records"
        return RecordTooLarge(
            f"the batch would have {size} {what}, above the limit of {limit}", hint="begin another batch"
        )
    return RecordTooLarge(f"{field} of a record: {size} is above the limit of {limit}", hint=f"use at most {limit}")
