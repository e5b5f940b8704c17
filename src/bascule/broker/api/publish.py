"""Publish, PublishAsync and PublishToSubject: answered by kernels, see `kernels/calls/publish.pyx`."""

from __future__ import annotations

from bascule.kernels.calls.publish import PublishAsyncStream, PublishGate, PublishStream
from bascule.net.grpc.server import Route


def routes(gate: PublishGate) -> dict[bytes, Route]:
    return {
        b"/proto.API/Publish": lambda: PublishStream(gate),
        b"/proto.API/PublishAsync": lambda: PublishAsyncStream(gate),
        b"/proto.API/PublishToSubject": lambda: PublishStream(gate, to_subject=True),
    }
