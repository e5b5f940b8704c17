"""Readers beside a writer that appends, merges, sums up and clears away as fast as it can: what they see is always a whole archive."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from bascule.lake.archive import Archive
from bascule.lake.compaction import Compaction
from bascule.lake.delta.place import LakePlace
from bascule.lake.facts import ArchiveState, Commit, Covered
from bascule.lake.files import WriteTask
from bascule.lake.housekeeping import Housekeeping
from bascule.lake.verification import Verification
from tests.support.compacting import messages

SECONDS = 3.0
ROWS = 20


class Writer:
    def __init__(self, path: Path) -> None:
        self.archive = Archive(path)
        self.archive.create(["orders"])
        self.rows = 0

    def run(self, until: float) -> None:
        with self.archive.writing():
            keeper = Housekeeping(self.archive, 0.0)
            state = keeper.begin()
            work = Compaction(self.archive, target_bytes=20_000)
            while time.monotonic() < until:
                keeper.after(self._append(state), state)
                if state.number % 5 == 0 and (merged := work.round(state)) is not None:
                    keeper.after(merged, state)

    def _append(self, state: ArchiveState) -> Commit:
        found = WriteTask(LakePlace(str(self.archive.path)), {}).write(iter([messages(self.rows, ROWS)]))
        files = tuple(replace(one, stream_id=7) for one in found)
        self.rows += ROWS
        commit = Commit(
            state.number + 1, "append", time.time_ns(), added=files, covered=(Covered("orders", 7, 0, 0, self.rows),)
        )
        commit = self.archive.commit(commit, state)
        state.apply(commit)
        return commit


def must_be_whole(state: ArchiveState) -> None:
    files = state.in_order()
    assert [one.first_offset for one in files] == [0, *(one.last_offset + 1 for one in files[:-1])][: len(files)]
    assert state.rows == state.next_offsets.get(("orders", 7, 0), 0)


def test_what_readers_see_is_whole(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "a")
    until = time.monotonic() + SECONDS
    failures: list[BaseException] = []
    looks = dict.fromkeys(("open", "follow", "follow rarely", "prove"), 0)

    def open_anew() -> None:
        must_be_whole(Archive(tmp_path / "a").state())

    followed = [ArchiveState(number=-1), ArchiveState(number=-1)]

    def follow() -> None:
        followed[0] = writer.archive.refresh(followed[0])
        must_be_whole(followed[0])

    def follow_rarely() -> None:
        time.sleep(0.3)  # so that commits were summed up and removed meanwhile
        followed[1] = writer.archive.refresh(followed[1])
        must_be_whole(followed[1])

    def prove() -> None:
        assert Verification(Archive(tmp_path / "a"), None, lambda _: None).run().faults == []

    def again(name: str, look: Callable[[], None]) -> None:
        try:
            while not looks[name] or (time.monotonic() < until and not failures):
                look()
                looks[name] += 1
        except BaseException as failure:
            failures.append(failure)

    def write() -> None:
        try:
            writer.run(until)
        except BaseException as failure:
            failures.append(failure)

    named = zip(looks, (open_anew, follow, follow_rarely, prove), strict=True)
    threads = [threading.Thread(target=write), *(threading.Thread(target=again, args=one) for one in named)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []
    assert all(looks.values())
    state = writer.archive.state()
    must_be_whole(state)
    assert state.rows == writer.rows
    assert len(list((tmp_path / "a").rglob("date=*/*.parquet"))) == len(state.files)
