"""The short cut for readers on the broker's machine: they get the log's files, opened for reading, and decode them.

    reader → broker   a ticket, as DoGet takes it
    broker → reader   {"files": [[start, stop], …], "next_offset": n} and a handle for each file, or {"refused": why}

A connection to a Unix socket carries one request. The socket has a random name in Linux's abstract namespace, which a reader learns
from the action `offsets`; only a process on the broker's machine can connect to it. Such a process could also connect to the Flight
port, so the short cut grants nothing more. With TLS there is no such socket, since it does not authenticate. After a refusal, the
reader calls DoGet.
"""

from __future__ import annotations

import json
import logging
import secrets
import socket
import sys
import threading
from typing import TYPE_CHECKING, Final

from bascule import limits
from bascule.broker.flight.directory import Directory
from bascule.broker.flight.reads import Read
from bascule.errors import BasculeError, Unavailable
from bascule.flight.tickets import ReadTicket, parse_ticket

if TYPE_CHECKING:
    from bascule.broker.flight.service import FlightGate
    from bascule.log.partition.file_ranges import FileRanges

_logger = logging.getLogger(__name__)

WAITING_MAX: Final = 64


class LocalReads:
    """One thread serves all requests: an answer takes one index lookup."""

    def __init__(self, gate: FlightGate) -> None:
        self._gate = gate
        self.name = f"bascule-{secrets.token_hex(16)}"
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listening.bind(f"\0{self.name}")
        self._listening.listen(WAITING_MAX)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="flight local reads", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._listening.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listening.close()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                connection, _ = self._listening.accept()
            except OSError:
                self._stopping.wait(0.1)  # accept fails while no file descriptor is free
                continue
            with connection:
                try:
                    self._serve(connection)
                except OSError as error:
                    _logger.debug("a reader on this machine has gone: %s", error)
                except Exception:
                    _logger.exception("a reader on this machine could not be served")

    def _serve(self, connection: socket.socket) -> None:
        connection.settimeout(limits.FLIGHT_LOCAL_SECONDS)
        asked = connection.recv(limits.FLIGHT_REQUEST_BYTES_MAX)
        try:
            found = self._find(parse_ticket(asked))
        except BasculeError as error:
            connection.send(json.dumps({"refused": error.message}).encode())
            return
        try:
            _send(connection, found)
        finally:
            found.close()

    def _find(self, ticket: ReadTicket) -> FileRanges:
        sources = self._gate.parts()
        sources.authorizer.require(None, ticket.stream, "Subscribe")
        directory = Directory(sources, self._gate)
        stream = directory.stream(ticket.stream, ticket.stream_id)
        partition = directory.partition(stream, ticket.partition)
        if partition.paused or partition.leader != sources.controller.server_id:
            raise Unavailable("the partition is paused, or led elsewhere: what follows takes longer than an answer may")
        read = Read(sources, self._gate, ticket, directory.led(stream, ticket.partition), lambda: False)
        return read.files()


def _send(connection: socket.socket, found: FileRanges) -> None:
    files = [[each.start, each.stop] for each in found.files]
    said = json.dumps({"files": files, "next_offset": found.next_offset}).encode()
    socket.send_fds(connection, [said], [each.handle for each in found.files])


def are_possible() -> bool:
    """Return whether this system has abstract sockets and /proc/self/fd, as Linux does."""
    return sys.platform == "linux"
