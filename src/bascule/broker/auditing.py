"""The audit log of a broker, and its writers: of the file, and of the stream `__audit`."""

from __future__ import annotations

import asyncio

from bascule import __version__
from bascule.broker.cluster_secret import ClusterSecret
from bascule.config.sections.server import ServerConfig
from bascule.names import AUDIT_STREAM
from bascule.partition.publisher import InternalPublisher
from bascule.proto.api_pb2 import AckPolicy
from bascule.security.audit.file_writer import AuditFileWriter
from bascule.security.audit.log import AuditLog
from bascule.security.audit.queue import AuditQueue
from bascule.security.audit.spool import PENDING_FILE, AuditSpool
from bascule.security.audit.stream_writer import AuditStreamWriter


class Auditing:
    def __init__(self, config: ServerConfig, server: str, secret: ClusterSecret) -> None:
        """Begin to record. The stream's records wait for `start_stream`. Raises OperatorError if a file cannot be used."""
        self._server = server
        self._secret = secret
        path, key = config.security.audit_file, secret.audit_key
        self._news = asyncio.Event()
        loop = asyncio.get_running_loop()
        in_file = AuditQueue()
        in_stream = AuditQueue(lambda: loop.call_soon_threadsafe(self._news.set))
        has_stream = config.cluster.audit.stream_enabled
        self.log = AuditLog(None if path is None else in_file, in_stream if has_stream else None)
        self._file: AuditFileWriter | None = None
        self._spool: AuditSpool | None = None
        self._stream: AuditStreamWriter | None = None
        if has_stream:
            self._spool = AuditSpool(config.data_dir / PENDING_FILE, server)
        if path is not None:
            self._file = AuditFileWriter(path, config.data_dir, server, key, self.log, in_file)
        self.log.event("StartServer", detail=f"bascule {__version__}")

    def start_stream(self, publisher: InternalPublisher) -> None:
        """Publish records from now on. The stream may be created later: until then they wait."""
        queue, key, name = self.log.stream, self._secret.audit_key, self._server.encode()
        if queue is None or self._spool is None:
            return
        assert key is not None, "the configuration was checked"

        async def publish(record: bytes, timeout: float) -> None:
            await publisher.publish(AUDIT_STREAM, 0, key=name, value=record, ack_policy=AckPolicy.ALL, timeout=timeout)

        self._stream = AuditStreamWriter(self._server, key, self._spool, self.log, queue, self._news, publish)

    def reopen(self) -> None:
        """SIGHUP: the file may have been rotated."""
        if self._file is not None:
            self._file.reopen()

    def reloaded(self, failed: list[str]) -> None:
        """SIGHUP: record which files could not be read. The cluster secret may be another one."""
        detail = f"not changed: {', '.join(failed)}" if failed else ""
        self.log.event("Reload", "FAILED" if failed else "OK", detail)
        key = self._secret.audit_key
        if self._file is not None:
            self._file.use_key(key)
        if self._stream is not None and key is not None:
            self._stream.use_key(key)

    async def stop_stream(self) -> None:
        """Publish the last records, while partitions still work. Later ones are in the file alone."""
        if self._stream is not None and self.log.stream is not None:
            self.log.event_of(self.log.stream, "StopServer")
            await self._stream.stop()

    async def close(self) -> None:
        self.log.event("StopServer")
        if self._file is not None:
            await asyncio.to_thread(self._file.close)
