"""The secret that the brokers of a cluster share, and the channels that it seals. See docs/internals/control-plane.md.

The secret comes from `cluster.secret` or `cluster.secret.file`. A broker that runs nats-server as its child and has neither creates one
in its data directory, so that an installation without settings is closed. Without a secret the control plane is not authenticated.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final

from bascule.config.sections.cluster import SECRETS_MAX, split_secrets
from bascule.config.sections.server import ServerConfig
from bascule.errors import BasculeError, InvalidConfig, OperatorError
from bascule.net.nats.link import NatsLink
from bascule.net.nats.seal import SealedChannel, SealKeys

SECRET_FILE: Final = "cluster.secret"
"""Name of the generated secret in the data directory."""
SETTLE_SECONDS: Final = 0.05
"""Time for the handshake with the other brokers at the start."""

_logger = logging.getLogger(__name__)


class ClusterSecret:
    """The keys of this broker, and the channels that use them."""

    def __init__(self, config: ServerConfig, server_id: str) -> None:
        self._config = config
        self._namespace = config.cluster.replication.namespace
        self._server_id = server_id
        self._secrets = read_secrets(config)
        self.keys = SealKeys(self._secrets, self._namespace) if self._secrets else None
        """None: the control plane is not authenticated."""
        self.channels: dict[str, SealedChannel] = {}
        """By purpose: `streams` (acks), `internal` (records of internal streams), `replication`, `control`."""
        if self.keys is None:
            _logger.warning(
                "the control plane is not authenticated: any NATS client that may publish to `%s.>` controls this cluster; set "
                "`cluster.secret` on all brokers, or let the NATS servers keep `%s.>` to an account of the brokers",
                self._namespace,
                self._namespace,
            )

    def channel(self, purpose: str, link: NatsLink) -> SealedChannel | None:
        """The channel of one connection; None without a secret."""
        if self.keys is None:
            return None
        found = SealedChannel.over(link, self.keys, self._namespace, purpose, self._server_id)
        self.channels[purpose] = found
        return found

    async def introduce(self) -> None:
        """Let the other brokers challenge the channels of this one. Returns when they probably have: until then they drop messages."""
        for channel in self.channels.values():
            channel.hello()
        if self.channels:
            await asyncio.sleep(SETTLE_SECONDS)

    def on_control_accepted(self, introduce: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Call `introduce` whenever a broker begins to accept control messages of this one: it may have dropped earlier ones."""
        channel = self.channels.get("control")
        if channel is None:
            return
        tasks: set[asyncio.Task[None]] = set()

        def accepted(_server: str) -> None:
            task = asyncio.get_running_loop().create_task(introduce())
            tasks.add(task)
            task.add_done_callback(tasks.discard)

        channel.on_accepted = accepted

    def reload(self) -> bool:
        """Read the secret again. The present one stays in force when it cannot be read, or when there is none any more. Returns False
        if it cannot be read."""
        try:
            found = read_secrets(self._config)
        except BasculeError as error:
            _logger.error("the cluster secret was not reloaded: %s", error.message)
            return False
        if not found or found == self._secrets or self.keys is None:
            return True
        self._secrets = found
        self.keys = SealKeys(found, self._namespace)
        for channel in self.channels.values():
            channel.use(self.keys)
        _logger.info("the cluster secret was reloaded")
        return True

    @property
    def audit_key(self) -> bytes | None:
        """The key that signs audit records; None without a secret."""
        return None if self.keys is None else self.keys.audit_keys()[0]


def read_secrets(config: ServerConfig) -> tuple[str, ...]:
    """The secrets, the one that signs first; empty if the control plane is not authenticated."""
    secret = config.cluster.secret
    if secret.secret is not None:
        return split_secrets(secret.secret)
    if secret.secret_file is not None:
        return _read(secret.secret_file)
    if config.nats.runs_embedded and config.nats.embedded_config is None:
        return _generated(config.data_dir / SECRET_FILE)
    return ()


def _read(path: Path) -> tuple[str, ...]:
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise OperatorError(
            f"the cluster secret {path} cannot be read: {reason}",
            hint="correct `cluster.secret.file`, or the file's owner",
        ) from None
    found = split_secrets(text)
    if not found:
        raise InvalidConfig(
            f"{path} has no cluster secret: it needs 1 to {SECRETS_MAX} of at least 16 characters, separated by line breaks",
            hint=f"create one: openssl rand -hex 32 > {path}",
        )
    return found


def _generated(path: Path) -> tuple[str, ...]:
    """The secret in the file, which is created if it is missing. Only this user can read it."""
    if path.exists():
        return _read(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        created = secrets.token_hex(32)
        temporary = path.with_name(f"{path.name}.new")
        temporary.unlink(missing_ok=True)
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w") as file:
            file.write(created + "\n")
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise OperatorError(f"cannot create {path}: {error.strerror}", hint="check `data.dir`") from None
    return (created,)
