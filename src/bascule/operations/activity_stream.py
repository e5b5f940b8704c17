"""The activity stream: events about streams and groups, published in the order of the Raft log, each at least once.

Events wait in the replicated state. The controller publishes them in order and then removes them with an op; when it is replaced in
between, its successor may publish some of them again. Readers recognise a repeated event by its id.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from itertools import islice
from typing import TYPE_CHECKING, Final

from bascule.config.sections.cluster import Activity
from bascule.errors import BasculeError
from bascule.metadata.controller import Controller
from bascule.metadata.core.model.activity import ACTIVITY_STREAM, ActivityEvent
from bascule.metadata.core.model.changes import Change
from bascule.metadata.core.model.ops import PublishActivity
from bascule.metadata.feed import MetadataFeed
from bascule.metadata.leader_task import LeaderTask
from bascule.net.grpc.status import GrpcError
from bascule.net.retry import retry
from bascule.proto import api_pb2 as api

if TYPE_CHECKING:
    from bascule.partition.publisher import InternalPublisher

BACKOFF_SECONDS: Final = (1.0, 2.0, 4.0, 8.0, 10.0)
"""Waits between attempts; the last one repeats."""

EVENTS_PER_TRIM: Final = 64
"""Maximum number of events that one op removes, so that a burst of events causes few entries."""

_POLICIES: Final = {"none": api.NONE, "leader": api.LEADER, "all": api.ALL}

_logger = logging.getLogger(__name__)


class ActivityPublisher:
    def __init__(
        self,
        controller: Controller,
        feed: MetadataFeed,
        publisher: InternalPublisher,
        config: Activity,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._controller = controller
        self._publisher = publisher
        self._config = config
        self._sleep = sleep
        self._news = asyncio.Event()
        self._is_led = False
        self._task = LeaderTask(controller, self._run, "activity", sleep)
        feed.subscribe(self)

    def start(self) -> None:
        self._task.start()

    async def stop(self) -> None:
        await self._task.stop()

    def on_changes(self, _index: int, _changes: tuple[Change, ...]) -> None:
        """From the feed: there may be new events."""
        self._news.set()

    def reload(self) -> None:
        """From the feed: the state was replaced."""
        self._news.set()

    async def _run(self) -> None:
        self._is_led = False
        while True:
            self._news.clear()
            events = list(islice(self._controller.metadata.activity, EVENTS_PER_TRIM))
            if not events:
                await self._news.wait()
                continue
            # Switched off since: the remaining events are removed unpublished.
            if self._config.stream_enabled:
                for event in events:
                    await self._publish(event)
            await self._drop(events[-1].id)

    async def _publish(self, event: ActivityEvent) -> None:
        value = encode_event(event).SerializeToString()
        timeout = self._config.stream_publish_timeout_ns / 1e9
        policy = _POLICIES[self._config.stream_publish_ack_policy.value]

        async def publish() -> None:
            if not self._is_led:
                # The stream may be new. An event that arrives before its leader listens would be missed for the whole timeout.
                await self._publisher.wait_for_leader(ACTIVITY_STREAM, 0)
                self._is_led = True
            await self._publisher.publish(ACTIVITY_STREAM, 0, value=value, ack_policy=policy, timeout=timeout)

        await self._insist(publish)

    async def _drop(self, index: int) -> None:
        await self._insist(lambda: self._controller.submit(PublishActivity(index)))

    async def _insist(self, action: Callable[[], Awaitable[object]]) -> None:
        """Retry until it succeeds: later events wait, because their order is guaranteed."""
        await retry(action, (BasculeError, GrpcError), BACKOFF_SECONDS, on_error=_log_failure, sleep=self._sleep)


def _log_failure(error: Exception, wait: float) -> None:
    _logger.warning("an activity event cannot be published, next attempt in %g s: %s", wait, error)


def encode_event(event: ActivityEvent) -> api.ActivityStreamEvent:
    partitions = list(event.partitions)
    match event.op:
        case "CreateStream":
            created = api.CreateStreamOp(stream=event.stream, partitions=partitions)
            return api.ActivityStreamEvent(id=event.id, op=api.CREATE_STREAM, createStreamOp=created)
        case "DeleteStream":
            deleted = api.DeleteStreamOp(stream=event.stream)
            return api.ActivityStreamEvent(id=event.id, op=api.DELETE_STREAM, deleteStreamOp=deleted)
        case "PauseStream":
            paused = api.PauseStreamOp(stream=event.stream, partitions=partitions, resumeAll=event.resume_all)
            return api.ActivityStreamEvent(id=event.id, op=api.PAUSE_STREAM, pauseStreamOp=paused)
        case "ResumeStream":
            resumed = api.ResumeStreamOp(stream=event.stream, partitions=partitions)
            return api.ActivityStreamEvent(id=event.id, op=api.RESUME_STREAM, resumeStreamOp=resumed)
        case "SetStreamReadonly":
            set_to = api.SetStreamReadonlyOp(stream=event.stream, partitions=partitions, readonly=event.readonly)
            return api.ActivityStreamEvent(id=event.id, op=api.SET_STREAM_READONLY, setStreamReadonlyOp=set_to)
        case "JoinConsumerGroup":
            joined = api.JoinConsumerGroupOp(groupId=event.group, consumerId=event.consumer, streams=event.streams)
            return api.ActivityStreamEvent(id=event.id, op=api.JOIN_CONSUMER_GROUP, joinConsumerGroupOp=joined)
        case "LeaveConsumerGroup":
            left = api.LeaveConsumerGroupOp(groupId=event.group, consumerId=event.consumer, expired=event.expired)
            return api.ActivityStreamEvent(id=event.id, op=api.LEAVE_CONSUMER_GROUP, leaveConsumerGroupOp=left)
        case unknown:
            raise AssertionError(f"{unknown} is no activity")
