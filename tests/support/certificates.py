"""A certificate authority for an afternoon, and certificates from it, as files."""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.support.api_client import grpc

_BEGIN: Final = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
_END: Final = datetime.datetime(2099, 1, 1, tzinfo=datetime.UTC)


@dataclass(frozen=True)
class Certificate:
    cert: Path
    key: Path


class Authority:
    def __init__(self, directory: Path, name: str = "test authority") -> None:
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _named(name)
        builder = _builder(self._name, self._name, self._key.public_key())
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        self._cert = builder.sign(self._key, hashes.SHA256())
        self.file = directory / f"{name.replace(' ', '-')}.pem"
        self.file.write_bytes(self._cert.public_bytes(serialization.Encoding.PEM))

    def issue(self, common_name: str | None) -> Certificate:
        """For localhost, and for whoever calls itself `common_name`."""
        key = ec.generate_private_key(ec.SECP256R1())
        addresses = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        builder = _builder(_named(common_name), self._name, key.public_key())
        builder = builder.add_extension(x509.SubjectAlternativeName(addresses), critical=common_name is None)
        cert = builder.sign(self._key, hashes.SHA256())
        stem = self._directory / (common_name or "nameless")
        issued = Certificate(stem.with_suffix(".crt"), stem.with_suffix(".key"))
        issued.cert.write_bytes(cert.public_bytes(serialization.Encoding.PEM))
        issued.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return issued

    def revoke(self, file: Path, *revoked: Certificate, days: int = 365) -> None:
        """Write the list of revoked certificates, which is valid for some days from now."""
        now = datetime.datetime.now(datetime.UTC)
        builder = x509.CertificateRevocationListBuilder().issuer_name(self._name)
        builder = builder.last_update(now - datetime.timedelta(days=400)).next_update(
            now + datetime.timedelta(days=days)
        )
        for one in revoked:
            serial = x509.load_pem_x509_certificate(one.cert.read_bytes()).serial_number
            entry = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(now).build()
            builder = builder.add_revoked_certificate(entry)
        file.write_bytes(builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))

    def credentials(self, own: Certificate | None = None) -> Any:
        """What a channel needs to trust a server of this authority, and to show `own`."""
        if own is None:
            return grpc.ssl_channel_credentials(self.file.read_bytes())
        return grpc.ssl_channel_credentials(self.file.read_bytes(), own.key.read_bytes(), own.cert.read_bytes())


def _named(common_name: str | None) -> x509.Name:
    return x509.Name([] if common_name is None else [x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(_BEGIN)
        .not_valid_after(_END)
    )
