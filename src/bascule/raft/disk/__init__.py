"""The durable state of a Raft node. docs/internals/raft.md has the formats."""

from bascule.raft.disk.errors import DamagedRaftLog, ForeignRaftLog
from bascule.raft.disk.opening import Recovered, create_wal, open_wal, wal_exists
from bascule.raft.disk.wal import Wal

__all__ = ["DamagedRaftLog", "ForeignRaftLog", "Recovered", "Wal", "create_wal", "open_wal", "wal_exists"]
