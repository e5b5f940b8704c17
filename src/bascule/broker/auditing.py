"""The audit log of a broker, and its writers."""

from __future__ import annotations

import asyncio

from bascule import __version__
from bascule.broker.cluster_secret import ClusterSecret
from bascule.config.sections.server import ServerConfig
from bascule.security.audit.file_writer import AuditFileWriter
from bascule.security.audit.log import AuditLog
from bascule.security.audit.queue import AuditQueue


class Auditing:
    def __init__(self, config: ServerConfig, server: str, secret: ClusterSecret) -> None:
        """Raises OperatorError if the file of the log cannot be used."""
        self._secret = secret
        path = config.security.audit_file
        queue = AuditQueue()
        self.log = AuditLog(None if path is None else queue)
        self._file = (
            None if path is None else AuditFileWriter(path, config.data_dir, server, secret.audit_key, self.log, queue)
        )
        self.log.event("StartServer", detail=f"bascule {__version__}")

    def reopen(self) -> None:
        """SIGHUP: the file may have been rotated."""
        if self._file is not None:
            self._file.reopen()

    def reloaded(self, failed: list[str]) -> None:
        """SIGHUP: record which files could not be read. The cluster secret may be another one."""
        detail = f"not changed: {', '.join(failed)}" if failed else ""
        self.log.event("Reload", "FAILED" if failed else "OK", detail)
        if self._file is not None:
            self._file.use_key(self._secret.audit_key)

    async def close(self) -> None:
        self.log.event("StopServer")
        if self._file is not None:
            await asyncio.to_thread(self._file.close)
