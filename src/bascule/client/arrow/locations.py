"""Where a cluster serves tables: found through the gRPC port that everybody knows, or given as Flight locations."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from bascule.client import blocking
from bascule.client.connection.options import TlsOptions, addresses, wrong
from bascule.errors import InvalidOption, Unavailable

SCHEMES: Final = ("grpc://", "grpc+tcp://", "grpc+tls://")

Servers = str | Iterable[str]
Tls = bool | TlsOptions | None


class Locations:
    """`servers` are gRPC addresses such as `127.0.0.1:9292`, or Flight locations such as `grpc://127.0.0.1:9294`."""

    def __init__(self, servers: Servers, tls: Tls, token: str | None, timeout: float) -> None:
        texts = [text.strip() for text in servers.split(",")] if isinstance(servers, str) else list(servers)
        self._given = [text for text in texts if isinstance(text, str) and text.startswith(SCHEMES)]
        self._addresses = [text for text in texts if text not in self._given]
        if not texts:
            raise wrong("servers", servers, "at least one address such as `127.0.0.1:9292`")
        addresses(self._addresses or "127.0.0.1")  # refuses what is none
        self._tls = tls
        self._token = token
        self._timeout = timeout
        self.tls_options = _tls_options(tls)

    def find(self) -> list[str]:
        """Locations of servers that may be up, those that were given first. Raises Unavailable when there are none."""
        found = list(self._given)
        if self._addresses:
            found += self._asked()
        if not found:
            raise Unavailable(
                f"no server of {', '.join(self._addresses)} serves tables",
                hint='on the servers: pip install "bascule[server]", and `flight.enabled` must not be false',
            )
        return list(dict.fromkeys(found))

    def _asked(self) -> list[str]:
        scheme = "grpc+tls" if self._tls else "grpc"
        with blocking.connect(
            self._addresses, tls=self._tls, token=self._token, timeout=self._timeout, patience=self._timeout
        ) as client:
            brokers = client.fetch_metadata([]).brokers.values()
        return [
            f"{scheme}://{f'[{broker.host}]' if ':' in broker.host else broker.host}:{broker.flight_port}"
            for broker in brokers
            if broker.flight_port
        ]


def _tls_options(tls: Tls) -> dict[str, Any]:
    """For a FlightClient, which takes what files hold."""
    if tls is None or isinstance(tls, bool):
        return {}
    if not isinstance(tls, TlsOptions):
        raise wrong("tls", tls, "True, or TlsOptions(ca=…, cert=…, key=…): Arrow takes no SSLContext")
    given = {"tls_root_certs": tls.ca, "cert_chain": tls.cert, "private_key": tls.key or tls.cert}
    try:
        return {name: Path(path).read_bytes() for name, path in given.items() if path is not None}
    except OSError as error:
        raise InvalidOption(f"`tls` names a file that cannot be read: {error}") from None


class Patience:
    """How long to go on trying, and how long to wait in between."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.begin_anew()

    def begin_anew(self) -> None:
        """Something went well: the time begins again."""
        self._until = time.monotonic() + self._seconds
        self._pause = 0.02

    def wait(self, error: Unavailable) -> None:
        """Before the next attempt. Raises the error when there is no time left."""
        if time.monotonic() + self._pause > self._until:
            raise error
        time.sleep(self._pause)
        self._pause = min(1.0, self._pause * 2)
