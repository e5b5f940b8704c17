"""The API for the examples: stubs made from proto/api.proto when they are needed. Any Liftbridge client does as well."""

import sys
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped]

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "proto"))


def connect(server: str) -> tuple[Any, Any]:
    """The messages of the API, and a client for a server."""
    messages, services = grpc.protos_and_services("api.proto")
    return messages, services.APIStub(grpc.insecure_channel(server))
