"""The logs of streams on disk. Each folder is claimed by the stream that it belongs to."""

from __future__ import annotations

import shutil
from pathlib import Path

from bascule.errors import StorageError
from bascule.log import LogStore, PartitionLog
from bascule.log.disk.checkpoint import LogCheckpoint, read_checkpoint
from bascule.log.disk.stream_marker import read_marker, remove_marker, write_marker
from bascule.metadata.core.model.streams import Stream
from bascule.metadata.stream_options import StreamSettings


class StreamData:
    def __init__(self, store: LogStore) -> None:
        self._store = store
        self._claimed: dict[str, int] = {}

    def _directory(self, stream: str) -> Path:
        return self._store.directory / "streams" / stream

    def streams_on_disk(self) -> list[str]:
        root = self._store.directory / "streams"
        return sorted(path.name for path in root.iterdir() if path.is_dir()) if root.is_dir() else []

    def claim(self, stream: Stream) -> None:
        """Mark the folder as this stream's, after deleting the data of an earlier stream of the same name."""
        if self._claimed.get(stream.name) == stream.id:
            return
        disk = self._store.pool.disk
        found = read_marker(disk, self._directory(stream.name))
        if found is not None and found > stream.id:
            raise StorageError(
                f"{self._directory(stream.name)} holds a later stream of that name (id {found}, not {stream.id})",
                hint="the metadata is older than the data: was an old backup of the raft folder put back?",
            )
        if found != stream.id:
            if found is not None:
                self._delete(stream.name)
            write_marker(disk, self._directory(stream.name), stream.id)
        self._claimed[stream.name] = stream.id

    def log(self, stream: Stream, partition: int, settings: StreamSettings) -> PartitionLog:
        return self._store.log(
            stream.name,
            partition,
            settings.log_options,
            stream_id=stream.id,
            cleaner_interval_ms=settings.cleaner_interval_ms,
        )

    def set_options(self, stream: str, partition: int, settings: StreamSettings) -> None:
        """Apply changed settings to the log, if it is in use."""
        self._store.set_options(
            stream, partition, settings.log_options, cleaner_interval_ms=settings.cleaner_interval_ms
        )

    def checkpoint(self, stream: Stream, partition: int) -> LogCheckpoint | None:
        """The checkpoint of a log that is not open; None without one, or if the files belong to another stream of this name."""
        disk = self._store.pool.disk
        if read_marker(disk, self._directory(stream.name)) != stream.id:
            return None
        return read_checkpoint(disk, str(self._directory(stream.name) / str(partition)))

    def close_log(self, stream: str, partition: int) -> None:
        self._store.close_log(stream, partition)

    def is_on_disk(self, stream: str, partition: int) -> bool:
        return (self._directory(stream) / str(partition)).is_dir()

    def delete_log(self, stream: str, partition: int) -> None:
        """Delete the log of one partition, which has no replica here any more."""
        if self.is_on_disk(stream, partition):
            self._store.log(stream, partition).delete()
            self._store.close_log(stream, partition)

    def set_aside(self, stream: str, partition: int) -> Path:
        """Move a damaged log to the quarantine folder for inspection. Only the latest one of each partition is kept. If the disk fails
        midway, the next call continues."""
        self._store.close_log(stream, partition)
        place = self._store.directory / "quarantine" / stream / str(partition)
        disk = self._store.pool.disk
        disk.make_directory(str(place.parent))
        if self.is_on_disk(stream, partition):
            if place.exists():
                shutil.rmtree(place)
            (self._directory(stream) / str(partition)).rename(place)
        disk.sync_directory(str(place.parent))
        disk.sync_directory(str(self._directory(stream)))
        return place

    def delete_stream(self, stream: str, stream_id: int) -> None:
        """Delete the data of this stream, or of an earlier one; a later stream of the same name keeps its own."""
        found = read_marker(self._store.pool.disk, self._directory(stream))
        if found is not None and found <= stream_id:
            self._delete(stream)

    def _delete(self, stream: str) -> None:
        self._claimed.pop(stream, None)
        numbers = [number for name, number in self._store.on_disk() if name == stream]
        # A folder without a marker has no owner, so the marker is removed last, before the folder.
        for number in numbers[:-1]:
            self._store.delete_log(stream, number)
        disk = self._store.pool.disk
        if numbers:
            self._store.delete_log(stream, numbers[-1])
        remove_marker(disk, self._directory(stream))
        disk.remove_directory(str(self._directory(stream)))
