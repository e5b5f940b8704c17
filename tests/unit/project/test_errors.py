"""One tree of errors: each has a code of its own, a gRPC status, a place in the blame, and an exit code."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bascule import errors
from bascule.errors import GRPC_STATUS, BasculeError, grpc_status
from bascule.exits import EXIT_BUG, EXIT_CODES, exit_code

GRPC_STATUSES = {
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
}


def descendants(parent: type[BasculeError]) -> Iterator[type[BasculeError]]:
    for child in parent.__subclasses__():
        if child.__module__ == errors.__name__:
            yield child
            yield from descendants(child)


ALL: list[type[BasculeError]] = [BasculeError, *descendants(BasculeError)]


@pytest.mark.parametrize("error", ALL, ids=lambda error: error.__name__)
def test_every_error_has_its_own_code_and_a_docstring(error: type[BasculeError]) -> None:
    assert "code" in vars(error)
    assert error.__doc__


def test_no_two_errors_share_a_code() -> None:
    assert len({error.code for error in ALL}) == len(ALL)


def test_the_status_table_holds_every_code_and_no_other() -> None:
    assert set(GRPC_STATUS) == {error.code for error in ALL}
    assert set(GRPC_STATUS.values()) <= GRPC_STATUSES


@pytest.mark.parametrize("error", ALL[1:], ids=lambda error: error.__name__)
def test_every_error_says_who_must_act(error: type[BasculeError]) -> None:
    assert sum(issubclass(error, group) for group in EXIT_CODES) == 1


def test_a_hint_stands_on_its_own_line() -> None:
    assert str(errors.DiskFull("No room")) == "No room"
    assert str(errors.DiskFull("No room", hint="free some")) == "No room\nhint: free some"


def test_an_error_knows_its_status_and_exit_code() -> None:
    assert grpc_status(errors.DiskFull("x")) == "RESOURCE_EXHAUSTED"
    assert exit_code(errors.InvalidConfig("x")) == 2
    assert exit_code(errors.LogDeleted("x")) == 3
    assert exit_code(errors.DiskFull("x")) == 4
    assert exit_code(errors.Unavailable("x")) == 5
    assert exit_code(errors.OutcomeUnknown("x")) == 6
    assert exit_code(BasculeError("x")) == EXIT_BUG


def test_a_corrupt_batch_says_exactly_what_is_damaged() -> None:
    error = errors.CorruptBatch("bad", file="a.log", position=1, bytes_damaged=2, first_offset=3, next_offset=None)
    assert (error.file, error.position, error.bytes_damaged, error.first_offset, error.next_offset) == (
        "a.log",
        1,
        2,
        3,
        None,
    )
