"""Sealed batches: compressed, encrypted, or both. The stream's options say how new batches are sealed; all forms can be opened."""

from __future__ import annotations

from bascule.errors import EncryptionKeyError
from bascule.kernels.records import records
from bascule.log.core.options import LogOptions
from bascule.log.disk import compression
from bascule.log.disk.encryption import BodyCipher, LogIdentity, former_associated_data
from bascule.log.disk.master_keys import KEY_VARIABLES, MasterKeys, master_keys_from_environment

_WORTH_COMPRESSING_BYTES = 128  # below this a zstd frame saves nothing


class Sealer:
    def __init__(
        self, *, compress: bool, encrypt: bool, keys: MasterKeys | None, identity: LogIdentity | None = None
    ) -> None:
        if encrypt and keys is None:
            raise EncryptionKeyError(
                "invalid AES key size: encryption is on but there is no master key",
                hint=f"set `encryption.key.file`, or {KEY_VARIABLES[0]} to exactly 16 or 32 bytes",
            )
        self._compress = compress
        self._identity = identity or LogIdentity()
        self.seals = compress or encrypt
        """Whether new batches are compressed or encrypted."""
        self._cipher = None if keys is None else BodyCipher(keys)
        self._encrypts_with = self._cipher if encrypt else None

    def seal(self, batch: bytes | memoryview) -> bytes | memoryview:
        """Return the batch in its stored form."""
        if not self.seals:
            return batch
        body: bytes | memoryview = memoryview(batch)[records.HEADER_BYTES :]
        attributes = 0
        if self._compress and len(body) >= _WORTH_COMPRESSING_BYTES:
            packed = compression.compress(memoryview(body))
            if len(packed) < len(body):
                body, attributes = packed, records.CODEC_ZSTD
        if self._encrypts_with is not None:
            body = self._encrypts_with.encrypt(body, self._identity.associated_data(batch))
            attributes |= records.ENCRYPTED
        return records.with_body(batch, body, attributes) if attributes else batch

    def open(self, batch: bytes | memoryview) -> bytes | memoryview:
        """Return the batch with a plain body. Raises ValueError for a damaged body, EncryptionKeyError if a key is missing."""
        header = records.read_header(batch)
        if not header.is_sealed:
            return batch
        body: bytes | memoryview = memoryview(batch)[records.HEADER_BYTES : header.length]
        if header.attributes & records.ENCRYPTED:
            body = self._cipher_for_reading().decrypt(body, self._associated_data(batch, header))
        if header.attributes & records.CODEC_MASK == records.CODEC_ZSTD:
            body = compression.decompress(body, header.body_bytes)
        return records.with_body(batch, body, 0)

    def open_all(self, data: bytes | memoryview) -> bytes | memoryview:
        """Return consecutive whole batches with plain bodies."""
        pieces: list[bytes | memoryview] = []
        position, sealed = 0, False
        while position < len(data):
            header = records.read_header(data, position)
            batch = memoryview(data)[position : position + header.length]
            pieces.append(self.open(batch) if header.is_sealed else batch)
            sealed = sealed or header.is_sealed
            position += header.length
        return b"".join(pieces) if sealed else data

    def rewrap(self, batch: bytes | memoryview) -> bytes | None:
        """Return an encrypted batch with its data key under the current master key; None if nothing has to change.

        A batch of format version 1 is encrypted anew, as version 2. Raises ValueError and EncryptionKeyError as `open` does.
        """
        header = records.read_header(batch)
        if not header.attributes & records.ENCRYPTED:
            return None
        cipher = self._cipher_for_reading()
        body: bytes | memoryview = memoryview(batch)[records.HEADER_BYTES : header.length]
        if header.version < records.VERSION:
            clear = cipher.decrypt(body, self._associated_data(batch, header))
            changed: bytes | None = cipher.encrypt(clear, self._identity.associated_data(batch))
        else:
            changed = cipher.rewrap(body)
        attributes = header.attributes & (records.CODEC_MASK | records.ENCRYPTED)
        return None if changed is None else records.with_body(batch, changed, attributes)

    def _associated_data(self, batch: bytes | memoryview, header: records.BatchHeader) -> bytes:
        if header.version < records.VERSION:
            return former_associated_data(header.base_offset)
        return self._identity.associated_data(batch)

    def _cipher_for_reading(self) -> BodyCipher:
        if self._cipher is None:
            raise EncryptionKeyError(
                "the batch is encrypted and there is no master key",
                hint=f"set `encryption.key.file` or {KEY_VARIABLES[0]}, and restart the server",
            )
        return self._cipher


def sealer_for(options: LogOptions, keys: MasterKeys | None, identity: LogIdentity | None = None) -> Sealer:
    """Return the sealer of a log, with the given keys or those of the environment."""
    if keys is None:
        try:
            keys = master_keys_from_environment()
        except EncryptionKeyError:
            # An invalid key does not matter to a stream without encryption. Reading an encrypted batch raises later.
            if options.encryption:
                raise
    return Sealer(compress=options.compression == "zstd", encrypt=options.encryption, keys=keys, identity=identity)
