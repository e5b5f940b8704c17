"""The chains in the stream `__audit`: copies and stated losses are fine; forged, changed, missing and moved records are found."""

from __future__ import annotations

import asyncio
import json
import random
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bascule import limits
from bascule.errors import OperatorError
from bascule.net.grpc.server import Peer
from bascule.net.grpc.status import GrpcError, Status
from bascule.security.audit import stream_writer
from bascule.security.audit.checking import AuditCheck, AuditReport
from bascule.security.audit.log import AuditLog
from bascule.security.audit.queue import AuditQueue
from bascule.security.audit.records import LOST, STREAM_BOOT, AuditChain, AuditEntry, canonical, line_hash, lost_entry
from bascule.security.audit.spool import SPENT_RECORDS_MAX, AuditSpool, read_head
from bascule.security.audit.stream_writer import AuditStreamWriter

KEY = b"k" * 16
ENTRY = AuditEntry(1_700_000_000_123_456_789, "alice", "127.0.0.1:5", "CreateStream", "orders", "OK")


def check(lines: list[bytes], keys: tuple[bytes, ...] = (KEY,), head: str = "") -> AuditReport:
    found = AuditCheck(keys, head, is_stream=True)
    for offset, line in enumerate(lines):
        found.add(offset, line)
    return found.report()


def chain(server: str = "a", run: int = 0, previous: str = "", key: bytes = KEY) -> AuditChain:
    return AuditChain(server, f"{STREAM_BOOT}{run}", previous, key)


# ── the check ────────────────────────────────────────────────────────────────────────────────────

Step = tuple[str, str]
steps = st.lists(
    st.tuples(st.sampled_from("ab"), st.sampled_from(["record", "record", "lost", "restart", "again"])),
    min_size=8,
    max_size=40,
)


def stream_of(happened: list[Step]) -> list[bytes]:
    """What two servers write: a restart begins a new run, `again` publishes the last records of a server once more."""
    lines: list[bytes] = []
    chains = {server: chain(server) for server in "ab"}
    own: dict[str, list[bytes]] = {"a": [], "b": []}
    for number, (server, step) in enumerate(happened):
        if step == "restart":
            chains[server] = chain(server, number + 1, chains[server].previous)
        elif step == "again":
            lines += own[server][-3:]
        else:
            line = chains[server].seal(lost_entry(0, 1 + number) if step == "lost" else ENTRY)
            own[server].append(line)
            lines.append(line)
    return lines


@given(steps)
def test_what_servers_write_is_whole(happened: list[Step]) -> None:
    lines = stream_of(happened)
    report = check(lines)
    assert report.is_whole
    assert report.records == len(set(lines))
    assert report.duplicates == len(lines) - len(set(lines))
    lost = sum(1 + number for number, (_, step) in enumerate(happened) if step == "lost")
    assert sum(trail.lost for trail in report.trails) == lost


@given(happened=steps, place=st.integers(0, 100), seed=st.integers(0, 2))
def test_a_forged_message_is_named_and_does_not_break_the_chains(happened: list[Step], place: int, seed: int) -> None:
    lines = stream_of(happened)
    place %= len(lines) + 1
    previous = line_hash(lines[place - 1]) if place else ""
    forged = (
        chain("a", 99, previous, b"guessed").seal(ENTRY),
        AuditChain("a", "boot-of-a-file", previous, KEY).seal(ENTRY),  # genuine, but of a file
        b"no record",
    )[seed]
    report = check([*lines[:place], forged, *lines[place:]])
    assert [(fault.place, fault.is_forged) for fault in report.faults] == [(place, True)]


def changed(lines: list[bytes], at: int) -> list[bytes]:
    return [*lines[:at], canonical(json.loads(lines[at]) | {"principal": "mallory"}), *lines[at + 1 :]]


def removed(lines: list[bytes], at: int) -> list[bytes]:
    return [*lines[:at], *lines[at + 1 :]]


def swapped(lines: list[bytes], at: int) -> list[bytes]:
    return [*lines[:at], lines[at + 1], lines[at], *lines[at + 2 :]]


@given(
    change=st.sampled_from([changed, removed, swapped]),
    happened=steps,
    place=st.integers(0, 1_000),
    keys=st.sampled_from([(), (KEY,)]),
)
def test_each_change_within_a_chain_is_found(
    change: Callable[[list[bytes], int], list[bytes]], happened: list[Step], place: int, keys: tuple[bytes, ...]
) -> None:
    own = list(dict.fromkeys(stream_of([("a", step) for _, step in happened])))
    if len(own) < 4:
        return
    at = 1 + place % (len(own) - 3)  # the ends are named by `follows` and by the head
    assert not check(change(own, at), keys).is_whole


