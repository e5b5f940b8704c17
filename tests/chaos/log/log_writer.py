"""A process that writes to a log until it is killed. `python -m tests.chaos.log.log_writer` is a fork server for such processes.

It reads orders from its standard input, one JSON object a line, and forks a writer for each: everything is imported by then, so
a writer starts in a millisecond. Writers tell what they do on the standard output they share:

    pid <n>               the writer is there
    open <end offset>     recovery is over
    try <batch>           about to append it
    ack <batch> <offset>  it was appended at that offset
    done                  nothing left to do

The order `{"reap": true}` waits for the writer; the answer is `gone <status>`. Until then its process id cannot be another's.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
from typing import Any, NoReturn

from bascule.log import LogOptions, PartitionLog, SyncPolicy
from bascule.log.cleaning.cleaner import clean
from bascule.log.disk.operations import Disk, PosixDisk
from bascule.log.sync.group_commit import Syncer
from tests.support.logs import KEYS, Draft, batch_of, random_draft


class DyingDisk(PosixDisk):
    """The real disk, until the n-th change: the process is killed in front of it, or in the middle of it if it is a write."""

    def __init__(self, dies_at: int, rng: random.Random) -> None:
        super().__init__()
        self._left = dies_at
        self._rng = rng

    def _count(self) -> None:
        self._left -= 1
        if self._left <= 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def open(self, path: str, *, create: bool = False) -> int:
        if create:
            self._count()
        return super().open(path, create=create)

    def write(self, handle: int, data: bytes | memoryview, position: int) -> None:
        if self._left <= 1:
            os.pwrite(handle, data[: self._rng.randint(0, len(data))], position)
        self._count()
        super().write(handle, data, position)

    def truncate(self, handle: int, size: int) -> None:
        self._count()
        super().truncate(handle, size)

    def sync(self, handle: int) -> None:
        self._count()
        super().sync(handle)

    def sync_directory(self, path: str) -> None:
        self._count()
        super().sync_directory(path)

    def rename(self, source: str, target: str) -> None:
        self._count()
        super().rename(source, target)

    def remove(self, path: str) -> None:
        self._count()
        super().remove(path)


def drafts_of(run: int, batch: int) -> list[Draft]:
    """What writer number `run` puts into its batch number `batch`: the reader of the log must know as well."""
    rng = random.Random(run << 20 | batch)
    mark = b"%d/%d/" % (run, batch)
    drafts = [random_draft(rng, keys=8) for _ in range(rng.randint(1, 6))]
    return [draft._replace(value=None if draft.value is None else mark + draft.value) for draft in drafts]


def options_from(order: dict[str, Any]) -> LogOptions:
    settings = dict(order["options"])
    settings["sync"] = SyncPolicy(settings.get("sync", "ack"))
    return LogOptions(**settings)


def say(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def write_until_killed(order: dict[str, Any]) -> None:
    rng = random.Random(order["seed"])
    say("pid", os.getpid())
    disk: Disk = DyingDisk(order["dies_at"], rng) if order["dies_at"] else PosixDisk()
    log = PartitionLog(
        order["directory"],
        options_from(order),
        disk=disk,
        keys=KEYS,
        syncer=Syncer(interval_ms=order["sync_interval_ms"]),
    )
    log.open()
    say("open", log.log_end_offset)
    for batch in range(order["batches"]):
        drafts = drafts_of(order["run"], batch)
        say("try", batch)
        appended = log.append(batch_of(drafts), leader_epoch=order["run"] + 1)
        if log.options.sync is SyncPolicy.ALWAYS:
            log.sync()
        say("ack", batch, appended.base_offset)
        log.advance_high_watermark(appended.last_offset)
        maintain(log, rng)
    if rng.random() < 0.5:
        log.close()
    say("done")


def maintain(log: PartitionLog, rng: random.Random) -> None:
    chance = rng.random()
    if chance < 0.05:
        log.sync()
    elif chance < 0.1:
        log.write_checkpoint()
    elif chance < 0.14:
        log.roll()
    elif chance < 0.22:
        clean(log)


def _child(order: dict[str, Any]) -> NoReturn:
    status = 1
    try:
        write_until_killed(order)
        status = 0
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
    os._exit(status)


def serve() -> None:
    writer = 0
    for line in sys.stdin:
        order = json.loads(line)
        if "reap" in order:
            _, status = os.waitpid(writer, 0)
            say("gone", status)
            continue
        writer = os.fork()
        if writer == 0:
            _child(order)


if __name__ == "__main__":
    serve()
