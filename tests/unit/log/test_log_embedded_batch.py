"""A value may hold anything, also the bytes of a batch. Damage around it must not let them out."""

from __future__ import annotations

from pathlib import Path

import pytest

from bascule.errors import CorruptBatch
from bascule.log import PartitionLog, new_batch


def stamped(offset: int, value: bytes) -> bytes:
    batch = new_batch()
    batch.add(b"forged", value)
    with batch.stamp(offset, 1, 1_700_000_000_000_000_000) as view:
        return bytes(view)


def test_a_batch_inside_a_damaged_value_is_not_taken_for_one_of_the_log(tmp_path: Path) -> None:
    log = PartitionLog(str(tmp_path))
    for offset, value in enumerate((b"first", stamped(1, b"never published"), b"third")):
        batch = new_batch()
        batch.add(None, value)
        log.append(batch, leader_epoch=1, timestamp=1_700_000_000_000_000_000)
        assert log.newest_offset == offset
    log.close()
    path = tmp_path / "00000000000000000000.log"
    content = bytearray(path.read_bytes())
    outer = content.index(b"never published") - 56 - 30
    content[outer] ^= 1  # in the second batch, in front of the batch that its value holds
    path.write_bytes(content)

    log, offset, seen = PartitionLog(str(tmp_path)), 0, []
    while offset < log.log_end_offset:
        try:
            found = log.read(offset, committed=False, bytes_max=1)
        except CorruptBatch as error:
            assert (error.first_offset, error.next_offset) == (1, 2)
            offset = 2
            continue
        assert found is not None
        seen += [record.value for record in found.records()]
        offset = found.next_offset
    assert seen == [b"first", b"third"]
    with pytest.raises(CorruptBatch):
        log.read(1, committed=False)
    log.close()
