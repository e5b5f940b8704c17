"""The changes of the metadata, as a feed. The state machine publishes; partitions, groups and the activity stream subscribe.

The feed exists before the controller and before its subscribers, so that each of them takes it as a constructor argument.
"""

from __future__ import annotations

from typing import Protocol

from bascule.metadata.core.model.changes import Change


class MetadataSubscriber(Protocol):
    """Called on the event loop, while an entry of the Raft log is applied. Neither method may block or raise."""

    def on_changes(self, index: int, changes: tuple[Change, ...]) -> None:
        """The op at `index` of the Raft log was applied and made these changes, at least one."""

    def reload(self) -> None:
        """The whole state was replaced: by the snapshot on disk at the start, or by one that the leader sent."""


class MetadataFeed:
    def __init__(self) -> None:
        self._subscribers: list[MetadataSubscriber] = []

    def subscribe(self, subscriber: MetadataSubscriber) -> None:
        """Calls `subscriber` for every change from now on, after those that subscribed earlier."""
        self._subscribers.append(subscriber)

    def publish(self, index: int, changes: tuple[Change, ...]) -> None:
        for subscriber in self._subscribers:
            subscriber.on_changes(index, changes)

    def reload(self) -> None:
        for subscriber in self._subscribers:
            subscriber.reload()