def test_the_ends_are_visible_too() -> None:
    own = chain()
    lines = [own.seal(ENTRY) for _ in range(4)]
    assert check(lines[1:]).trails[0].follows == line_hash(lines[0])
    assert not check(lines[:-1], head=line_hash(lines[-1])).has_head
    assert check(lines, head=line_hash(lines[-1])).has_head


def test_a_record_without_a_mac_is_forged_also_without_the_secret() -> None:
    (fault,) = check([AuditChain("a", STREAM_BOOT, "", None).seal(ENTRY)], ()).faults
    assert fault.is_forged
    assert "no MAC" in fault.text


def test_a_server_that_lost_its_data_directory_begins_a_chain_that_is_reported() -> None:
    (fault,) = check([chain().seal(ENTRY), chain(run=1).seal(ENTRY)]).faults
    assert "begins a new chain" in fault.text
    assert not fault.is_forged


# ── the spool ────────────────────────────────────────────────────────────────────────────────────


def test_the_spool_keeps_what_is_not_published(tmp_path: Path) -> None:
    path, own = tmp_path / "audit.pending", chain()
    lines = [own.seal(ENTRY) for _ in range(4)]
    spool = AuditSpool(path, "a")
    assert (len(spool), spool.last.hash) == (0, "")
    spool.append(lines[:3])
    spool.published()
    spool.close()
    spool = AuditSpool(path, "a")  # the file was not shortened: the first record is published again
    assert (len(spool), spool.first, spool.last.hash) == (3, lines[0], line_hash(lines[2]))
    for _ in range(3):
        assert not spool.needs_trim
        spool.published()
    assert spool.needs_trim
    spool.trim()
    spool.append(lines[3:])
    spool.close()
    with path.open("ab") as file:
        file.write(lines[3][:50])  # a crash within an append
    spool = AuditSpool(path, "a")
    assert (len(spool), spool.first, spool.last.number) == (1, lines[3], 4)
    assert read_head(path) == spool.last
    spool.close()


def test_a_spool_whose_file_was_removed_writes_it_again(tmp_path: Path) -> None:
    path, own = tmp_path / "audit.pending", chain()
    lines = [own.seal(ENTRY) for _ in range(3)]
    spool = AuditSpool(path, "a")
    spool.append(lines[:2])
    spool.published()
    path.unlink()
    spool.append(lines[2:])
    spool.close()
    spool = AuditSpool(path, "a")
    assert (len(spool), spool.first, spool.last.number) == (2, lines[1], 3)
    spool.close()


