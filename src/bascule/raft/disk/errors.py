"""Errors of the durable state that keep a server from taking part in its group."""

from __future__ import annotations

from bascule.errors import OperatorError, StorageError

REPLACE_HINT = (
    "this server must not vote from damaged state: remove it from the cluster, delete its Raft directory "
    "and let it join again under a new server id"
)


class DamagedRaftLog(StorageError):
    """The durable Raft state is missing or damaged in a way that power loss cannot cause. No file was changed."""

    def __init__(self, message: str, *, hint: str | None = REPLACE_HINT) -> None:
        super().__init__(message, hint=hint)


class ForeignRaftLog(OperatorError):
    """The Raft directory belongs to another cluster or server. No file was changed."""
