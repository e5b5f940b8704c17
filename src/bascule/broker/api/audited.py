"""Calls that change streams or the cluster, with a record in the audit log for each."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from google.protobuf import text_format

from bascule import limits
from bascule.broker.api.calls import Handler
from bascule.errors import BasculeError, PermissionDenied, without_paths
from bascule.net.grpc.server import Call
from bascule.net.grpc.status import GrpcError, Status, status_of
from bascule.security.audit.log import AuditLog

READING: Final = frozenset({"Status", "Counts", "Keys", "ListPolicies", "DescribeStream"})
"""Calls of `bascule.Cluster` and `bascule.Streams` that change nothing."""
REQUEST_BYTES_MAX: Final = 1024
"""A larger request is not written out in its record, only its size: that would take long."""


def audited(handlers: Mapping[str, tuple[Any, Handler]], audit: AuditLog) -> dict[str, tuple[Any, Handler]]:
    """Return the handlers, with a record for each call that is not in `READING`."""
    if not audit.is_on:
        return dict(handlers)
    return {
        name: (request, handler if name in READING else _recorded(name, handler, audit))
        for name, (request, handler) in handlers.items()
    }


def _recorded(name: str, handler: Handler, audit: AuditLog) -> Handler:
    async def handle(request: Any, call: Call) -> Any:
        def record(result: str, text: str = "") -> None:
            for shown in _shown(request):
                detail = "; ".join(filter(None, (without_paths(text), shown)))
                audit.called(call.peer, name, _resource(request), result, detail)

        try:
            answer = await handler(request, call)
        except PermissionDenied:
            raise  # the authorizer has recorded it
        except GrpcError as error:
            record(error.status.name, error.text)
            raise
        except BasculeError as error:
            record(status_of(error).name, error.message)
            raise
        except asyncio.CancelledError:
            record(Status.CANCELLED.name, "the client did not wait for the result")
            raise
        except Exception:
            record(Status.INTERNAL.name)
            raise
        record(Status.OK.name)
        return answer

    return handle


def _resource(request: Any) -> str:
    """Return the stream or the server that a request is about; `*` for the cluster."""
    known = request.DESCRIPTOR.fields_by_name
    return next(
        (found for name in ("name", "stream", "server") if name in known and (found := getattr(request, name))), "*"
    )


def _shown(request: Any) -> list[str]:
    """Return the request as text, for each policy in it a text. No request of these calls has payloads, tokens or keys."""
    size = request.ByteSize()
    lines = getattr(request, "lines", ())
    if 0 < len(lines) <= limits.POLICY_CHANGE_LINES_MAX:
        return list(lines)
    if size > REQUEST_BYTES_MAX:
        return [f"a request of {size} bytes"]
    return [text_format.MessageToString(request, as_one_line=True)]
