"""Partition logs on disk. `PartitionLog` is the log of one partition, `LogStore` those of a data directory."""

from bascule.log.core.options import LogOptions, SyncPolicy
from bascule.log.partition.batches import Appended, new_batch
from bascule.log.partition.partition_log import PartitionLog
from bascule.log.partition.reader import LogReader, ReverseReader
from bascule.log.segments.slices import BatchSlice
from bascule.log.store import LogStore

__all__ = [
    "Appended",
    "BatchSlice",
    "LogOptions",
    "LogReader",
    "LogStore",
    "PartitionLog",
    "ReverseReader",
    "SyncPolicy",
    "new_batch",
]
