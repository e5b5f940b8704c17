"""The metadata behind the Raft log: bytes of an entry in, a verdict out, changes to whoever runs partitions and groups."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Final

from bascule import limits
from bascule.metadata.core.model.ops import MalformedOp, decode_op
from bascule.metadata.core.model.refusal import Refusal, invalid
from bascule.metadata.core.snapshot import decode_snapshot, encode_snapshot
from bascule.metadata.core.state import Change, Metadata

DONE: Final = b""
_TEXT_BYTES_MAX: Final = (
    limits.RAFT_SESSION_RESULT_BYTES_MAX // 8
)  # escaped as JSON a character may take eight times its size


class MetadataMachine:
    def __init__(
        self,
        on_changes: Callable[[int, tuple[Change, ...]], None] | None = None,
        on_restored: Callable[[], None] | None = None,
    ) -> None:
        """`on_changes` hears the index and the changes of every op that changed something, `on_restored` that the state came anew as
        a whole: from disk at the start, or from the leader. Neither may block."""
        self.state = Metadata()
        self._on_changes = on_changes or (lambda _index, _changes: None)
        self._on_restored = on_restored or (lambda: None)

    def apply(self, index: int, command: bytes) -> bytes:
        try:
            op = decode_op(command)
        except MalformedOp as error:
            # Refused like any other op that cannot be done: at the same index, with the same words, on every server.
            self.state.skip(index)
            return encode_verdict(invalid(f"malformed op: {error}"))
        outcome = self.state.apply(index, op)
        if isinstance(outcome, Refusal):
            return encode_verdict(outcome)
        if outcome:
            self._on_changes(index, outcome)
        return DONE

    def snapshot(self) -> bytes:
        return encode_snapshot(self.state)

    def restore(self, data: bytes) -> None:
        self.state = decode_snapshot(data) if data else Metadata()
        self._on_restored()


def encode_verdict(refusal: Refusal) -> bytes:
    return json.dumps({"code": refusal.code, "text": refusal.text[:_TEXT_BYTES_MAX]}).encode()


def decode_verdict(data: bytes) -> Refusal | None:
    """None: it was done."""
    if data == DONE:
        return None
    return Refusal(**json.loads(data))
