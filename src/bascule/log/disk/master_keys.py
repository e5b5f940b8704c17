"""Master keys, which wrap the data keys of encrypted batches, and the places that they come from.

    environment   BASCULE_ENCRYPTION_KEY: the bytes of the current key; BASCULE_ENCRYPTION_PREVIOUS_KEYS: others in hexadecimal
    file          a key in hexadecimal on each line, the current one first; `#` begins a comment
    command       its output has the form of the file

A key is known by its id, a hash of eight digits. Ids, but never keys, appear in logs, errors and answers.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from bascule import limits
from bascule.errors import EncryptionKeyError

KEY_VARIABLES: Final = ("BASCULE_ENCRYPTION_KEY", "LIFTBRIDGE_ENCRYPTION_KEY")
PREVIOUS_KEYS_VARIABLE: Final = "BASCULE_ENCRYPTION_PREVIOUS_KEYS"
DATA_KEY_BYTES: Final = 32
SIZES: Final = (16, 32)


def key_id(key: bytes) -> str:
    """Return the id of a master key: eight hexadecimal digits that do not tell the key."""
    return hashlib.blake2b(key, digest_size=4, person=b"bascule-key").hexdigest()


class MasterKeys:
    """The key that wraps new data keys, and previous keys that can still unwrap. Open logs share it: `switch` changes all of them."""

    def __init__(self, current: bytes, previous: Sequence[bytes] = ()) -> None:
        for key in (current, *previous):
            if len(key) not in SIZES:
                raise EncryptionKeyError(
                    f"invalid AES key size: the master key has {len(key)} bytes",
                    hint=f"set {KEY_VARIABLES[0]} to exactly 16 or 32 bytes",
                )
        self._keys = tuple(dict.fromkeys((current, *previous)))
        self.generation = 0
        """Changes with the current key."""

    @property
    def ids(self) -> tuple[str, ...]:
        """Return the ids of all keys, that of the current key first."""
        return tuple(key_id(key) for key in self._keys)

    def learn(self, others: MasterKeys) -> None:
        """Add keys that can unwrap. The current key stays."""
        self._keys = tuple(dict.fromkeys((*self._keys, *others._keys)))

    def switch(self, others: MasterKeys) -> None:
        """Take over the current key of `others`. All keys known so far can still unwrap."""
        changed = others._keys[0] != self._keys[0]
        self._keys = tuple(dict.fromkeys((*others._keys, *self._keys)))
        self.generation += changed

    def wrap(self, data_key: bytes) -> bytes:
        wrapped: bytes = _keywrap().aes_key_wrap_with_padding(self._keys[0], data_key)
        return wrapped

    def unwrap(self, wrapped: bytes) -> bytes:
        for key in self._keys:
            data_key = _try_unwrap(key, wrapped)
            if data_key is not None:
                return data_key
        raise EncryptionKeyError(
            "none of the master keys decrypts this batch",
            hint=f"give the key it was written with as a previous key: a further line of `encryption.key.file`, or "
            f"{PREVIOUS_KEYS_VARIABLE} (hexadecimal, comma-separated)",
        )

    def id_of(self, wrapped: bytes) -> str | None:
        """Return the id of the key that wraps a data key; None if this server does not have it."""
        return next((key_id(key) for key in self._keys if _try_unwrap(key, wrapped) is not None), None)


# ── sources ──────────────────────────────────────────────────────────────────────────────────────


class KeySource(Protocol):
    def load(self) -> MasterKeys | None:
        """Return the keys as they are now; None if there are none. Raises EncryptionKeyError for keys that cannot be used."""

    def __str__(self) -> str:
        """Return the name of the source, for messages."""


class EnvironmentKeys:
    """The environment of the process, which does not change while it runs."""

    def load(self) -> MasterKeys | None:
        return master_keys_from_environment()

    def __str__(self) -> str:
        return "the environment"


@dataclass(frozen=True, slots=True)
class KeyFile:
    path: Path

    def load(self) -> MasterKeys:
        try:
            with self.path.open("rb") as file:
                data = file.read(limits.MASTER_KEYS_BYTES_MAX + 1)
        except OSError as error:
            raise EncryptionKeyError(
                f"{self} cannot be read: {error.strerror}",
                hint="correct `encryption.key.file`, or the rights of the file",
            ) from None
        return parse_keys(data, str(self))

    def __str__(self) -> str:
        return f"the key file {self.path}"


@dataclass(frozen=True, slots=True)
class KeyCommand:
    """A program that prints the keys, such as a client of a vault. It is run without a shell, at the start and at each rotation."""

    command: tuple[str, ...]

    def load(self) -> MasterKeys:
        try:
            done = subprocess.run(
                self.command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=limits.MASTER_KEYS_COMMAND_SECONDS,
                check=False,
            )
        except OSError as error:
            raise EncryptionKeyError(
                f"{self} cannot be run: {error.strerror}", hint="correct `encryption.key.command`"
            ) from None
        except subprocess.TimeoutExpired:
            raise EncryptionKeyError(
                f"{self} has not ended within {limits.MASTER_KEYS_COMMAND_SECONDS:g} s",
                hint="run it by hand as the broker's user",
            ) from None
        if done.returncode != 0:
            lines = done.stderr.decode(errors="replace").strip().splitlines()
            said = f": {lines[-1][:200]}" if lines else ""
            raise EncryptionKeyError(
                f"{self} has failed with exit code {done.returncode}{said}", hint="run it by hand as the broker's user"
            )
        return parse_keys(done.stdout, str(self))

    def __str__(self) -> str:
        return f"the key command `{self.command[0]}`"


def parse_keys(data: bytes, source: str) -> MasterKeys:
    """Parse the content of a key file. Messages name the line, never its content."""
    if len(data) > limits.MASTER_KEYS_BYTES_MAX:
        raise EncryptionKeyError(
            f"{source} gives more than {limits.MASTER_KEYS_BYTES_MAX} bytes",
            hint="give one key in hexadecimal on each line",
        )
    found = []
    for number, line in enumerate(data.splitlines(), 1):
        text = line.partition(b"#")[0].strip()
        if not text:
            continue
        try:
            key = bytes.fromhex(text.decode("ascii"))
        except ValueError:
            key = b""
        if len(key) not in SIZES:
            raise EncryptionKeyError(
                f"line {number} of {source} is not a key",
                hint="a key is 32 or 64 hexadecimal digits: `openssl rand -hex 32` makes one",
            )
        found.append(key)
    if not found:
        raise EncryptionKeyError(f"{source} has no key", hint="`openssl rand -hex 32` makes one")
    return MasterKeys(found[0], found[1:])


def master_keys_from_environment(environ: Mapping[bytes, bytes] | None = None) -> MasterKeys | None:
    """Return the keys in the environment; None if there is no current one. Raises EncryptionKeyError for an invalid key."""
    variables = os.environb if environ is None else environ
    current = next((variables[name.encode()] for name in KEY_VARIABLES if name.encode() in variables), None)
    if current is None:
        return None
    previous = variables.get(PREVIOUS_KEYS_VARIABLE.encode(), b"")
    return MasterKeys(current, [_from_hex(text) for text in previous.split(b",") if text.strip()])


def _from_hex(text: bytes) -> bytes:
    try:
        return bytes.fromhex(text.strip().decode("ascii"))
    except ValueError:
        raise EncryptionKeyError(
            f"{PREVIOUS_KEYS_VARIABLE} is not hexadecimal",
            hint="give the previous keys as hexadecimal digits, separated by commas",
        ) from None


# ── wrapping ─────────────────────────────────────────────────────────────────────────────────────


def _try_unwrap(key: bytes, wrapped: bytes) -> bytes | None:
    keywrap = _keywrap()
    try:
        data_key: bytes = keywrap.aes_key_unwrap_with_padding(key, wrapped)
    except (keywrap.InvalidUnwrap, ValueError):
        return None
    return data_key if len(data_key) == DATA_KEY_BYTES else None


def cryptography(module: str) -> Any:
    """Return a module of the package `cryptography`. Raises EncryptionKeyError if it is not installed."""
    import importlib

    try:
        return importlib.import_module(f"cryptography.{module}")
    except ImportError:
        raise EncryptionKeyError(
            "encryption at rest needs the package `cryptography`",
            hint='install it with `pip install "bascule[server]"`',
        ) from None


def _keywrap() -> Any:
    return cryptography("hazmat.primitives.keywrap")
