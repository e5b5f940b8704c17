"""The servers of a cluster that serve tables: where they are, and calls that end when a server does not answer.

Everything is Arrow Flight. A broker's gRPC port answers one action of Flight, `locations`, with the Flight ports of all brokers;
`servers` may also name Flight locations, such as `grpc://127.0.0.1:9294`, which need no such question.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from bascule.client.connection.options import TlsOptions, addresses, wrong
from bascule.client.connection.retry import Backoff, TimeLimit
from bascule.client.connection.tokens import check_token, must_be_safe
from bascule.errors import ClientClosed, InvalidOption, Unavailable
from bascule.flight.arrow import require_flight
from bascule.flight.failures import as_bascule_errors
from bascule.flight.tickets import LOCATIONS_ACTION, ReadTicket
from bascule.net.sockets import bracketed

if TYPE_CHECKING:
    import pyarrow as pa

SCHEMES: Final = ("grpc://", "grpc+tcp://", "grpc+tls://")

Servers = str | Iterable[str]
Tls = bool | TlsOptions | None


class FlightServers:
    """Flight clients by location; no socket is opened before the first call."""

    def __init__(self, servers: Servers, tls: Tls, token: str | None, timeout: float) -> None:
        texts = [text.strip() for text in servers.split(",")] if isinstance(servers, str) else list(servers)
        if not texts:
            raise wrong("servers", servers, "at least one address such as `127.0.0.1:9292`")
        self._given = [text for text in texts if isinstance(text, str) and text.startswith(SCHEMES)]
        asked = [text for text in texts if text not in self._given]
        self.brokers = asked
        """The gRPC addresses among the servers; rows are published to them."""
        scheme = "grpc+tls" if tls else "grpc"
        self._asked = [f"{scheme}://{bracketed(host)}:{port}" for host, port in (addresses(asked) if asked else ())]
        self._tls_options = _tls_options(tls)
        self._token = None if token is None else check_token(token)
        for location in (*self._given, *self._asked):
            self._must_be_safe(location)
        self._timeout = timeout
        self._lock = threading.Lock()
        self._clients: dict[str, Any] = {}
        self._stalls = Stalls(timeout)
        self._closed = False

    def find(self) -> list[str]:
        """Flight locations of servers that may be up, those that were given first. Raises Unavailable when there are none."""
        found = list(self._given)
        failure: Unavailable | None = None
        for location in self._asked:
            try:
                with self._connect(location) as client:
                    found += self._act(client, LOCATIONS_ACTION)["locations"]
                break
            except Unavailable as error:
                failure = error
        if not found:
            raise failure or Unavailable(
                f"no server of {', '.join(self._asked)} serves tables",
                hint='on the servers: pip install "bascule[server]", and `flight.enabled` must not be false',
            )
        return list(dict.fromkeys(found))

    def act(self, location: str, action: str, body: bytes) -> dict[str, Any]:
        """The JSON that a server answers to an action."""
        return self._act(self.client(location), action, body)

    def _act(self, client: Any, action: str, body: bytes = b"") -> dict[str, Any]:
        with as_bascule_errors():
            results = list(client.do_action(require_flight().Action(action, body), self.options(self._timeout)))
        answer: dict[str, Any] = json.loads(results[0].body.to_pybytes())
        return answer

    def batches(self, location: str, ticket: ReadTicket) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Record batches, and with each the offset up to which the range is covered. Raises Unavailable for a silent server."""
        reader = self._open(location, ticket)
        try:
            while True:
                try:
                    with as_bascule_errors(), self._stalls.watch(reader):
                        chunk = reader.read_chunk()
                except StopIteration:
                    return
                yield int(chunk.app_metadata.to_pybytes()), chunk.data
        finally:
            reader.cancel()

    def _open(self, location: str, ticket: ReadTicket) -> Any:
        """Arrow waits without a timeout for the server's first bytes: a thread does it, and is abandoned after the timeout."""
        client, wanted = self.client(location), require_flight().Ticket(ticket.encode())
        opening = Opening(lambda: client.do_get(wanted, self.options(None)))
        with as_bascule_errors():
            reader = opening.wait(self._timeout)
        if reader is None:
            with self._lock:
                self._clients.pop(location, None)
            raise Unavailable(f"{location} has not answered for {self._timeout:g} s")
        return reader

    def client(self, location: str) -> Any:
        """The FlightClient of a location, made when it is first needed."""
        with self._lock:
            if self._closed:
                raise ClientClosed("the connection was closed")
            found = self._clients.get(location)
            if found is None:
                found = self._clients[location] = self._connect(location)
            return found

    def _connect(self, location: str) -> Any:
        self._must_be_safe(location)
        with as_bascule_errors():
            options = self._tls_options if location.startswith("grpc+tls") else {}
            return require_flight().FlightClient(location, **options)

    def _must_be_safe(self, location: str) -> None:
        """Raise InvalidOption when the token may not be sent there. Arrow verifies the certificate of every TLS server."""
        if self._token is not None:
            host = urlsplit(location).hostname or ""
            must_be_safe(self._token, host, is_verified=location.startswith("grpc+tls://"))

    def options(self, timeout: float | None) -> Any:
        """FlightCallOptions with the token."""
        headers = [(b"authorization", f"Bearer {self._token}".encode())] if self._token else []
        return require_flight().FlightCallOptions(timeout=timeout, headers=headers)

    def close(self) -> None:
        """End all calls; threads are joined."""
        with self._lock:
            self._closed = True
            clients, self._clients = list(self._clients.values()), {}
        self._stalls.close()
        for client in clients:
            client.close()


