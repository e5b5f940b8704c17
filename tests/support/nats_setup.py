"""A real nats-server with a configuration of its own, and what is needed to log in to it: certificates, nkeys, credentials."""

from __future__ import annotations

import base64
import datetime
import ipaddress
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tests.support.nats_server import NatsServer, binary


class ConfiguredNats(NatsServer):
    """`config` is all but the address."""

    def __init__(self, directory: Path, config: str) -> None:
        super().__init__(directory)
        self.config = config

    def start(self) -> None:
        ports = self._directory / "ports"
        shutil.rmtree(ports, ignore_errors=True)
        ports.mkdir(parents=True)
        file = self._directory / "nats.conf"
        file.write_text(f'listen: "127.0.0.1:{self.port}"\n{self.config}', "utf-8")
        command = [binary(), "-c", str(file), "--ports_file_dir", str(ports), "-l", str(self._directory / "nats.log")]
        self._process = subprocess.Popen(command)
        self.port = self._wait_for_port(ports)


# ── certificates ─────────────────────────────────────────────────────────────────────────────────


class Authority:
    """Signs certificates into a directory; `ca` is its own."""

    def __init__(self, directory: Path, name: str = "ca") -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._certificate = self._sign(self._name, self._key.public_key(), is_authority=True)
        self.ca = directory / f"{name}.crt"
        self.ca.write_bytes(self._certificate.public_bytes(Encoding.PEM))

    def issue(self, name: str) -> tuple[Path, Path]:
        """A certificate for 127.0.0.1 and localhost, and its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = self._sign(subject, key.public_key(), is_authority=False)
        cert_file, key_file = self._directory / f"{name}.crt", self._directory / f"{name}.key"
        cert_file.write_bytes(certificate.public_bytes(Encoding.PEM))
        key_file.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        return cert_file, key_file

    def _sign(self, subject: x509.Name, key: ec.EllipticCurvePublicKey, *, is_authority: bool) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        hosts = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        uses = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        )
        if is_authority:
            usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
            builder = builder.add_extension(usage, critical=True)
        else:
            builder = builder.add_extension(x509.SubjectAlternativeName(hosts), critical=False)
            builder = builder.add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        return builder.sign(self._key, hashes.SHA256())


def tls_config(authority: Authority, *, verify: bool) -> str:
    cert, key = authority.issue("server")
    return (
        f'tls {{ cert_file: "{cert}", key_file: "{key}", ca_file: "{authority.ca}", verify: {json.dumps(verify)}, '
        "timeout: 10 }\n"
    )


# ── nkeys and JWTs, written down from their description and not with the code under test ────────


class KeyPair:
    """An nkey; `kind` is the letter its public form begins with."""

    PREFIXES = {"O": 14 << 3, "A": 0, "U": 20 << 3}  # noqa: RUF012

    def __init__(self, kind: str) -> None:
        self._private = Ed25519PrivateKey.generate()
        self._prefix = self.PREFIXES[kind]

    @property
    def public(self) -> str:
        raw = self._private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        return _base32(bytes([self._prefix]) + raw)

    @property
    def seed(self) -> str:
        raw = self._private.private_bytes(Encoding.Raw, PrivateFormat.Raw, NoEncryption())
        seed_prefix = 18 << 3
        head = bytes([seed_prefix | self._prefix >> 5, (self._prefix & 31) << 3])
        return _base32(head + raw)

    def jwt(self, subject: KeyPair, name: str, nats: dict[str, Any]) -> str:
        """Claims about `subject`, signed by this key."""
        claims = {"jti": name, "iat": 1_700_000_000, "iss": self.public, "sub": subject.public, "name": name}
        claims["nats"] = {**nats, "version": 2}
        parts = ({"typ": "JWT", "alg": "ed25519-nkey"}, claims)
        text = ".".join(_base64(json.dumps(part).encode()) for part in parts)
        return f"{text}.{_base64(self._private.sign(text.encode()))}"


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _base32(body: bytes) -> str:
    checksum = 0
    for byte in body:
        checksum ^= byte << 8
        for _ in range(8):
            checksum = (checksum << 1) ^ (0x1021 if checksum & 0x8000 else 0)
        checksum &= 0xFFFF
    return base64.b32encode(body + checksum.to_bytes(2, "little")).decode().rstrip("=")


def operator_config() -> tuple[str, str]:
    """The configuration of a server with an operator and one account, and the credentials of a user of it."""
    operator, account, user = KeyPair("O"), KeyPair("A"), KeyPair("U")
    unlimited = {"subs": -1, "data": -1, "payload": -1}
    account_limits = {**unlimited, "imports": -1, "exports": -1, "wildcards": True, "conn": -1, "leaf": -1}
    operator_jwt = operator.jwt(operator, "operator", {"type": "operator"})
    account_jwt = operator.jwt(account, "account", {"type": "account", "limits": account_limits})
    user_jwt = account.jwt(user, "user", {"type": "user", **unlimited})
    config = f"operator: {operator_jwt}\nresolver: MEMORY\nresolver_preload: {{ {account.public}: {account_jwt} }}\n"
    creds = (
        f"-----BEGIN NATS USER JWT-----\n{user_jwt}\n------END NATS USER JWT------\n\n"
        "************************* IMPORTANT *************************\n"
        "NKEY Seed printed below can be used to sign and prove identity.\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{user.seed}\n------END USER NKEY SEED------\n"
    )
    return config, creds
