"""Handshakes before and after the files of a port were read again."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from bascule.errors import InvalidConfig, PermissionDenied, Unavailable
from bascule.net.reloadable_tls import ReloadableTls
from bascule.net.tls import server_tls
from tests.support.certificates import Authority, Certificate


class Port:
    def __init__(self, directory: Path) -> None:
        self.authority = Authority(directory)
        own = self.authority.issue("server")
        self.ca, self.crl = directory / "clients.pem", directory / "clients.crl"
        self.ca.write_bytes(self.authority.file.read_bytes())
        self.authority.revoke(self.crl)
        self.tls = ReloadableTls(
            lambda: server_tls(own.cert, own.key, client_ca=self.ca, client_crl=self.crl, requires_client=True),
            self.ca,
            self.crl,
        )

    def reload(self) -> None:
        self.tls.use(self.tls.read())

    def client(self, own: Certificate, newest: ssl.TLSVersion) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.authority.file))
        context.maximum_version = newest
        context.load_cert_chain(own.cert, own.key)
        return context

    def connect(
        self, client_context: ssl.SSLContext, session: ssl.SSLSession | None = None
    ) -> tuple[ssl.SSLObject, ssl.SSLObject]:
        """Client and server after the handshake. Raises SSLError."""
        to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
        server = self.tls.context.wrap_bio(to_server, to_client, server_side=True)
        client = client_context.wrap_bio(to_client, to_server, server_hostname="localhost", session=session)
        waiting = [client, server]
        while waiting:
            for one in list(waiting):
                try:
                    one.do_handshake()
                    waiting.remove(one)
                except ssl.SSLWantReadError:
                    continue
        return client, server


VERSIONS = [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3]


@pytest.mark.parametrize("version", VERSIONS)
def test_new_handshakes_see_the_new_files(tmp_path: Path, version: ssl.TLSVersion) -> None:
    port = Port(tmp_path)
    own = port.authority.issue("bob")
    context = port.client(own, version)
    _, server = port.connect(context)
    assert port.tls.fault(server) is None
    port.authority.revoke(port.crl, own)
    port.reload()
    assert isinstance(port.tls.fault(server), PermissionDenied)
    with pytest.raises(ssl.SSLError, match="revoked"):
        port.connect(context)
    port.authority.revoke(port.crl)
    port.reload()
    assert port.tls.fault(server) is None
    port.connect(context)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_resumed_session_does_not_outlive_its_authority(tmp_path: Path, version: ssl.TLSVersion) -> None:
    port = Port(tmp_path)
    context = port.client(port.authority.issue("bob"), version)
    client, server = port.connect(context)
    session = client.session
    other = Authority(tmp_path, "other")
    port.ca.write_bytes(other.file.read_bytes())
    port.reload()
    assert isinstance(port.tls.fault(server), Unavailable)
    try:
        _, resumed = port.connect(context, session)
    except ssl.SSLError:
        return  # not resumed: the certificate was checked
    assert isinstance(port.tls.fault(resumed), Unavailable)


def test_files_without_change_keep_connections(tmp_path: Path) -> None:
    port = Port(tmp_path)
    _, server = port.connect(port.client(port.authority.issue("bob"), ssl.TLSVersion.TLSv1_3))
    port.reload()
    assert port.tls.fault(server) is None


@pytest.mark.parametrize("content", [b"", b"no list", b"-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n"])
def test_a_file_without_a_list_is_refused(tmp_path: Path, content: bytes) -> None:
    port = Port(tmp_path)
    port.crl.write_bytes(content)
    with pytest.raises(InvalidConfig, match=r"tls\.client\.crl"):
        port.tls.read()
    port.crl.write_bytes(port.authority.file.read_bytes())
    with pytest.raises(InvalidConfig, match="no revocation list"):
        port.tls.read()
