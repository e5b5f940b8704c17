"""TLS contexts of listeners and clients, with ALPN and client certificates."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from bascule.errors import InvalidConfig

_CRL_HINT: Final = "give a PEM file with a list of each authority that signs client certificates"


def server_tls(
    certificate: Path | str | None,
    key: Path | str | None,
    *,
    client_ca: Path | str | None = None,
    client_crl: Path | str | None = None,
    requires_client: bool = False,
    allows_no_client: bool = False,
    protocol: str = "h2",
) -> ssl.SSLContext:
    """TLS 1.2 or newer, for one protocol as ALPN names it.

    With `requires_client`, clients need a certificate of `client_ca`, or of an authority the system trusts, that `client_crl` does not
    revoke. With `allows_no_client` too, a client may present none.
    """
    if certificate is None or key is None:
        raise InvalidConfig("TLS needs a certificate and its key", hint="set `tls.cert` and `tls.key`")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols([protocol])
    _load_certificate(context, certificate, key)
    if requires_client:
        context.verify_mode = ssl.CERT_OPTIONAL if allows_no_client else ssl.CERT_REQUIRED
        # A resumed session would skip the check of the certificate.
        context.options |= ssl.OP_NO_TICKET
        context.num_tickets = 0
        try:
            if client_ca is None:
                context.load_default_certs(ssl.Purpose.CLIENT_AUTH)
            else:
                context.load_verify_locations(client_ca)
        except OSError as error:
            raise InvalidConfig(
                f"client authority {client_ca} cannot be used: {error}", hint="give a PEM file"
            ) from None
        if client_crl is not None:
            _load_revocations(context, client_crl)
    return context


def _load_revocations(context: ssl.SSLContext, client_crl: Path | str) -> None:
    before = context.cert_store_stats()["crl"]
    try:
        context.load_verify_locations(client_crl)
    except OSError as error:
        raise InvalidConfig(f"`tls.client.crl`, {client_crl}, cannot be used: {error}", hint=_CRL_HINT) from None
    if context.cert_store_stats()["crl"] == before:
        raise InvalidConfig(f"`tls.client.crl`, {client_crl}, has no revocation list", hint=_CRL_HINT)
    context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF


def client_tls(
    ca: Path | str | None = None, certificate: Path | str | None = None, key: Path | str | None = None
) -> ssl.SSLContext:
    """TLS 1.2 or newer. The server's certificate must be of `ca`, or of an authority the system trusts, and for its name."""
    try:
        context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=ca)
    except OSError as error:
        raise InvalidConfig(f"authority {ca} cannot be used: {error}", hint="give a PEM file") from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["h2"])
    if certificate is not None:
        _load_certificate(context, certificate, certificate if key is None else key)
    elif key is not None:
        raise InvalidConfig(f"key {key} was given without its certificate", hint="give both, as PEM files")
    return context


def _load_certificate(context: ssl.SSLContext, certificate: Path | str, key: Path | str) -> None:
    try:
        context.load_cert_chain(certificate, key, password=_no_password)
    except (OSError, ValueError) as error:
        raise InvalidConfig(
            f"certificate {certificate} and key {key} cannot be used: {error}",
            hint="both are PEM files; the key must be the certificate's own and must not ask for a password",
        ) from None


def _no_password() -> str:
    raise ValueError("it is encrypted")


def common_name(certificate: Mapping[str, Any] | None) -> str | None:
    """The subject's common name of a verified certificate, as `ssl` shows it; None without certificate or name."""
    for relative_name in (certificate or {}).get("subject", ()):
        for field, value in relative_name:
            if field == "commonName":
                return str(value)
    return None
