"""Rules for the names of streams, subjects, groups, consumers and cursors. A stream's name is a folder, a token of NATS subjects, and a
word in log messages."""

from __future__ import annotations

from typing import Final

from bascule import limits

_FORBIDDEN = set('/\\*>"\0')

CURSOR_ID_PREFIXES: Final = ("__group:", "__hold:")
"""Before the id of a group in the ids of its cursors: its position, and the member that holds the partition."""

AUDIT_STREAM: Final = "__audit"
"""The stream of audit records. Brokers alone write it, and reading it is a right of its own: `ReadAudit`."""

NAMESPACE_DEFAULT: Final = "bascule-default"
"""The default of `clustering.namespace`. It differs from Liftbridge's, so that both can use one NATS system."""

TOMBSTONE_HEADER: Final = "bascule-tombstone"
"""Of a message with an empty value: it has no value. A broker does not store the header, and adds it to what it delivers."""

SERVER_SUBJECTS: Final = ("$SYS.>", "$JS.API.>")
"""Subjects that command nats-server itself: a message there would have the permissions of the broker's account."""


def stream_name_fault(name: str) -> str | None:
    """Why `name` cannot be a stream's name; None when it can. Dots are fine: people name streams `events.eu`."""
    if name in (".", ".."):
        return "it means a directory"
    if any(char in _FORBIDDEN or char.isspace() or not char.isprintable() for char in name):
        return 'it has a space, a control character, or one of / \\ * > "'
    if any(not token for token in name.split(".")):
        return "it has an empty part between dots"
    if _size(name) > limits.STREAM_NAME_BYTES_MAX:
        return f"it is longer than {limits.STREAM_NAME_BYTES_MAX} bytes"
    return None


# ── ids ──────────────────────────────────────────────────────────────────────────────────────────


def id_fault(text: str) -> str | None:
    """Why `text` cannot be the id of a group, a consumer or a cursor; None when it can."""
    if _size(text) > limits.ID_BYTES_MAX:
        return f"it is longer than {limits.ID_BYTES_MAX} bytes"
    if not text.isprintable():
        return "it has a line end or another character that cannot be printed"
    return None


def cursor_id_fault(cursor_id: str) -> str | None:
    """Why no client can set a cursor with this id. The prefixes of consumer groups do not count."""
    for prefix in CURSOR_ID_PREFIXES:
        cursor_id = cursor_id.removeprefix(prefix)
    return id_fault(cursor_id)


# ── subjects ─────────────────────────────────────────────────────────────────────────────────────


def applied_subject_fault(subject: str) -> str | None:
    """Why the replicated state refuses a subject. This rule never changes: all servers apply an op with the same result, also an old
    op. A server checks the stricter `subject_fault` before it proposes an op."""
    if not subject:
        return "it is empty"
    if any(char.isspace() or not char.isprintable() for char in subject):
        return "it has a space, a line end or another character that cannot be printed"
    if any(not token for token in subject.split(".")):
        return "it has an empty part between dots"
    if _size(subject) > limits.RECORD_SUBJECT_BYTES_MAX:
        return f"it is longer than {limits.RECORD_SUBJECT_BYTES_MAX} bytes"
    return None


def subject_fault(subject: str) -> str | None:
    """Why `subject` cannot be subscribed to; None when it can. Wildcards are allowed."""
    if _size(subject) > limits.SUBJECT_BYTES_MAX:
        return f"it is longer than {limits.SUBJECT_BYTES_MAX} bytes"
    fault = applied_subject_fault(subject)
    if fault is None and ">" in subject.split(".")[:-1]:
        return "`>` may only be its last part"
    return fault


def stream_subject_fault(subject: str, partitions: int) -> str | None:
    """Why a stream of so many partitions cannot have this subject; partition 3 of `orders` has the subject `orders.3`."""
    fault = subject_fault(subject)
    if fault is None and partitions > 1:
        if subject.split(".")[-1] == ">":
            return "a stream of several partitions appends their numbers to it, and `>` may only be the last part"
        fault = subject_fault(f"{subject}.{partitions - 1}")
    return fault


def publish_subject_fault(subject: str) -> str | None:
    """Why no client can publish to `subject`; None when one can."""
    fault = subject_fault(subject)
    if fault is not None:
        return fault
    if not {"*", ">"}.isdisjoint(subject.split(".")):
        return "it has a wildcard: a message has one subject"
    for reserved in SERVER_SUBJECTS:
        if subject_covers(reserved, subject):
            return f"`{reserved}` belongs to nats-server"
    return None


def reserved_subject_fault(subject: str, namespace: str, partitions: int = 1) -> str | None:
    """Why the subject is refused to clients: the servers of the cluster use everything below their namespace."""
    reserved = f"{namespace}.>"
    if streams_overlap(subject, partitions, reserved, 1):
        return f"it overlaps `{reserved}`, which belongs to the servers of the cluster"
    return None


def subject_covers(pattern: str, subject: str) -> bool:
    """Whether every message of `subject`, which may have wildcards, is one of `pattern`."""
    wanted, given = pattern.split("."), subject.split(".")
    for place, token in enumerate(wanted):
        if token == ">":
            return len(given) > place
        if place >= len(given) or given[place] == ">" or token not in ("*", given[place]):
            return False
    return len(given) == len(wanted)


def subjects_overlap(one: str, other: str) -> bool:
    """Whether a message can be one of both subjects, which may have wildcards."""
    left, right = one.split("."), other.split(".")
    for mine, theirs in zip(left, right, strict=False):
        if ">" in (mine, theirs):
            return True
        if mine != theirs and "*" not in (mine, theirs):
            return False
    return len(left) == len(right)


def streams_overlap(subject: str, partitions: int, other: str, other_partitions: int) -> bool:
    """Whether a message can reach both streams: their subjects overlap, or that of a partition with a number does."""
    return (
        subjects_overlap(subject, other)
        or _numbered_overlap(subject, partitions, other)
        or _numbered_overlap(other, other_partitions, subject)
    )


def _numbered_overlap(subject: str, partitions: int, other: str) -> bool:
    """Whether one of `subject.1`, `subject.2` … overlaps the other subject."""
    place, tokens = subject.count(".") + 1, other.split(".")
    number = tokens[place] if place < len(tokens) else tokens[-1]
    if number in ("*", ">"):
        number = "1"
    if not (number.isascii() and number.isdigit() and number[0] != "0" and len(number) < 10):
        return False
    return int(number) < partitions and subjects_overlap(f"{subject}.{number}", other)


def _size(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))
