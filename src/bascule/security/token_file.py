"""Static tokens: their text, their hashes, and the file that holds the hashes.

    bascule_<id>_<secret>      id: 12 hexadecimal digits, not secret; secret: 64 hexadecimal digits from the system's random source

A file has one line for each token; `#` begins a comment:

    <id> <user> <roles, with commas, or -> <expiry in UTC, or -> scrypt$<n>$<r>$<p>$<salt>$<hash>

The id finds the line, so that a token costs one hash at most and an unknown id costs none. Salt and hash are hexadecimal. The file
is readable by its owner only; it has no secrets, but an attacker with the hashes can test guesses without the broker.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from bascule import limits
from bascule.errors import CallerError, InvalidConfig, OperatorError, StateError
from bascule.security.identity import Identity, user_name_fault

PREFIX: Final = "bascule_"
SCRYPT_N: Final = 1 << 14
SCRYPT_R: Final = 8
SCRYPT_P: Final = 1
"""About 60 ms and 16 MiB for each verification."""

SCRYPT_N_MAX: Final = 1 << 17
SCRYPT_MEMORY_BYTES_MAX: Final = 256 << 20
ID_CHARACTERS: Final = 12
SECRET_CHARACTERS: Final = 64
NONE: Final = "-"
TIME_FORMAT: Final = "%Y-%m-%dT%H:%M:%SZ"
_HEX: Final = frozenset("0123456789abcdef")
_HINT: Final = "lines are `<id> <user> <roles or -> <expiry or -> scrypt$…`; `bascule token create` writes them"


@dataclass(frozen=True, slots=True)
class StaticToken:
    """One line of the file."""

    id: str
    identity: Identity
    n: int
    r: int
    p: int
    salt: bytes
    digest: bytes

    def matches(self, secret: str) -> bool:
        """Return whether this is the token's secret. Takes about 60 ms, without the GIL."""
        found = _scrypt(secret, self.salt, self.n, self.r, self.p, len(self.digest))
        return hmac.compare_digest(found, self.digest)

    def line(self) -> str:
        identity = self.identity
        expiry = NONE if identity.expires_at is None else _utc(identity.expires_at).strftime(TIME_FORMAT)
        hashed = f"scrypt${self.n}${self.r}${self.p}${self.salt.hex()}${self.digest.hex()}"
        return f"{self.id} {identity.name} {','.join(identity.roles) or NONE} {expiry} {hashed}"