def _tls_options(tls: Tls) -> dict[str, Any]:
    """Arguments of a FlightClient, which takes the content of files."""
    if tls is None or isinstance(tls, bool):
        return {}
    if not isinstance(tls, TlsOptions):
        raise wrong("tls", tls, "True, or TlsOptions(ca=…, cert=…, key=…): Arrow takes no SSLContext")
    given = {"tls_root_certs": tls.ca, "cert_chain": tls.cert, "private_key": tls.key or tls.cert}
    try:
        return {name: Path(path).read_bytes() for name, path in given.items() if path is not None}
    except OSError as error:
        raise InvalidOption(f"`tls` names a file that cannot be read: {error}") from None


# ── timeouts and retries ─────────────────────────────────────────────────────────────────────────


class Patience:
    """How long to retry after a failure, and the pause before each attempt."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._retrying: tuple[TimeLimit, Backoff] | None = None

    def begin_anew(self) -> None:
        """After a success: the time begins with the next failure."""
        self._retrying = None

    def wait(self, error: Unavailable) -> None:
        """Pause before the next attempt. Raises the error when the time since the first failure is over."""
        if self._retrying is None:
            self._retrying = TimeLimit.after(self._seconds), Backoff()
        deadline, backoff = self._retrying
        pause = backoff.next_seconds()
        if pause > deadline.left:
            raise error
        time.sleep(pause)


class Opening:
    """A call that may never return, made by a thread of its own so that the caller can stop waiting."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._work = work
        self._lock = threading.Lock()
        self._is_given_up = False
        self._made: Any = None
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="bascule flight open", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            made = self._work()
        except Exception as error:
            self._failure = error
            return
        with self._lock:
            self._made = made
            if self._is_given_up:
                made.cancel()

    def wait(self, seconds: float) -> Any:
        """The result; None when it takes longer: a later result is cancelled. Raises what the call raised."""
        self._thread.join(seconds)
        if self._failure is not None:
            raise self._failure
        with self._lock:
            self._is_given_up = self._made is None
            return self._made


class Stalls:
    """Cancels reads that wait too long for their next batch. One thread for all reads of a connection, started with the first."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._waiting: dict[int, tuple[float, Any]] = {}
        self._ended: set[int] = set()
        self._news = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False

    @contextmanager
    def watch(self, reader: Any) -> Iterator[None]:
        """Cancel the reader when the body takes too long; Unavailable is raised then."""
        key = id(reader)
        with self._news:
            self._waiting[key] = (time.monotonic() + self._seconds, reader)
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, name="bascule flight stalls", daemon=True)
                self._thread.start()
        try:
            yield
        except Exception:
            if key in self._ended:
                raise Unavailable(f"the server has sent nothing for {self._seconds:g} s") from None
            raise
        finally:
            with self._news:
                self._waiting.pop(key, None)
                self._ended.discard(key)

    def _run(self) -> None:
        with self._news:
            while not self._closed:
                now = time.monotonic()
                for key, (until, reader) in list(self._waiting.items()):
                    if until <= now and key not in self._ended:
                        self._ended.add(key)
                        reader.cancel()
                self._news.wait(min(1.0, self._seconds / 4))

    def close(self) -> None:
        """Stop the thread."""
        with self._news:
            self._closed = True
            self._news.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join()
