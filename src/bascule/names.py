"""Rules for the names of streams and subjects. A stream's name is a folder, a token of NATS subjects, and a word in log messages."""

from __future__ import annotations

from bascule import limits

_FORBIDDEN = set('/\\*>"\0')


def stream_name_fault(name: str) -> str | None:
    """Why `name` cannot be a stream's name; None when it can. Dots are fine: people name streams `events.eu`."""
    if name in (".", ".."):
        return "it means a directory"
    if any(char in _FORBIDDEN or char.isspace() or not char.isprintable() for char in name):
        return 'it has a space, a control character, or one of / \\ * > "'
    if any(not token for token in name.split(".")):
        return "it has an empty part between dots"
    if len(name.encode("utf-8", "surrogatepass")) > limits.STREAM_NAME_BYTES_MAX:
        return f"it is longer than {limits.STREAM_NAME_BYTES_MAX} bytes"
    return None


def subject_fault(subject: str) -> str | None:
    """Why `subject` cannot be subscribed to; None when it can. Wildcards are allowed."""
    if not subject:
        return "it is empty"
    if any(char.isspace() or not char.isprintable() for char in subject):
        return "it has a space, a line end or another character that cannot be printed"
    if any(not token for token in subject.split(".")):
        return "it has an empty part between dots"
    if len(subject.encode("utf-8", "surrogatepass")) > limits.RECORD_SUBJECT_BYTES_MAX:
        return f"it is longer than {limits.RECORD_SUBJECT_BYTES_MAX} bytes"
    return None
