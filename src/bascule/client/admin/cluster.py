"""Running a cluster: status, drain, add, remove, rebalance, reassign, elect. For the command line, and for whoever writes one.

    async with bascule.connect(…) as client:
        cluster = ClusterAdmin(client)
        await cluster.drain("broker-2", keep_running=True)

Everything but an unclean election may be asked again: what is done already is not done twice.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from bascule.client.client import Client
from bascule.client.connection import wire
from bascule.client.connection.wire import Fields
from bascule.errors import BasculeError

SERVICE: Final = "bascule.Cluster"
STATES: Final = ("active", "leaving", "draining")
STOP, KEEP_RUNNING, UNDO = range(3)


@dataclass(frozen=True, slots=True)
class Member:
    id: str
    host: str
    port: int
    is_controller: bool
    is_voter: bool
    answers: bool
    state: str
    """`active`, `leaving` or `draining`."""
    version: str
    uptime_seconds: float | None
    """None of a server that does not answer."""
    replicas: int
    leaders: int
    groups: int


@dataclass(frozen=True, slots=True)
class Move:
    """A partition that moves, is to move, or would."""

    stream: str
    partition: int
    before: tuple[str, ...]
    after: tuple[str, ...]
    """The preferred leader first."""

    @property
    def place(self) -> str:
        return f"{self.stream}/{self.partition}"


@dataclass(frozen=True, slots=True)
class Replica:
    server: str
    log_end_offset: int
    lag_messages: int
    """-1 while nobody can say."""
    in_sync: bool
    seen_ms_ago: int


@dataclass(frozen=True, slots=True)
class Reassignment:
    """A move that is under way."""

    move: Move
    leader: str
    log_end_offset: int
    high_watermark: int
    replicas: tuple[Replica, ...]
    stalled: str
    """Why it does not go on now; empty when it does."""

    @property
    def lag_messages(self) -> int:
        """What the servers that are to have it still lack, together."""
        return sum(max(0, one.lag_messages) for one in self.replicas if one.server in self.move.after)


@dataclass(frozen=True, slots=True)
class Trouble:
    stream: str
    partition: int
    leader: str
    leader_answers: bool
    replicas: tuple[str, ...]
    in_sync_replicas: tuple[str, ...]
    paused: bool


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    controller: str
    members: tuple[Member, ...]
    reassignments: tuple[Reassignment, ...]
    waiting: tuple[Move, ...]
    """Moves that begin when others are done."""
    leaders_waiting: int
    troubles: tuple[Trouble, ...]
    throttle_bytes_per_second: int
    left_out: int
    """Partitions that did not fit the answer."""

    def member(self, server: str) -> Member | None:
        return next((one for one in self.members if one.id == server), None)

    @property
    def controller_answers(self) -> bool:
        """Otherwise nobody can say what waits."""
        member = self.member(self.controller)
        return member is not None and member.answers

    @property
    def is_moving(self) -> bool:
        return bool(self.reassignments or self.waiting or self.leaders_waiting)


@dataclass(frozen=True, slots=True)
class ServerLoad:
    server: str
    replicas_before: int
    replicas_after: int
    leaders_before: int
    leaders_after: int


@dataclass(frozen=True, slots=True)
class Moves:
    moves: tuple[Move, ...]
    leaders: tuple[Move, ...]
    """Leaderships, as moves from one server to another."""
    load: tuple[ServerLoad, ...]


@dataclass(frozen=True, slots=True)
class Kept:
    stream: str
    partition: int
    reason: str
    replicas: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Removal:
    removed: bool
    replicas_left: int
    moves: tuple[Move, ...]
    blocked: tuple[Kept, ...]
    """Partitions whose messages only this server has."""
    state: str


@dataclass(frozen=True, slots=True)
class Election:
    elected: bool
    logs: dict[str, Fields]
    silent: tuple[str, ...]
    lost_from_offset: int
    lost_to_offset: int
    lost_messages: int
    lost_committed_messages: int


class ClusterAdmin:
    def __init__(self, client: Client) -> None:
        self._brokers = client._brokers

    async def status(self, *, timeout: float | None = None) -> ClusterStatus:
        return _status(await self._call("Status", "StatusResponse", timeout))

    async def drain(
        self, server: str, *, keep_running: bool = False, undo: bool = False, timeout: float | None = None
    ) -> tuple[Kept, ...]:
        """Have a server hand over what it leads and stop; or, with `keep_running`, stay and be given nothing until `undo`.

        Returns what nobody else can lead. A server that stops does so after this returns: watch `status`.
        """
        mode = UNDO if undo else KEEP_RUNNING if keep_running else STOP
        found = await self._call("Drain", "DrainResponse", timeout, server=server, mode=mode)
        return tuple(Kept(one["stream"], one["partition"], one["reason"]) for one in found["kept"])

    async def add_servers(
        self, servers: Iterable[str], *, dry_run: bool = False, timeout: float | None = None
    ) -> Moves:
        found = await self._call("AddServers", "MovesResponse", timeout, servers=list(servers), dry_run=dry_run)
        return _moves(found)

    async def remove_server(
        self, server: str, *, dry_run: bool = False, force: bool = False, timeout: float | None = None
    ) -> Removal:
        """Do what can be done now to take a server out of the cluster. Ask again until it is `removed`."""
        found = await self._call(
            "RemoveServer", "RemoveServerResponse", timeout, server=server, dry_run=dry_run, force=force
        )
        blocked = [
            Kept(one["stream"], one["partition"], one["reason"], tuple(one["replicas"])) for one in found["blocked"]
        ]
        return Removal(
            found["removed"], found["replicas_left"], tuple(map(_move, found["moves"])), tuple(blocked), found["state"]
        )

    async def rebalance(
        self,
        streams: Iterable[str] = (),
        *,
        leaders_only: bool = False,
        dry_run: bool = False,
        timeout: float | None = None,
    ) -> Moves:
        found = await self._call(
            "Rebalance", "MovesResponse", timeout, streams=list(streams), leaders_only=leaders_only, dry_run=dry_run
        )
        return _moves(found)

    async def reassign(
        self,
        stream: str,
        partitions: Iterable[int] = (),
        *,
        replicas: Iterable[str] = (),
        replication_factor: int = 0,
        dry_run: bool = False,
        timeout: float | None = None,
    ) -> Moves:
        """Move partitions, all unless some are named, to these servers; or have each on so many, -1 for all servers."""
        found = await self._call(
            "Reassign",
            "MovesResponse",
            timeout,
            stream=stream,
            partitions=list(partitions),
            replicas=list(replicas),
            replication_factor=replication_factor,
            dry_run=dry_run,
        )
        return _moves(found)

    async def cancel(
        self, stream: str = "", partitions: Iterable[int] = (), *, timeout: float | None = None
    ) -> tuple[Move, ...]:
        """Give up moves of a stream, or of all. Returns those that were."""
        found = await self._call(
            "CancelReassignment", "MovesResponse", timeout, stream=stream, partitions=list(partitions)
        )
        return tuple(map(_move, found["moves"]))

    async def elect_unclean(
        self, stream: str, partition: int, replica: str, *, confirm: bool = False, timeout: float | None = None
    ) -> Election:
        """What would be lost if this replica led; with `confirm` it does, and it is."""
        found = await self._call(
            "ElectUnclean",
            "ElectUncleanResponse",
            timeout,
            once=confirm,
            stream=stream,
            partition=partition,
            replica=replica,
            confirm=confirm,
        )
        logs = {log["server"]: log for log in found.pop("logs")}
        return Election(logs=logs, silent=tuple(found.pop("silent")), **found)

    async def set_throttle(self, bytes_per_second: int, *, timeout: float | None = None) -> None:
        """What each server may fetch to catch up; 0 for no bound."""
        await self._call("SetThrottle", "SetThrottleResponse", timeout, bytes_per_second=bytes_per_second)

    async def _call(
        self, method: str, answer: str, timeout: float | None, *, once: bool = False, **fields: Any
    ) -> Fields:
        request = wire.encode(f"{method}Request", **fields)
        try:
            data = await self._brokers.call(f"{SERVICE}/{method}", request, timeout=timeout, once=once)
        except BasculeError as error:
            # The first line says what is wrong, the second what to do.
            error.message, _, hint = error.message.partition("\n")
            error.hint = hint or error.hint
            raise
        return wire.decode(answer, data)


# ── answers ──────────────────────────────────────────────────────────────────────────────────────


def _move(fields: Fields) -> Move:
    return Move(fields["stream"], fields["partition"], tuple(fields["from"]), tuple(fields["to"]))


def _moves(fields: Fields) -> Moves:
    leaders = [Move(one["stream"], one["partition"], (one["from"],), (one["to"],)) for one in fields["leaders"]]
    load = tuple(ServerLoad(**one) for one in fields["load"])
    return Moves(tuple(map(_move, fields["moves"])), tuple(leaders), load)


def _status(fields: Fields) -> ClusterStatus:
    return ClusterStatus(
        fields["controller"],
        tuple(map(_member, fields["members"])),
        tuple(map(_reassignment, fields["reassignments"])),
        tuple(map(_move, fields["waiting"])),
        fields["leaders_waiting"],
        tuple(map(_trouble, fields["troubles"])),
        fields["throttle_bytes_per_second"],
        fields["reassignments_left_out"] + fields["troubles_left_out"],
    )


def _member(fields: Fields) -> Member:
    given = dict(fields)
    uptime, state = given.pop("uptime_ms"), given.pop("state")
    return Member(
        uptime_seconds=uptime / 1000 if fields["answers"] else None,
        state=STATES[state] if 0 <= state < len(STATES) else f"state {state}",
        **given,
    )


def _reassignment(fields: Fields) -> Reassignment:
    return Reassignment(
        _move(fields),
        fields["leader"],
        fields["log_end_offset"],
        fields["high_watermark"],
        tuple(Replica(**one) for one in fields["replicas"]),
        fields["stalled"],
    )


def _trouble(fields: Fields) -> Trouble:
    lists = {name: tuple(fields[name]) for name in ("replicas", "in_sync_replicas")}
    return Trouble(**{**fields, **lists})
