"""A broker behind TLS that wants a token or a certificate with every call."""

from __future__ import annotations

import http.client
import json
import ssl
from pathlib import Path
from typing import Any

from bascule import TlsOptions
from tests.support.api_client import Api, grpc
from tests.support.broker_fixtures import StartBroker
from tests.support.certificates import Authority
from tests.support.users import Provider, TokenFile
from tests.support.waiting import eventually


class GuardedBroker:
    def __init__(self, start_broker: StartBroker, directory: Path, config: dict[str, Any] | None = None) -> None:
        directory.mkdir(exist_ok=True)
        self.authority = Authority(directory)
        self.tokens = TokenFile(directory / "tokens")
        self.provider = Provider(directory / "keys.json")
        server = self.authority.issue("server")
        self.broker = start_broker(
            {
                "tls.cert": str(server.cert),
                "tls.key": str(server.key),
                "security.tokens.file": str(self.tokens.path),
                **self.provider.config(),
                **(config or {}),
            },
            launch_only=True,
        )
        self.addresses: dict[str, str] = eventually(self._addresses, "the broker serves")
        self.address = self.addresses["grpc"]

    def _addresses(self) -> dict[str, str] | None:
        assert self.broker.is_running, self.broker.tail()
        file = self.broker.addresses_file
        return json.loads(file.read_text()) if file.exists() else None

    @property
    def tls(self) -> TlsOptions:
        return TlsOptions(ca=self.authority.file)

    def api(self, token: str | None = None, certificate: str | None = None) -> Api:
        """A client of gRPC's own library, with a token in the credentials of its calls."""
        credentials = self.authority.credentials(None if certificate is None else self.authority.issue(certificate))
        if token is not None:
            credentials = grpc.composite_channel_credentials(credentials, grpc.access_token_call_credentials(token))
        return Api(self.address, credentials)

    def get(self, path: str, authorization: str | None = None) -> tuple[int, str, str | None]:
        """Status, text and `WWW-Authenticate` of the HTTP port."""
        context = ssl.create_default_context(cafile=self.authority.file)
        host, _, port = self.addresses["http"].rpartition(":")
        connection = http.client.HTTPSConnection(host, int(port), context=context, timeout=60)
        connection.request("GET", path, headers={} if authorization is None else {"Authorization": authorization})
        answer = connection.getresponse()
        found = answer.status, answer.read().decode(), answer.getheader("WWW-Authenticate")
        connection.close()
        return found
