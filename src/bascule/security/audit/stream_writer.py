"""Publishes audit records to the stream `__audit`, in order and one at a time, each at least once. See docs/internals/audit.md.

A record is on disk before it is published, see `spool`. While the stream cannot be written, the spool fills, then the queue; records
beyond that are dropped, and a record `Lost` counts them. No call waits for any of this.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable
from typing import Final

from bascule import limits
from bascule.errors import BasculeError
from bascule.net.grpc.status import GrpcError
from bascule.security.audit.log import AuditLog
from bascule.security.audit.queue import AuditQueue
from bascule.security.audit.records import STREAM_BOOT, AuditChain
from bascule.security.audit.spool import AuditSpool

BATCH_RECORDS_MAX: Final = 64
"""Records that are synced to the spool at once."""

PUBLISH_SECONDS: Final = 5.0
"""Time to wait for the ack of a record before it is published again. A server that stops waits as long for all of them."""

RETRY_SECONDS: Final = 1.0
"""Interval between attempts to publish, or to write the spool, after a failure."""

FAILURES_QUIET: Final = 3
"""Failed attempts before the log says so: a new cluster creates the stream a moment after its first server has started."""

PublishRecord = Callable[[bytes, float], Awaitable[object]]
"""Publishes a record and waits for its ack, within so many seconds. Raises GrpcError or BasculeError."""

_logger = logging.getLogger(__name__)


class AuditStreamWriter:
    """Takes records from the queue of the log for the stream."""

    def __init__(
        self,
        server: str,
        key: bytes,
        spool: AuditSpool,
        log: AuditLog,
        queue: AuditQueue,
        news: asyncio.Event,
        publish: PublishRecord,
    ) -> None:
        """`news` is set, in this event loop, when the queue gets a record."""
        self._spool = spool
        self._log = log
        self._queue = queue
        self._news = news
        self._publish = publish
        self._chain = AuditChain(server, STREAM_BOOT + secrets.token_hex(8), spool.last.hash, key)
        self._sealed: list[bytes] = []
        """Records that could not be written to the spool yet."""
        self._failures = 0
        """Attempts that failed since the last success."""
        self._ends_at: float | None = None
        """When a server that stops gives up."""
        self._task = asyncio.create_task(self._run(), name="audit stream")

    def use_key(self, key: bytes) -> None:
        """Sign with this key from now on: the cluster secret has changed."""
        self._chain.key = key

    async def stop(self) -> None:
        """Publish the records that wait, for at most `PUBLISH_SECONDS`; the rest stays in the spool for the next start."""
        self._log.summarize(at_once=True)
        self._queue.close()
        self._ends_at = asyncio.get_running_loop().time() + PUBLISH_SECONDS
        self._news.set()
        await self._task
        if len(self._spool):
            _logger.warning("%d audit records are not published yet: the next start publishes them", len(self._spool))
        self._spool.close()

    async def _run(self) -> None:
        while True:
            self._news.clear()
            self._log.summarize()
            is_last = self._ends_at is not None  # before the queue is looked at: a closed one gets no more records
            is_spooled = await self._spool_new()
            if is_spooled and not len(self._spool):
                if is_last:
                    return
                await self._wait_for_news()
            elif not is_spooled or not await self._publish_first():
                if self._left() <= 0:
                    await self._spool_new()
                    return
                await asyncio.sleep(min(RETRY_SECONDS, self._left()))

    def _left(self) -> float:
        """Return how many seconds an attempt may take."""
        if self._ends_at is None:
            return PUBLISH_SECONDS
        return self._ends_at - asyncio.get_running_loop().time()

    async def _wait_for_news(self) -> None:
        """Wait for a record. Summaries of refused calls are looked for once in a while."""
        try:
            async with asyncio.timeout(RETRY_SECONDS):
                await self._news.wait()
        except TimeoutError:
            return

    async def _spool_new(self) -> bool:
        """Seal the records that wait, and write them to the spool. Returns False if sealed records could not be written."""
        is_last = self._ends_at is not None
        if not self._sealed and (is_last or len(self._spool) < limits.AUDIT_QUEUE_RECORDS_MAX):
            taken = self._queue.take(2 * limits.AUDIT_QUEUE_RECORDS_MAX if is_last else BATCH_RECORDS_MAX)
            self._sealed = [self._chain.seal(entry) for entry in taken]
            if len(taken) >= BATCH_RECORDS_MAX:
                self._news.set()  # there may be more
        if not self._sealed and not self._spool.needs_trim:
            return True
        try:
            await asyncio.to_thread(self._write_spool)
        except (OSError, BasculeError) as error:
            self._failed("written to the data directory", error)
        return not self._sealed

    def _write_spool(self) -> None:
        if self._sealed:
            self._spool.append(self._sealed)
            self._sealed = []
        elif self._spool.needs_trim:
            self._spool.trim()

    async def _publish_first(self) -> bool:
        attempt = asyncio.ensure_future(self._publish(self._spool.first, max(0.0, self._left())))
        try:
            await self._spool_during(attempt)
            await attempt
        except (GrpcError, BasculeError) as error:
            self._failed("published", error)
            return False
        finally:
            attempt.cancel()
        self._spool.published()
        self._queue.written += 1
        if self._failures >= FAILURES_QUIET:
            _logger.info("audit records are published again")
        self._failures = 0
        return True

    async def _spool_during(self, attempt: asyncio.Future[object]) -> None:
        """Write new records to the spool until the attempt has ended: a server that is killed meanwhile has them on disk."""
        while not attempt.done():
            news = asyncio.ensure_future(self._news.wait())
            await asyncio.wait((attempt, news), return_when=asyncio.FIRST_COMPLETED)
            news.cancel()
            if self._news.is_set() and not attempt.done():
                self._news.clear()
                await self._spool_new()

    def _failed(self, what: str, error: Exception) -> None:
        self._failures += 1
        if self._failures == FAILURES_QUIET:
            _logger.error("audit records cannot be %s, retrying: %s", what, error)
