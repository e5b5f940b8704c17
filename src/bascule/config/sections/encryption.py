"""Encryption at rest: where the master keys come from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bascule.config.values.key import setting
from bascule.config.values.kinds import FilePath, Text


@dataclass(frozen=True, slots=True, kw_only=True)
class Encryption:
    """Encryption at rest"""

    key_file: Path | None = setting(
        "encryption.key.file",
        FilePath(),
        None,
        example="/run/secrets/bascule-keys",
        meaning="A file with the master keys of encrypted streams: 32 or 64 hexadecimal digits on each line, the current key first.",
        consequence="The server reads it at its start and when `bascule keys rotate` says so. Without this key and "
        "`encryption.key.command`, the master key is `BASCULE_ENCRYPTION_KEY`, which cannot change while the server runs.",
        advice="Only the server's user should be able to read it. Do not keep it on the disk that it protects.",
    )
    key_command: str | None = setting(
        "encryption.key.command",
        Text(),
        None,
        example="vault kv get -field=keys secret/bascule",
        meaning="A command that prints the master keys, in the form of `encryption.key.file`.",
        consequence="It is run without a shell at the start and at each rotation, and has 30 seconds. Quotes group words.",
    )
