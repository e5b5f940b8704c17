"""The TLS of a listening port whose files can be read again: certificate, authorities of clients, and their revocation lists.

A server listens with one context for its whole life, and a context cannot forget an authority. So the handshake of each connection
switches to the newest context, in the callback that also serves for server names. A session that was resumed has skipped the check
of its certificate; tickets are off, but TLS 1.2 can resume by a session id, so `fault` is asked after each handshake, too.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bascule.errors import BasculeError, InvalidConfig, PermissionDenied, Unavailable


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """What was read from the files at one time."""

    context: ssl.SSLContext
    authorities: bytes
    """The content of the file."""
    revoked: frozenset[tuple[bytes, int]]
    """Issuer, in DER, and serial number of revoked certificates."""


class ReloadableTls:
    def __init__(
        self, make: Callable[[], ssl.SSLContext], client_ca: Path | None = None, client_crl: Path | None = None
    ) -> None:
        """`make` reads the files. Raises InvalidConfig when one cannot be used."""
        self._make = make
        self._client_ca = client_ca
        self._client_crl = client_crl
        self._files = self.read()
        self._trusted: list[ssl.SSLContext] = [self._files.context]
        """The contexts with the present authorities."""
        self._changed_authorities = False
        self.context = self._files.context
        self.context.sni_callback = self._choose

    def read(self) -> TlsFiles:
        """Read the files, for `use`. Raises InvalidConfig when one cannot be used."""
        try:
            authorities = b"" if self._client_ca is None else self._client_ca.read_bytes()
        except OSError as error:
            raise InvalidConfig(f"client authority {self._client_ca} cannot be read: {error}") from None
        return TlsFiles(self._make(), authorities, _revoked_in(self._client_crl))

    def use(self, files: TlsFiles) -> None:
        """For new connections."""
        if files.authorities != self._files.authorities:
            self._trusted.clear()
            self._changed_authorities = True
        self._files = files
        self._trusted.append(files.context)

    def fault(self, tls: ssl.SSLObject) -> BasculeError | None:
        """Why a connection may not go on, whose certificate was right when it was made; None if it may."""
        if self._changed_authorities and (tls.session_reused or tls.context not in self._trusted):
            return Unavailable("the authorities of client certificates have changed: connect again")
        if self._files.revoked:
            certificate = tls.getpeercert(binary_form=True)
            if certificate is not None and _name_of(certificate) in self._files.revoked:
                return PermissionDenied("the certificate of the client was revoked")
        return None

    def _choose(self, tls: Any, _name: str | None, context: ssl.SSLContext) -> None:
        """Called within the handshake."""
        if self._files.context is not context:
            tls.context = self._files.context


def _revoked_in(crl: Path | None) -> frozenset[tuple[bytes, int]]:
    """Issuer and serial number of the certificates that the lists of a PEM file revoke."""
    if crl is None:
        return frozenset()
    from cryptography import x509  # an extra of servers

    mark = b"-----BEGIN X509 CRL-----"
    found = set()
    try:
        for part in crl.read_bytes().split(mark)[1:]:
            listed = x509.load_pem_x509_crl(mark + part)
            issuer = listed.issuer.public_bytes()
            found |= {(issuer, one.serial_number) for one in listed}
    except (OSError, ValueError) as error:
        raise InvalidConfig(f"`tls.client.crl`, {crl}, cannot be used: {error}", hint="give a PEM file") from None
    return frozenset(found)


def _name_of(certificate: bytes) -> tuple[bytes, int]:
    from cryptography import x509

    parsed = x509.load_der_x509_certificate(certificate)
    return parsed.issuer.public_bytes(), parsed.serial_number
