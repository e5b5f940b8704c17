"""Why an op was not done: the gRPC code and text that the client gets."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Refusal:
    code: str
    text: str


def invalid(text: str) -> Refusal:
    return Refusal("INVALID_ARGUMENT", text)


def not_found(text: str) -> Refusal:
    return Refusal("NOT_FOUND", text)


def precondition(text: str) -> Refusal:
    return Refusal("FAILED_PRECONDITION", text)


STREAM_EXISTS = Refusal("ALREADY_EXISTS", "stream already exists")
NO_STREAM = not_found("stream does not exist")
NO_PARTITION = not_found("partition does not exist")
NO_GROUP = not_found("consumer group does not exist")
NO_CANDIDATES = precondition("No ISR candidates")
