"""The master keys of a broker: their source from the configuration, and the calls that show and rotate them."""

from __future__ import annotations

import asyncio
import logging
import shlex
from collections.abc import Callable
from typing import Any

from bascule.config.sections.encryption import Encryption
from bascule.errors import EncryptionKeyError, InvalidConfig
from bascule.log.disk.master_keys import (
    EnvironmentKeys,
    KeyCommand,
    KeyFile,
    KeySource,
    MasterKeys,
    master_keys_from_environment,
)
from bascule.log.key_rotation import KeyRotation, KeyStatus
from bascule.metadata.requests import CallDeadline
from bascule.net.grpc.status import Status
from bascule.operations.switchboard import Handler, refusal
from bascule.proto import extensions_pb2 as extensions

_logger = logging.getLogger(__name__)


def key_source(config: Encryption) -> KeySource:
    """Return the one source of master keys. Raises InvalidConfig if several are set."""
    given = {
        "`encryption.key.file`": config.key_file is not None,
        "`encryption.key.command`": config.key_command is not None,
        "`BASCULE_ENCRYPTION_KEY`": _is_in_environment(),
    }
    names = [name for name, is_set in given.items() if is_set]
    if len(names) > 1:
        raise InvalidConfig(f"master keys come from {' and '.join(names)}", hint="set one of them")
    if config.key_file is not None:
        return KeyFile(config.key_file)
    if config.key_command is not None:
        return KeyCommand(_words(config.key_command))
    return EnvironmentKeys()


def _is_in_environment() -> bool:
    try:
        return master_keys_from_environment() is not None
    except EncryptionKeyError:
        return True


def _words(command: str) -> tuple[str, ...]:
    try:
        words = tuple(shlex.split(command))
    except ValueError as error:
        raise InvalidConfig(f"`encryption.key.command` is {command!r}: {error}", hint="close the quotes") from None
    if not words:
        raise InvalidConfig(f"`encryption.key.command` is {command!r}", hint="give a program and its arguments")
    return words


def load_keys(source: KeySource) -> MasterKeys | None:
    """Return the keys of the source. A bad key only matters to encrypted streams: creating one reports it."""
    try:
        return source.load()
    except EncryptionKeyError as error:
        _logger.error("%s: encrypted streams cannot be used", error.message)
        return None


class KeyCalls:
    """Answers the calls about keys for this server."""

    def __init__(self, rotation: KeyRotation, server_id: str) -> None:
        self._rotation = rotation
        self._server_id = server_id

    def handlers(self) -> dict[str, Handler]:
        return {"Keys": self.keys, "RotateKeys": self.rotate_keys}

    async def keys(self, request: extensions.KeysRequest, _deadline: CallDeadline) -> extensions.ServerKeys:
        rotation = self._rotation
        return await self._answer(rotation.count if request.count else lambda: rotation.status)

    async def rotate_keys(
        self, request: extensions.RotateKeysRequest, _deadline: CallDeadline
    ) -> extensions.ServerKeys:
        switches = request.step == extensions.RotateKeysRequest.SWITCH
        return await self._answer(self._rotation.switch if switches else self._rotation.load)

    async def _answer(self, work: Callable[[], KeyStatus]) -> extensions.ServerKeys:
        try:
            status = await asyncio.to_thread(work)  # a key command may take its time
        except EncryptionKeyError as error:
            raise refusal(Status.FAILED_PRECONDITION, error.message, error.hint or "") from None
        return _message(self._server_id, status)


def _message(server_id: str, status: KeyStatus) -> extensions.ServerKeys:
    uses: Any = () if status.use is None else sorted(status.use.batches.items())
    return extensions.ServerKeys(
        server=server_id,
        source=status.source,
        current=status.current or "",
        known=status.known,
        offered=status.offered,
        phase=status.phase,
        bytes_done=status.bytes_done,
        bytes_total=status.bytes_total,
        is_counted=status.use is not None,
        uses=[extensions.KeyUse(id=key, batches=batches) for key, batches in uses],
        former=0 if status.use is None else status.use.former,
        rewrapped=status.rewrapped,
        closed=status.closed,
        failures=status.failures,
    )
