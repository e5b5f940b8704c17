"""Batch builders with the limits of records, and the result of an append."""

from __future__ import annotations

from typing import NamedTuple

from bascule import limits
from bascule.errors import RecordTooLarge
from bascule.kernels.records.builder import BatchBuilder


class Appended(NamedTuple):
    """The offsets and the timestamp of an append."""

    base_offset: int
    last_offset: int
    timestamp: int


def new_batch() -> BatchBuilder:
    """Return an empty builder with the limits of records."""
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
