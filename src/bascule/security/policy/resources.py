"""The built-in model of policies: typed resources, roles, prefixes and wildcards.

    p, <user or role:name>, <resource>, <action>        g, <user>, role:<name>

A resource is `stream:<name>`, `group:<id>`, `cursor:<stream>`, `cluster:*`, `subject:<pattern>`, or `*` for everything. A `*` at the
end of a name stands for any rest, so `stream:orders*` is a prefix. An action is the name of a call, or `*`. The type of a call's
resource follows from its action; patterns of subjects have the wildcards of NATS, see `subjects`.
"""

from __future__ import annotations

from typing import Final

from bascule.names import AUDIT_STREAM

EVERYTHING: Final = "*"
SUBJECT: Final = "subject"
SUBJECT_PREFIX: Final = f"{SUBJECT}:"
CLUSTER: Final = "cluster"
ROLE_PREFIX: Final = "role:"
"""Begins a role in a policy. No user has a name that begins so: a user could otherwise take the permissions of a role."""

TYPES: Final = {
    "stream": (
        "CreateStream",
        "DeleteStream",
        "PauseStream",
        "SetStreamReadonly",
        "SetStreamSettings",
        "DescribeStream",
        "Publish",
        "Subscribe",
        "FetchPartitionMetadata",
    ),
    "cursor": ("SetCursor", "FetchCursor"),
    "group": (
        "JoinConsumerGroup",
        "LeaveConsumerGroup",
        "FetchConsumerGroupAssignments",
        "ReportConsumerGroupCoordinator",
    ),
}
"""Actions by the type of their resource. PublishToSubject has subjects; all others belong to the cluster."""

SUBJECT_ACTIONS: Final = ("CreateStream", "PublishToSubject")
CLUSTER_ACTIONS: Final = (
    "FetchMetadata",
    "Status",
    "Counts",
    "Drain",
    "AddServers",
    "RemoveServer",
    "Rebalance",
    "Reassign",
    "CancelReassignment",
    "ElectUnclean",
    "SetThrottle",
    "Keys",
    "RotateKeys",
    "ReadAudit",
    "ListPolicies",
    "GrantPolicies",
    "RevokePolicies",
)

_ACTIONS: Final = {**TYPES, SUBJECT: SUBJECT_ACTIONS, CLUSTER: CLUSTER_ACTIONS}
_TYPE_OF: Final = {action: kind for kind, actions in TYPES.items() for action in actions}


READ_AUDIT: Final = "ReadAudit"
"""The right to read the stream `__audit`, which no right on streams includes."""

_AUDIT_REFUSED: Final = frozenset(
    {"CreateStream", "DeleteStream", "PauseStream", "SetStreamReadonly", "SetStreamSettings", "Publish"}
)
"""Actions on the stream `__audit` that no policy can allow."""


def rights_to(resource: str, action: str) -> tuple[tuple[str, str], ...]:
    """Return the pairs of a resource and an action one of which a policy has to allow for a call. Empty: no policy can allow it."""
    if resource != AUDIT_STREAM:
        return ((resource, action),)
    if action in _AUDIT_REFUSED:
        return ()
    if action == "Subscribe":
        return (("*", READ_AUDIT),)
    if action in ("FetchPartitionMetadata", "DescribeStream"):
        return ((resource, action), ("*", READ_AUDIT))
    return ((resource, action),)


def typed(resource: str, action: str) -> str:
    """Return the resource of a call with its type."""
    if action == "PublishToSubject":
        return f"{SUBJECT}:{resource}"
    return f"{_TYPE_OF.get(action, CLUSTER)}:{resource}"


def written_rights_to(resource: str, action: str) -> tuple[tuple[str, str], ...]:
    """Return the same as `rights_to`, for a resource as policies write it: with its type, except for a model of one's own."""
    if resource == AUDIT_STREAM:
        return rights_to(resource, action)
    if resource == f"stream:{AUDIT_STREAM}":
        return tuple((typed(name, right), right) for name, right in rights_to(AUDIT_STREAM, action))
    return ((resource, action),)


def resource_fault(resource: str) -> str | None:
    """Return why a policy cannot name this resource, or None."""
    kind, colon, name = resource.partition(":")
    if resource == EVERYTHING:
        return None
    if not colon or not name or kind not in (*TYPES, SUBJECT, CLUSTER):
        kinds = ", ".join(f"`{one}:`" for one in (*TYPES, SUBJECT, CLUSTER))
        return f"a resource is `*`, or begins with {kinds}"
    if kind != SUBJECT and EVERYTHING in name[:-1]:
        return "`*` stands at the end of a name only"
    return None


def action_fault(resource: str, action: str) -> str | None:
    """Return why an action cannot be granted on this resource, or None. The resource has no fault."""
    actions = _ACTIONS.get(
        resource.partition(":")[0], tuple(dict.fromkeys(one for many in _ACTIONS.values() for one in many))
    )
    if action == EVERYTHING or action in actions:
        return None
    return f"actions on `{resource}` are `*`, {', '.join(f'`{one}`' for one in actions)}"
