"""Durable, replicated, ordered streams attached to NATS subjects.

`connect` returns a client, `blocking.connect` one without asyncio; errors are in `bascule.errors`. Heavy libraries (YAML, cryptography,
compression, Arrow, Spark) are extras, imported by the modules that need them. The client itself is imported on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from bascule import errors
from bascule.errors import (
    BasculeError,
    CallerError,
    IncorrectOffset,
    InvalidOption,
    OperatorError,
    OutcomeUnknown,
    PermissionDenied,
    StateError,
    StreamExists,
    StreamNotFound,
    Unavailable,
)

if TYPE_CHECKING:
    from bascule.client import blocking
    from bascule.client.admin.cluster import ClusterAdmin
    from bascule.client.admin.streams import StreamAdmin
    from bascule.client.arrow.table import read_table
    from bascule.client.client import Client, connect
    from bascule.client.connection.options import TlsOptions
    from bascule.client.connection.tokens import LoopbackToken
    from bascule.client.consume.consumer import Assignment, Consumer
    from bascule.client.consume.subscription import Subscription
    from bascule.client.messages import Ack, Message, MessageBatch

__version__ = "0.1.0"

_archive: Final = getattr(globals().get("__loader__"), "archive", None)
if _archive is not None:  # as `--py-files` of spark-submit has it
    raise ImportError(
        f"bascule was imported from {_archive}, and Python imports none of its compiled modules from there; "
        "for executors of Spark write a pack with `bascule spark pack`, and give it to spark-submit with `--archives`"
    )

_LAZY: Final = {
    "Ack": "bascule.client.messages",
    "Assignment": "bascule.client.consume.consumer",
    "Client": "bascule.client.client",
    "ClusterAdmin": "bascule.client.admin.cluster",
    "Consumer": "bascule.client.consume.consumer",
    "LoopbackToken": "bascule.client.connection.tokens",
    "Message": "bascule.client.messages",
    "MessageBatch": "bascule.client.messages",
    "StreamAdmin": "bascule.client.admin.streams",
    "Subscription": "bascule.client.consume.subscription",
    "TlsOptions": "bascule.client.connection.options",
    "blocking": "bascule.client",
    "connect": "bascule.client.client",
    "read_table": "bascule.client.arrow.table",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'bascule' has no attribute {name!r}")
    if name == "blocking":
        found: Any = import_module("bascule.client.blocking")
    else:
        found = getattr(import_module(_LAZY[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)


__all__ = [
    "Ack",
    "Assignment",
    "BasculeError",
    "CallerError",
    "Client",
    "ClusterAdmin",
    "Consumer",
    "IncorrectOffset",
    "InvalidOption",
    "LoopbackToken",
    "Message",
    "MessageBatch",
    "OperatorError",
    "OutcomeUnknown",
    "PermissionDenied",
    "StateError",
    "StreamAdmin",
    "StreamExists",
    "StreamNotFound",
    "Subscription",
    "TlsOptions",
    "Unavailable",
    "__version__",
    "blocking",
    "connect",
    "errors",
    "read_table",
]