def create_token(identity: Identity) -> tuple[str, StaticToken]:
    """Return a new token's text, which is shown once, and its line for the file."""
    for name in (identity.name, *identity.roles):
        fault = user_name_fault(name)
        if fault is not None or name == NONE:
            raise CallerError(
                f"`{name}` cannot be the name of a user or a role: {fault or 'it is a dash'}",
                hint="give a name of printable characters without spaces and commas",
            )
    number, secret, salt = (
        secrets.token_hex(ID_CHARACTERS // 2),
        secrets.token_hex(SECRET_CHARACTERS // 2),
        os.urandom(16),
    )
    digest = _scrypt(secret, salt, SCRYPT_N, SCRYPT_R, SCRYPT_P, 32)
    return f"{PREFIX}{number}_{secret}", StaticToken(number, identity, SCRYPT_N, SCRYPT_R, SCRYPT_P, salt, digest)


def split_token(text: str) -> tuple[str, str] | None:
    """Return id and secret of a static token, None for any other text."""
    number, underscore, secret = text.removeprefix(PREFIX).partition("_")
    if not text.startswith(PREFIX) or not underscore:
        return None
    if len(number) != ID_CHARACTERS or len(secret) != SECRET_CHARACTERS or not _HEX.issuperset(number + secret):
        return None
    return number, secret


# ── the file ─────────────────────────────────────────────────────────────────────────────────────


def read_tokens(path: Path) -> dict[str, StaticToken]:
    """Return the tokens of a file by id. Raises InvalidConfig with the number of a line that is not valid."""
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidConfig(f"token file {path} cannot be read: {error}", hint=_HINT) from None
    if len(lines) > limits.TOKENS_IN_FILE_MAX:
        raise InvalidConfig(f"token file {path} has {len(lines)} lines", hint=f"at most {limits.TOKENS_IN_FILE_MAX}")
    found: dict[str, StaticToken] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        try:
            token = _parse(line)
        except ValueError as error:
            raise InvalidConfig(f"{path}, line {number}, is not a token: {error}", hint=_HINT) from None
        if token.id in found:
            raise InvalidConfig(f"{path}, line {number}: there is another token with the id {token.id}", hint=_HINT)
        found[token.id] = token
    return found


def add_token(path: Path, token: StaticToken) -> None:
    """Append a token; the file is made if there is none."""
    known = read_tokens(path).values() if path.exists() else ()
    _write(path, (*known, token))


def remove_token(path: Path, number: str) -> StaticToken:
    """Remove the token with this id. Raises StateError when there is none."""
    known = read_tokens(path)
    found = known.pop(number, None)
    if found is None:
        raise StateError(f"{path} has no token with the id `{number}`", hint="`bascule token list` shows the ids")
    _write(path, known.values())
    return found


def _write(path: Path, tokens: Iterable[StaticToken]) -> None:
    """Replace the file atomically; its owner alone can read it."""
    text = "".join(f"{token.line()}\n" for token in tokens)
    temporary = ""
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".tokens-")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            Path(temporary).unlink(missing_ok=True)
        raise OperatorError(f"token file {path} cannot be written: {error.strerror}") from None


def _parse(line: str) -> StaticToken:
    fields = line.split()
    if len(fields) != 5:
        raise ValueError(f"it has {len(fields)} fields instead of 5")
    number, user, roles, expiry, hashed = fields
    if len(number) != ID_CHARACTERS or not _HEX.issuperset(number):
        raise ValueError(f"the id {number!r} is not {ID_CHARACTERS} hexadecimal digits")
    granted = () if roles == NONE else tuple(roles.split(","))
    for name in (user, *granted):
        fault = user_name_fault(name)
        if fault is not None:
            raise ValueError(f"the name {name!r} cannot be used: {fault}")
    return StaticToken(number, Identity(user, granted, _expiry(expiry)), *_hash(hashed))


def _expiry(text: str) -> float | None:
    if text == NONE:
        return None
    try:
        return datetime.strptime(text, TIME_FORMAT).replace(tzinfo=UTC).timestamp()
    except ValueError:
        raise ValueError(f"the expiry {text!r} is not a time such as 2027-01-31T00:00:00Z") from None


def _hash(text: str) -> tuple[int, int, int, bytes, bytes]:
    try:
        kind, n, r, p, salt, digest = text.split("$")
        parsed = int(n), int(r), int(p), bytes.fromhex(salt), bytes.fromhex(digest)
    except ValueError:
        raise ValueError("its hash is not `scrypt$n$r$p$salt$hash`") from None
    cost = parsed[:3]
    fits = 2 <= cost[0] <= SCRYPT_N_MAX and cost[0] & (cost[0] - 1) == 0 and 1 <= cost[1] <= 16 and 1 <= cost[2] <= 4
    if kind != "scrypt" or not fits or len(parsed[3]) < 16 or not 32 <= len(parsed[4]) <= 64:
        raise ValueError("its hash has parameters outside of the supported range")
    return parsed


def _scrypt(secret: str, salt: bytes, n: int, r: int, p: int, size: int) -> bytes:
    return hashlib.scrypt(secret.encode(), salt=salt, n=n, r=r, p=p, maxmem=SCRYPT_MEMORY_BYTES_MAX, dklen=size)


def _utc(unix: float) -> datetime:
    return datetime.fromtimestamp(unix, UTC)
