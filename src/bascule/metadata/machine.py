"""Applies the entries of the Raft log to the metadata: bytes of an op in, a verdict out, changes to the feed."""

from __future__ import annotations

import json
from typing import Final

from bascule import limits
from bascule.metadata.core.model.ops import MalformedOp, decode_op
from bascule.metadata.core.model.refusal import Refusal, invalid
from bascule.metadata.core.snapshot import decode_snapshot, encode_snapshot
from bascule.metadata.core.state import ClusterMetadata
from bascule.metadata.feed import MetadataFeed

DONE: Final = b""
_TEXT_BYTES_MAX: Final = (
    limits.RAFT_SESSION_RESULT_BYTES_MAX // 8
)  # escaped as JSON a character may take eight times its size


class MetadataMachine:
    def __init__(self, feed: MetadataFeed) -> None:
        self.state = ClusterMetadata()
        self._feed = feed

    def apply(self, index: int, command: bytes) -> bytes:
        try:
            op = decode_op(command)
        except MalformedOp as error:
            # Every server refuses it at the same index with the same words, as any other op that does not fit the state.
            self.state.skip(index)
            return encode_verdict(invalid(f"malformed op: {error}"))
        outcome = self.state.apply(index, op)
        if isinstance(outcome, Refusal):
            return encode_verdict(outcome)
        if outcome:
            self._feed.publish(index, outcome)
        return DONE

    def snapshot(self) -> bytes:
        return encode_snapshot(self.state)

    def restore(self, data: bytes) -> None:
        self.state = decode_snapshot(data) if data else ClusterMetadata()
        self._feed.reload()


def encode_verdict(refusal: Refusal) -> bytes:
    return json.dumps({"code": refusal.code, "text": refusal.text[:_TEXT_BYTES_MAX]}).encode()


def decode_verdict(data: bytes) -> Refusal | None:
    """None when the op was applied."""
    if data == DONE:
        return None
    return Refusal(**json.loads(data))
