"""Errors over Arrow Flight: `CODE: message` as text for people, and JSON for programs.

Flight has few statuses, and clients append to the text. The code, the hint and the facts are therefore JSON in the error's extra
information; the text alone still has the code.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from bascule import errors
from bascule.errors import BasculeError, NotLeader, OffsetBelowStart, Unavailable, without_paths
from bascule.flight.arrow import require, require_flight

FACTS: Final = ("log_start_offset", "leader", "location")
"""Attributes of errors that are sent too."""

_CODE: Final = re.compile(r"\b([A-Z][A-Z_]{2,40}): ")


def _classes() -> Iterator[tuple[str, type[BasculeError]]]:
    for one in vars(errors).values():
        if isinstance(one, type) and issubclass(one, BasculeError) and one is not errors.CorruptBatch:
            yield one.code, one


_BY_CODE: Final = dict(_classes())


# ── at the server ────────────────────────────────────────────────────────────────────────────────


def to_flight(error: BasculeError) -> Exception:
    """Return the exception that a Flight method raises so that the client gets this error."""
    flight = require_flight()
    facts = {name: getattr(error, name) for name in FACTS if hasattr(error, name)}
    message, hint = without_paths(error.message), None if error.hint is None else without_paths(error.hint)
    detail = json.dumps({"code": error.code, "message": message, "hint": hint, **facts}).encode()
    kind: Callable[..., Exception] = flight.FlightServerError
    if isinstance(error, errors.Unauthenticated):
        kind = flight.FlightUnauthenticatedError
    elif isinstance(error, errors.PermissionDenied):
        kind = flight.FlightUnauthorizedError
    elif isinstance(error, Unavailable):
        kind = flight.FlightUnavailableError
    return kind(f"{error.code}: {without_paths(str(error))}", detail)


@contextmanager
def as_flight_errors() -> Iterator[None]:
    try:
        yield
    except BasculeError as error:
        raise to_flight(error) from None


# ── at the client ────────────────────────────────────────────────────────────────────────────────


def from_flight(error: Exception) -> BasculeError:
    """Return the error that the server sent, or one for a failure of the transport."""
    flight = require_flight()
    detail = _detail(error)
    found = _CODE.search(str(error)) if detail is None else None
    code = detail["code"] if detail is not None else found[1] if found else ""
    message = detail["message"] if detail is not None else _first_line(error)
    if code in _BY_CODE:
        known = _BY_CODE[code](message, hint=None if detail is None else detail.get("hint"))
        for name in FACTS:
            if detail is not None and name in detail:
                setattr(known, name, detail[name])
        return known
    if isinstance(error, flight.FlightUnavailableError | flight.FlightTimedOutError | flight.FlightCancelledError):
        return Unavailable(message, hint="is the server up, and `flight.enabled` not false there?")
    if isinstance(error, flight.FlightUnauthenticatedError):
        return errors.Unauthenticated(message)
    if isinstance(error, flight.FlightUnauthorizedError):
        return errors.PermissionDenied(message)
    return BasculeError(message)


@contextmanager
def as_bascule_errors() -> Iterator[None]:
    try:
        yield
    except (require().ArrowException, OSError) as error:
        raise from_flight(error) from None


def _detail(error: Exception) -> dict[str, Any] | None:
    extra = getattr(error, "extra_info", b"")
    if not extra:
        return None
    try:
        found = json.loads(extra)
    except ValueError:
        return None
    if isinstance(found, dict) and isinstance(found.get("code"), str) and isinstance(found.get("message"), str):
        return found
    return None


def _first_line(error: Exception) -> str:
    return str(error).split("\n", 1)[0].split(". gRPC client debug context", 1)[0].split(". Detail: ", 1)[0]


def not_leader(stream: str, partition: int, leader: str, location: str | None) -> NotLeader:
    error = NotLeader(f"{stream}/{partition} has the leader {leader or 'none'}", hint=location)
    error.leader = leader
    error.location = location
    return error


def below_start(stream: str, partition: int, offset: int, log_start_offset: int) -> OffsetBelowStart:
    error = OffsetBelowStart(
        f"{stream}/{partition} begins at offset {log_start_offset}: {log_start_offset - offset} offsets from {offset} on are gone",
        hint="retention deletes the oldest segments; read from the start of the log, or keep more",
    )
    error.log_start_offset = log_start_offset
    return error