def test_a_spool_that_is_never_empty_does_not_grow_for_ever(tmp_path: Path) -> None:
    spool, own = AuditSpool(tmp_path / "audit.pending", "a"), chain()
    spool.append([own.seal(ENTRY)])
    for _ in range(2 * SPENT_RECORDS_MAX // 512 + 1):
        spool.append([own.seal(ENTRY) for _ in range(512)])
        for _ in range(512):
            spool.published()
        if spool.needs_trim:
            spool.trim()
    assert len((tmp_path / "audit.pending").read_bytes().splitlines()) < SPENT_RECORDS_MAX
    spool.close()


@pytest.mark.parametrize("damage", [b"", b"{}\n", b'{"server":"b","boot":"","number":1,"hash":"x"}\n', b"\xff\n"])
def test_a_damaged_spool_begins_a_new_chain(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "audit.pending"
    path.write_bytes(damage)
    spool = AuditSpool(path, "a")
    assert (len(spool), spool.last.hash) == (0, "")
    with pytest.raises(OperatorError, match="another process"):
        AuditSpool(path, "a")
    spool.close()
    own = chain()
    path.write_bytes(path.read_bytes() + own.seal(ENTRY) + b"\n" + own.seal(ENTRY) + b"\n")
    spool = AuditSpool(path, "a")
    assert len(spool) == 2
    spool.close()
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + lines[2])
    assert read_head(path) is None


# ── the writer ───────────────────────────────────────────────────────────────────────────────────


class AuditedServer:
    """A server that is started, stopped and killed, and the stream that it publishes to."""

    def __init__(self, directory: Path, stored: list[bytes], outcome: Callable[[], str]) -> None:
        directory.mkdir(exist_ok=True)
        self._path = directory / "audit.pending"
        self._news = asyncio.Event()
        self.queue = AuditQueue(self._news.set)
        self.log = AuditLog(stream=self.queue)
        self._stored = stored
        self._outcome = outcome
        self.spool = AuditSpool(self._path, "a")
        self.writer = AuditStreamWriter("a", KEY, self.spool, self.log, self.queue, self._news, self._publish)

    async def _publish(self, record: bytes, _timeout: float) -> None:
        await asyncio.sleep(0)
        outcome = self._outcome()
        if outcome != "refused":
            self._stored.append(record)
        if outcome != "acked":
            raise GrpcError(Status.UNAVAILABLE, f"the message was {outcome}")

    async def called(self, count: int) -> None:
        for _ in range(count):
            self.log.called(Peer("10.0.0.1:5", "alice"), "CreateStream", "orders", "OK", "")
            await asyncio.sleep(0)

    async def written(self, count: int) -> None:
        async with asyncio.timeout(60):
            while self.queue.written < count:
                await asyncio.sleep(0.001)

    async def kill(self, directory: Path) -> None:
        """End it, and leave its file in the next directory as it is now: a thread may go on with the old one."""
        self.writer._task.cancel()
        await asyncio.gather(self.writer._task, return_exceptions=True)
        directory.mkdir()
        (directory / "audit.pending").write_bytes(self._path.read_bytes())

    async def stop(self, directory: Path) -> None:
        await self.writer.stop()
        directory.mkdir()
        (directory / "audit.pending").write_bytes(self._path.read_bytes())


def simulate(work: Callable[[Path], Awaitable[None]]) -> None:
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patched:
        patched.setattr(stream_writer, "RETRY_SECONDS", 0.001)
        asyncio.run(_awaited(work, Path(directory)))


async def _awaited(work: Callable[[Path], Awaitable[None]], directory: Path) -> None:
    await work(directory)


@settings(max_examples=15)
@given(st.integers(0, 1_000))
def test_the_chain_is_whole_after_failures_lost_acks_stops_and_kills(seed: int) -> None:
    chance = random.Random(seed)
    stored: list[bytes] = []

    async def live(directory: Path) -> None:
        for run in range(4):
            server = AuditedServer(
                directory / f"{run}", stored, lambda: chance.choice(["acked", "acked", "refused", "unacked"])
            )
            count = chance.randrange(1, 12)
            await server.called(count)
            await server.written(chance.randrange(count))
            end = server.kill if chance.random() < 0.5 else server.stop
            await end(directory / f"{run + 1}")
        last = AuditedServer(directory / "4", stored, lambda: "acked")
        await last.called(1)
        await last.writer.stop()
        head = read_head(directory / "4" / "audit.pending")
        assert head is not None
        report = check(stored, head=head.hash)
        assert report.is_whole, report.faults
        assert report.has_head
        assert report.trails[0].follows == ""

    simulate(live)


def test_a_stream_that_is_away_delays_no_call_and_the_loss_is_stated() -> None:
    stored: list[bytes] = []
    outcome = ["refused"]

    async def live(directory: Path) -> None:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(limits, "AUDIT_QUEUE_RECORDS_MAX", 64)
            server = AuditedServer(directory, stored, lambda: outcome[0])
            await server.called(400)
            lost = server.queue.lost
            assert 400 - 3 * 64 <= lost < 400
            outcome[0] = "acked"
            await server.written(401 - lost)  # at least one record states the loss
            await server.called(1)
            await server.writer.stop()
            report = check(stored)
            assert report.is_whole
            assert report.trails[0].lost == lost
            assert sum(json.loads(line)["action"] != LOST for line in stored) == 401 - lost

    simulate(live)


def test_records_are_on_disk_while_an_ack_is_waited_for() -> None:
    async def live(directory: Path) -> None:
        server = AuditedServer(directory, [], lambda: "acked")
        silent: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        server.writer._publish = lambda _record, _timeout: silent
        pending = directory / "audit.pending"
        async with asyncio.timeout(60):
            for count in (1, 1, 200):
                lines = len(pending.read_bytes().splitlines()) + count
                await server.called(count)
                while len(pending.read_bytes().splitlines()) < lines:
                    await asyncio.sleep(0.001)
        silent.set_result(None)
        await server.writer.stop()
        assert len(pending.read_bytes().splitlines()) == 1

    simulate(live)


def test_a_stop_keeps_what_could_not_be_published_for_the_next_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_writer, "PUBLISH_SECONDS", 0.05)
    stored: list[bytes] = []

    async def live(directory: Path) -> None:
        server = AuditedServer(directory, stored, lambda: "refused")
        await server.called(200)
        await server.writer.stop()
        assert stored == []
        server = AuditedServer(directory, stored, lambda: "acked")
        await server.called(1)
        await server.written(201)
        await server.writer.stop()
        report = check(stored)
        assert report.is_whole
        assert (report.records, len(report.trails[0].boots)) == (201, 2)
        assert read_head(directory / "audit.pending") is not None
        assert len((directory / "audit.pending").read_bytes().splitlines()) == 1

    simulate(live)
