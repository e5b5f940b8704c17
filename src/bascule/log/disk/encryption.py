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
from dataclasses import dataclass
from typing import Any

from bascule import limits
from bascule.log.disk.master_keys import DATA_KEY_BYTES, MasterKeys, cryptography

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


@dataclass(frozen=True, slots=True)
class _DataKey:
    wrapped: bytes
    aead: Any
    generation: int
    """Of the master keys when it was wrapped."""


class BodyCipher:
    """Encrypts and decrypts the bodies of one partition."""

    def __init__(self, keys: MasterKeys) -> None:
        self._keys = keys
        self._aead = _aead()
        self._known: dict[bytes, Any] = {}
        self._rewrapped: dict[bytes, bytes | None] = {}
        self._rewrapped_for = 0
        self._new_data_key()

    def _new_data_key(self) -> _DataKey:
        generation = self._keys.generation  # first: after a switch meanwhile, the next batch gets another data key
        data_key = os.urandom(DATA_KEY_BYTES)
        self._data_key_now = made = _DataKey(self._keys.wrap(data_key), self._aead(data_key), generation)
        self._left = limits.ENCRYPTION_BATCHES_PER_KEY_MAX
        return made

    def encrypt(self, body: bytes | memoryview, associated_data: bytes) -> bytes:
        key = self._data_key_now  # one object: the cleaner's thread may replace it meanwhile
        if self._left <= 0 or key.generation != self._keys.generation:
            key = self._new_data_key()
        self._left -= 1
        nonce = os.urandom(_NONCE_BYTES)
        ciphertext = key.aead.encrypt(nonce, bytes(body), associated_data)
        return b"".join((bytes((len(key.wrapped),)), key.wrapped, nonce, ciphertext))

    def decrypt(self, sealed: bytes | memoryview, associated_data: bytes) -> bytes:
        """Return the plain body. Raises ValueError for malformed or moved bytes, EncryptionKeyError without the key."""
        wrapped, nonce, ciphertext = split_sealed(sealed)
        try:
            body: bytes = self._data_key(wrapped).decrypt(nonce, ciphertext, associated_data)
        except _invalid_tag():
            raise ValueError("the ciphertext was changed or moved") from None
        return body

    def rewrap(self, sealed: bytes | memoryview) -> bytes | None:
        """Return the body with its data key under the current master key; None if that is so already."""
        wrapped, nonce, ciphertext = split_sealed(sealed)
        generation = self._keys.generation
        if len(self._rewrapped) >= _KNOWN_DATA_KEYS_MAX or self._rewrapped_for != generation:
            self._rewrapped.clear()
            self._rewrapped_for = generation
        if wrapped not in self._rewrapped:
            is_current = self._keys.id_of(wrapped) == self._keys.ids[0]
            self._rewrapped[wrapped] = None if is_current else self._keys.wrap(self._keys.unwrap(wrapped))
        found = self._rewrapped[wrapped]
        return None if found is None else b"".join((bytes((len(found),)), found, nonce, ciphertext))

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


def _aead() -> Any:
    return cryptography("hazmat.primitives.ciphers.aead").AESGCM


def _invalid_tag() -> Any:
    return cryptography("exceptions").InvalidTag
