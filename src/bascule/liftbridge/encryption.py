"""Values that Liftbridge encrypted at rest.

wrapped key length u8, 40 · RFC 5649 wrap of the data key · nonce, 12 bytes · AES-256-GCM ciphertext and tag
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from bascule.errors import EncryptionKeyError
from bascule.log.disk.master_keys import MasterKeys

NONCE_BYTES: Final = 12


class ValueDecryption:
    """Decrypts values. The data key changes with each start of the server, so the latest one is kept."""

    def __init__(self, keys: MasterKeys) -> None:
        self._keys = keys
        self._wrapped = b""
        self._decrypt: Callable[[bytes, bytes, bytes | None], bytes] | None = None

    def __call__(self, value: bytes) -> bytes:
        """Return the value in the clear. Raises EncryptionKeyError."""
        size = value[0] if value else 0
        wrapped = value[1 : 1 + size]
        nonce = value[1 + size : 1 + size + NONCE_BYTES]
        if not size or len(nonce) < NONCE_BYTES:
            raise EncryptionKeyError(
                "a value is not encrypted, or damaged", hint="name only streams with encrypted values in --encrypted"
            )
        if wrapped != self._wrapped or self._decrypt is None:
            self._decrypt = _aesgcm()(self._keys.unwrap(wrapped)).decrypt
            self._wrapped = wrapped
        try:
            return self._decrypt(nonce, value[1 + size + NONCE_BYTES :], None)
        except _invalid_tag():
            raise EncryptionKeyError("an encrypted value is damaged", hint="restore the file from a backup") from None


def _aesgcm() -> Any:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    return AESGCM


def _invalid_tag() -> Any:
    from cryptography.exceptions import InvalidTag

    return InvalidTag
