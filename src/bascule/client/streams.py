"""Streams: created, deleted, paused, closed for writing, looked at."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from bascule.client.connection import options
from bascule.client.connection.core import ClientCore
from bascule.client.connection.metadata import Metadata, PartitionInfo
from bascule.client.connection.options import Duration
from bascule.client.connection.wire import Fields
from bascule.client.consume.partition_reader import fetch_partition
from bascule.errors import StreamExists


class StreamMethods(ClientCore):
    async def create_stream(
        self,
        name: str,
        subject: str | None = None,
        *,
        partitions: int = 1,
        replication_factor: int | None = None,
        group: str = "",
        retention_max_bytes: int | None = None,
        retention_max_messages: int | None = None,
        retention_max_age: Duration | None = None,
        cleaner_interval: Duration | None = None,
        segment_max_bytes: int | None = None,
        segment_max_age: Duration | None = None,
        compact: bool | None = None,
        compact_max_goroutines: int | None = None,
        compact_min_lag: Duration | None = None,
        tombstone_retention: Duration | None = None,
        auto_pause_time: Duration | None = None,
        auto_pause_disable_if_subscribers: bool | None = None,
        min_insync_replicas: int | None = None,
        optimistic_concurrency_control: bool | None = None,
        encryption: bool | None = None,
        compression: Literal["none", "zstd"] | None = None,
        sync: Literal["ack", "interval", "always"] | None = None,
        sync_interval: Duration | None = None,
        if_not_exists: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Create a stream that keeps what is published to a NATS subject; without `subject` it is the stream's name.

        `replication_factor` -1 means every broker; None means 1, or one more than `min_insync_replicas` if that is above 1. None leaves
        a setting to the server; 0 means without limit, or off. Durations are timedeltas or seconds. With `group`, the streams of that
        name share the subject's messages among them, as NATS queue groups do.

        With `compact`, a message stays for `compact_min_lag` after a newer one with its key, and a message without a value for
        `tombstone_retention`. `sync` says what waits until a message is on the disk: `ack` an ack of all replicas, `always` every
        ack and every reader, `interval` nothing; messages that nothing waits for reach it within `sync_interval`.
        `compact_max_goroutines` is accepted as in Liftbridge and has no effect.

        Raises StreamExists, unless `if_not_exists`: then a stream of this name stays as it is. Raises OutcomeUnknown when the broker
        died meanwhile: look with `fetch_metadata` then.
        """
        settings = options.stream_settings(
            {
                "retention_max_bytes": retention_max_bytes,
                "retention_max_messages": retention_max_messages,
                "retention_max_age": retention_max_age,
                "cleaner_interval": cleaner_interval,
                "segment_max_bytes": segment_max_bytes,
                "segment_max_age": segment_max_age,
                "compact": compact,
                "compact_max_goroutines": compact_max_goroutines,
                "compact_min_lag": compact_min_lag,
                "tombstone_retention": tombstone_retention,
                "auto_pause_time": auto_pause_time,
                "auto_pause_disable_if_subscribers": auto_pause_disable_if_subscribers,
                "min_insync_replicas": min_insync_replicas,
                "optimistic_concurrency_control": optimistic_concurrency_control,
                "encryption": encryption,
                "compression": compression,
                "sync": sync,
                "sync_interval": sync_interval,
            }
        )
        if replication_factor not in (None, -1):
            options.integer("replication_factor", replication_factor, 1, options.INT32_MAX)
        request: Fields = {
            "name": options.stream_name(name, "name"),
            "subject": options.subject_name(name if subject is None else subject),
            "group": "" if not group else options.subject_name(group, "group"),
            "partitions": options.integer("partitions", partitions, 1, options.INT32_MAX),
            "replicationFactor": replication_factor or 0,
            **settings,
        }
        await self._create_stream(name, request, timeout, may_exist=options.flag("if_not_exists", if_not_exists))

    async def _create_stream(self, name: str, request: Fields, timeout: float | None, *, may_exist: bool) -> None:
        try:
            await self._call("CreateStream", timeout, once=True, **request)
        except StreamExists:
            if not may_exist:
                raise StreamExists(
                    f"stream `{name}` exists already", hint="choose another name, or pass if_not_exists=True"
                ) from None

    async def delete_stream(self, name: str, *, timeout: float | None = None) -> None:
        """Delete a stream and its data. Raises StreamNotFound; OutcomeUnknown when the broker died meanwhile."""
        await self._call("DeleteStream", timeout, once=True, name=options.stream_name(name, "name"))
        self._brokers.forget(name)

    async def pause_stream(
        self, name: str, partitions: Iterable[int] = (), *, resume_all: bool = False, timeout: float | None = None
    ) -> None:
        """Pause some partitions, or all. A publish through a broker resumes one, or with `resume_all` all that are paused."""
        await self._call(
            "PauseStream",
            timeout,
            name=options.stream_name(name, "name"),
            partitions=options.partition_numbers("partitions", partitions),
            resumeAll=options.flag("resume_all", resume_all),
        )
        self._brokers.forget(name)

    async def set_readonly(
        self, name: str, partitions: Iterable[int] = (), readonly: bool = True, *, timeout: float | None = None
    ) -> None:
        """Have some partitions, or all, take no more messages; with `readonly=False` have them take messages again."""
        await self._call(
            "SetStreamReadonly",
            timeout,
            name=options.stream_name(name, "name"),
            partitions=options.partition_numbers("partitions", partitions),
            readonly=options.flag("readonly", readonly),
        )
        self._brokers.forget(name)

    async def fetch_metadata(
        self, streams: Iterable[str] | None = None, *, groups: Iterable[str] | None = (), timeout: float | None = None
    ) -> Metadata:
        """Brokers, streams (all of them unless some are named) and the consumer groups that are named, or all groups that have
        members for None. What does not exist is left out."""
        names = None if streams is None else [options.stream_name(name, "streams") for name in streams]
        wanted = None if groups is None else list(groups)
        return await self._brokers.refresh(
            names,
            wanted or (),
            deadline=self._deadline(timeout),
            settings=True,
            members=wanted is None or bool(wanted),
        )

    async def fetch_partition_metadata(
        self, stream: str, partition: int = 0, *, timeout: float | None = None
    ) -> PartitionInfo:
        """The partition's high watermark, newest offset and time of its last message, from its leader. Raises
        PartitionPaused."""
        options.integer("partition", partition, 0, options.INT32_MAX)
        deadline = self._deadline(timeout)
        return await fetch_partition(self._brokers, options.stream_name(stream), partition, deadline)
