"""The metadata state machine: `apply(index, op)` is its one verb.

An op never makes it raise. An op that does not fit the state is refused with a code and a text for the client, at the same index on
every broker, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bascule.metadata.core import group_ops, partition_ops, policy_ops, reassignment, server_ops, stream_ops
from bascule.metadata.core.model import ops
from bascule.metadata.core.model.activity import ACTIVITY_STREAM, event_of
from bascule.metadata.core.model.changes import (
    Change,
    GroupChanged,
    PartitionChanged,
    PoliciesChanged,
    ServerChanged,
    StreamCreated,
    StreamRemoved,
    ThrottleChanged,
)
from bascule.metadata.core.model.contents import Contents, Outcome
from bascule.metadata.core.model.refusal import Refusal

__all__ = [
    "Change",
    "ClusterMetadata",
    "GroupChanged",
    "Outcome",
    "PartitionChanged",
    "PoliciesChanged",
    "ServerChanged",
    "StreamCreated",
    "StreamRemoved",
    "ThrottleChanged",
]


class ClusterMetadata(Contents):
    def apply(self, index: int, op: ops.Op) -> Outcome:
        """Apply the op of log entry `index`; returns the changes or the refusal. An index that was applied already changes nothing."""
        if index <= self.applied_index:
            return ()
        self.applied_index = index
        outcome: Outcome = _APPLY[type(op)](self, index, op)
        if not isinstance(outcome, Refusal):
            self._note_activity(index, op, outcome)
        return outcome

    def _note_activity(self, index: int, op: ops.Op, changes: tuple[Change, ...]) -> None:
        if ACTIVITY_STREAM not in self.streams:
            self.activity.clear()
            return
        event = event_of(index, op, changes)
        if event is not None:
            self.activity.append(event)

    def skip(self, index: int) -> None:
        """Pass over an entry that holds no op."""
        self.applied_index = max(self.applied_index, index)


def _publish_activity(contents: Contents, _index: int, op: ops.PublishActivity) -> Outcome:
    contents.activity_index = max(contents.activity_index, op.index)
    while contents.activity and contents.activity[0].id <= contents.activity_index:
        contents.activity.popleft()
    return ()


_APPLY: dict[type[Any], Callable[[Contents, int, Any], Outcome]] = {
    ops.CreateStream: stream_ops.create_stream,
    ops.DeleteStream: stream_ops.delete_stream,
    ops.PauseStream: stream_ops.pause_stream,
    ops.ResumeStream: stream_ops.resume_stream,
    ops.SetStreamReadonly: stream_ops.set_readonly,
    ops.SetStreamConfig: stream_ops.set_config,
    ops.ShrinkIsr: partition_ops.shrink_isr,
    ops.ExpandIsr: partition_ops.expand_isr,
    ops.ChangeLeader: partition_ops.change_leader,
    ops.LeaveIsr: partition_ops.leave_isr,
    ops.ElectUnclean: partition_ops.elect_unclean,
    ops.Reassign: reassignment.reassign,
    ops.CancelReassignment: reassignment.cancel_reassignment,
    ops.CompleteReassignment: reassignment.complete_reassignment,
    ops.RestartServer: server_ops.restart_server,
    ops.StopServer: server_ops.stop_server,
    ops.SetServerState: server_ops.set_server_state,
    ops.SetReplicationThrottle: server_ops.set_replication_throttle,
    ops.ForgetServer: server_ops.forget_server,
    ops.JoinConsumerGroup: group_ops.join_group,
    ops.LeaveConsumerGroup: group_ops.leave_group,
    ops.ChangeCoordinator: group_ops.change_coordinator,
    ops.GrantPolicies: policy_ops.grant_policies,
    ops.RevokePolicies: policy_ops.revoke_policies,
    ops.PublishActivity: _publish_activity,
}
