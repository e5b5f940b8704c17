"""Why a server may not take part with the durable state it has."""

from __future__ import annotations

from bascule.errors import OperatorError, StorageError

REPLACE_HINT = (
    "this server must not vote from damaged state: remove it from the cluster, delete its Raft directory "
    "and let it join again under a new server id"
)


class DamagedRaftLog(StorageError):
    """Durable Raft state is missing or fails its checks, beyond what power loss can do. Nothing was changed."""

    def __init__(self, message: str, *, hint: str | None = REPLACE_HINT) -> None:
        super().__init__(message, hint=hint)


class ForeignRaftLog(OperatorError):
    """The Raft directory belongs to another cluster or another server. Nothing was changed."""
