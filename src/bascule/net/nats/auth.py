"""A broker's login to NATS: user and password, a token, an nkey, a credentials file or a client certificate.

An nkey is an Ed25519 key in base32 with a prefix that names its kind and a CRC-16 at the end:

    seed    ┌ 5 bits: seed ┬ 8 bits: kind, 3 bits: 0 ┬ 32 bytes ┬ crc16, little-endian ┐     "SU…" for a user
    public  ┌ 8 bits: kind ┬ 32 bytes ┬ crc16, little-endian ┐                               "U…"

The server sends a nonce with its INFO, the client answers with the nonce's signature. A credentials file holds a user's JWT,
which names the public key, and the seed.
"""

from __future__ import annotations

import base64
import binascii
import re
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bascule.errors import InvalidConfig, OperatorError

if TYPE_CHECKING:
    # Imported here since only nkeys need it.
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

PREFIX_SEED: Final = 18 << 3
PREFIX_USER: Final = 20 << 3
SEED_BYTES: Final = 32

_BLOCK: Final = re.compile(r"-{3,}BEGIN ([A-Z ]+)-{3,}\s+(\S+)\s+-{3,}END \1-{3,}")
_SEED_LINE: Final = re.compile(r"\bSU[A-Z2-7]{56}\b")


def crc16(data: bytes) -> int:
    """CRC-16/XMODEM, which Python calls after its use in BinHex."""
    return binascii.crc_hqx(data, 0)


@dataclass(frozen=True, slots=True)
class Nkey:
    """A user's key pair."""

    private: Ed25519PrivateKey = field(repr=False)

    @classmethod
    def from_seed(cls, text: str) -> Nkey:
        """Read an encoded seed. The text of a ValueError never contains the seed."""
        try:
            raw = base64.b32decode(text + "=" * (-len(text) % 8))
        except (binascii.Error, ValueError):
            raise ValueError("it is not base32") from None
        if len(raw) != 2 + SEED_BYTES + 2:
            raise ValueError(f"it has {len(raw)} bytes, a seed has {2 + SEED_BYTES + 2}")
        if crc16(raw[:-2]) != int.from_bytes(raw[-2:], "little"):
            raise ValueError("its checksum is wrong")
        if raw[0] & 0xF8 != PREFIX_SEED:
            raise ValueError("it is a key, but not a seed")
        if (raw[0] & 0x07) << 5 | raw[1] >> 3 != PREFIX_USER:
            raise ValueError("it is a seed, but not a user's")
        try:
            from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        except ImportError:
            raise OperatorError(
                "logging in to NATS with a key needs the package `cryptography`", hint="pip install 'bascule[server]'"
            ) from None
        return cls(Ed25519PrivateKey.from_private_bytes(raw[2:-2]))

    @property
    def public(self) -> str:
        raw = self.private.public_key().public_bytes_raw()
        body = bytes((PREFIX_USER,)) + raw
        return base64.b32encode(body + crc16(body).to_bytes(2, "little")).decode().rstrip("=")

    def sign(self, nonce: str) -> str:
        return base64.urlsafe_b64encode(self.private.sign(nonce.encode())).decode().rstrip("=")


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """The login: one of user and password, token, nkey and credentials, or nothing.

    Files are read for each connection, so that the next connection uses a replaced key.
    """

    user: str | None = None
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    nkey_seed: Path | None = None
    creds: Path | None = None

    def __post_init__(self) -> None:
        given = [self.user is not None, self.token is not None, self.nkey_seed is not None, self.creds is not None]
        if sum(given) > 1:
            raise InvalidConfig(
                "there is more than one way to log in to NATS",
                hint="set one of `nats.user`, `nats.token`, `nats.nkey.seed` and `nats.creds`",
            )

    @property
    def is_empty(self) -> bool:
        return self.user is None and self.token is None and not self.signs

    @property
    def signs(self) -> bool:
        """Whether the server's nonce has to be signed."""
        return self.nkey_seed is not None or self.creds is not None

    def answer(self, nonce: str | None) -> dict[str, str]:
        """Return the fields of CONNECT that authenticate the client."""
        if self.user is not None:
            return {"user": self.user, "pass": self.password or ""}
        if self.token is not None:
            return {"auth_token": self.token}
        if not self.signs:
            return {}
        if nonce is None:
            # A server without a nonce wants no signature; one that wants it refuses the login and says so.
            return {}
        if self.nkey_seed is not None:
            key = read_seed(self.nkey_seed)
            return {"nkey": key.public, "sig": key.sign(nonce)}
        assert self.creds is not None  # else `signs` is false
        jwt, key = read_creds(self.creds)
        return {"jwt": jwt, "sig": key.sign(nonce)}

    def check(self) -> None:
        """Read the files once, so that a broker with an unusable file does not start."""
        if self.nkey_seed is not None:
            read_seed(self.nkey_seed)
        if self.creds is not None:
            read_creds(self.creds)


def read_seed(path: Path) -> Nkey:
    """Return the key in a file that contains a user's seed among other lines."""
    found = _SEED_LINE.search(_read(path))
    if found is None:
        raise OperatorError(
            f"`{path}` holds no seed of a user", hint="`nats.nkey.seed` names a file with a line that begins with `SU`"
        )
    return _key(path, found.group())


def read_creds(path: Path) -> tuple[str, Nkey]:
    """Return the JWT and the key in a credentials file."""
    blocks = dict(_BLOCK.findall(_read(path)))
    jwt, seed = blocks.get("NATS USER JWT"), blocks.get("USER NKEY SEED")
    if jwt is None or seed is None:
        missing = "NATS USER JWT" if jwt is None else "USER NKEY SEED"
        raise OperatorError(
            f"`{path}` holds no `{missing}`", hint="write it with `nsc generate creds`, then set `nats.creds` to it"
        )
    return jwt, _key(path, seed)


def _key(path: Path, seed: str) -> Nkey:
    try:
        return Nkey.from_seed(seed)
    except ValueError as error:
        raise OperatorError(f"the seed in `{path}` cannot be used: {error}", hint="write the file again") from None


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise OperatorError(
            f"cannot read `{path}`: {reason}", hint="check `nats.nkey.seed` or `nats.creds`, and who may read it"
        ) from None


def client_tls(cert: Path | None = None, key: Path | None = None, ca: Path | None = None) -> ssl.SSLContext:
    """TLS after `nats.tls.*`: the server's certificate must be of `ca`, or of an authority that the system trusts."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        if ca is None:
            context.load_default_certs()
        else:
            context.load_verify_locations(ca)
        if cert is not None:
            context.load_cert_chain(cert, key)
    except (OSError, ssl.SSLError) as error:
        raise OperatorError(
            f"cannot use the certificates for NATS: {error.strerror or error}",
            hint="check `nats.tls.cert`, `nats.tls.key` and `nats.tls.ca`",
        ) from None
    return context
