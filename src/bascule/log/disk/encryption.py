"""Encryption at rest: AES-256-GCM over whole bodies with a random data key per opened partition, which the master key wraps.

    body               wrapped_len u8 · wrapped data key · nonce, 12 bytes · ciphertext and tag
    associated data    format version 2: version u8 · stream id u64 · partition u32 · header from `count` to `max_timestamp`, 44 bytes
                       format version 1: base offset i64

Every batch contains its wrapped data key, so each start generates a new one, and any server with the master key can read the batch.
The associated data is not stored: a batch that was moved to another offset, partition or stream, or whose header was changed, does not
decrypt. All replicas of a partition have the same stream id and partition, so they can store the leader's bytes unchanged.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bascule import limits
from bascule.errors import EncryptionKeyError

KEY_VARIABLES = ("BASCULE_ENCRYPTION_KEY", "LIFTBRIDGE_ENCRYPTION_KEY")
PREVIOUS_KEYS_VARIABLE = "BASCULE_ENCRYPTION_PREVIOUS_KEYS"

_DATA_KEY_BYTES = 32
_NONCE_BYTES = 12
_TAG_BYTES = 16
_KNOWN_DATA_KEYS_MAX = 64
_BOUND_HEADER = slice(12, 56)  # what no server changes in a sealed batch: `attributes` may get the bit *follows a gap*


@dataclass(frozen=True, slots=True)
class LogIdentity:
    """The stream, by its id in the metadata, and the partition that a log belongs to."""

    stream_id: int = 0
    """0: the log belongs to no stream of a cluster."""
    partition: int = 0

    def associated_data(self, batch: bytes | memoryview) -> bytes:
        """Return the associated data of a batch in format version 2. The batch may be sealed or not."""
        place = b"\x02" + self.stream_id.to_bytes(8, "little") + self.partition.to_bytes(4, "little")
        return place + bytes(batch[_BOUND_HEADER])


class MasterKeys:
    """The key that wraps new data keys, and previous keys that can still unwrap."""

    def __init__(self, current: bytes, previous: Sequence[bytes] = ()) -> None:
        for key in (current, *previous):
            if len(key) not in (16, 32):
                raise EncryptionKeyError(
                    f"invalid AES key size: the master key has {len(key)} bytes",
                    hint=f"set {KEY_VARIABLES[0]} to exactly 16 or 32 bytes",
                )
        self._keys = (current, *previous)

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
            hint=f"put the key it was written with into {PREVIOUS_KEYS_VARIABLE} (hexadecimal, comma-separated)",
        )


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


class BodyCipher:
    """Encrypts and decrypts the bodies of one partition."""

    def __init__(self, keys: MasterKeys) -> None:
        self._keys = keys
        self._aead = _aead()
        self._known: dict[bytes, Any] = {}
        self._new_data_key()

    def _new_data_key(self) -> None:
        data_key = os.urandom(_DATA_KEY_BYTES)
        self._wrapped = self._keys.wrap(data_key)
        self._current = self._aead(data_key)
        self._left = limits.ENCRYPTION_BATCHES_PER_KEY_MAX

    def encrypt(self, body: bytes | memoryview, associated_data: bytes) -> bytes:
        if self._left == 0:
            self._new_data_key()
        self._left -= 1
        nonce = os.urandom(_NONCE_BYTES)
        ciphertext = self._current.encrypt(nonce, bytes(body), associated_data)
        return b"".join((bytes((len(self._wrapped),)), self._wrapped, nonce, ciphertext))

    def decrypt(self, sealed: bytes | memoryview, associated_data: bytes) -> bytes:
        """Return the plain body. Raises ValueError for malformed or moved bytes, EncryptionKeyError without the key."""
        wrapped, nonce, ciphertext = split_sealed(sealed)
        try:
            body: bytes = self._data_key(wrapped).decrypt(nonce, ciphertext, associated_data)
        except _invalid_tag():
            raise ValueError("the ciphertext was changed or moved") from None
        return body

    def _data_key(self, wrapped: bytes) -> Any:
        known = self._known.get(wrapped)
        if known is None:
            if len(self._known) >= _KNOWN_DATA_KEYS_MAX:
                self._known.clear()
            known = self._known[wrapped] = self._aead(self._keys.unwrap(wrapped))
        return known


def split_sealed(sealed: bytes | memoryview) -> tuple[bytes, bytes, bytes]:
    """Return wrapped key, nonce, and ciphertext with tag."""
    wrapped_bytes = sealed[0] if len(sealed) else 0
    nonce_at = 1 + wrapped_bytes
    if wrapped_bytes == 0 or len(sealed) < nonce_at + _NONCE_BYTES + _TAG_BYTES:
        raise ValueError("the encrypted body is too short")
    ciphertext_at = nonce_at + _NONCE_BYTES
    return bytes(sealed[1:nonce_at]), bytes(sealed[nonce_at:ciphertext_at]), bytes(sealed[ciphertext_at:])


def former_associated_data(base_offset: int) -> bytes:
    """Return the associated data of a batch in format version 1."""
    return base_offset.to_bytes(8, "little")


def _try_unwrap(key: bytes, wrapped: bytes) -> bytes | None:
    keywrap = _keywrap()
    try:
        data_key: bytes = keywrap.aes_key_unwrap_with_padding(key, wrapped)
    except (keywrap.InvalidUnwrap, ValueError):
        return None
    return data_key if len(data_key) == _DATA_KEY_BYTES else None


def _cryptography(module: str) -> Any:
    import importlib

    try:
        return importlib.import_module(f"cryptography.{module}")
    except ImportError:
        raise EncryptionKeyError(
            "encryption at rest needs the package `cryptography`",
            hint='install it with `pip install "bascule[server]"`',
        ) from None


def _keywrap() -> Any:
    return _cryptography("hazmat.primitives.keywrap")


def _aead() -> Any:
    return _cryptography("hazmat.primitives.ciphers.aead").AESGCM


def _invalid_tag() -> Any:
    return _cryptography("exceptions").InvalidTag
