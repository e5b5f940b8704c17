"""Running a cluster: status, drain, add, remove, rebalance, reassign, elect, keys, policies. Used by the command line.

    async with bascule.connect(…) as client:
        cluster = ClusterAdmin(client)
        await cluster.drain("broker-2", keep_running=True)

Every call but an unclean election may be repeated: what is done already is not done twice.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from bascule.client.connection import wire
from bascule.client.connection.core import ClientCore
from bascule.client.connection.wire import Fields
from bascule.errors import BasculeError

_T = TypeVar("_T")

SERVICE: Final = "bascule.Cluster"
STATES: Final = ("active", "leaving", "draining")
STOP, KEEP_RUNNING, UNDO = range(3)
LOAD, SWITCH = range(2)


@dataclass(frozen=True, slots=True)
class ClusterMember:
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
    """None if the server does not answer."""
    replicas: int
    leaders: int
    groups: int
    data_free_bytes: int
    """Free space on the disk of its data directory."""
    data_size_bytes: int
    """0 if it is not known."""
    disk_full: bool
    """Its partitions refuse messages."""


@dataclass(frozen=True, slots=True)
class Count:
    """A sample of a metric."""

    name: str
    labels: dict[str, str]
    value: float


@dataclass(frozen=True, slots=True)
class ServerCounts:
    """Metrics of a server."""

    server: str
    error: str
    """Why the server has not answered; empty if it has."""
    counts: tuple[Count, ...]
    left_out: int
    """Samples that did not fit the answer."""


@dataclass(frozen=True, slots=True)
class Move:
    """The replicas of a partition before and after a move, which may be planned, waiting or in progress."""

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
    """-1 while it is unknown."""
    in_sync: bool
    seen_ms_ago: int


@dataclass(frozen=True, slots=True)
class Reassignment:
    """A move in progress."""

    move: Move
    leader: str
    log_end_offset: int
    high_watermark: int
    replicas: tuple[Replica, ...]
    stalled: str
    """Why it makes no progress; empty when it does."""

    @property
    def lag_messages(self) -> int:
        """Messages that the new replicas still lack, summed."""
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
    members: tuple[ClusterMember, ...]
    reassignments: tuple[Reassignment, ...]
    waiting: tuple[Move, ...]
    """Moves that start when others are done."""
    leaders_waiting: int
    troubles: tuple[Trouble, ...]
    throttle_bytes_per_second: int
    left_out: int
    """Partitions that did not fit the answer."""

    def member(self, server: str) -> ClusterMember | None:
        return next((one for one in self.members if one.id == server), None)

    @property
    def controller_answers(self) -> bool:
        """If it does not, `waiting` and `leaders_waiting` are unknown."""
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
class PlannedMoves:
    moves: tuple[Move, ...]
    leaders: tuple[Move, ...]
    """Leaderships, as moves from one server to another."""
    load: tuple[ServerLoad, ...]


@dataclass(frozen=True, slots=True)
class KeptPartition:
    stream: str
    partition: int
    reason: str
    replicas: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Removal:
    removed: bool
    replicas_left: int
    moves: tuple[Move, ...]
    blocked: tuple[KeptPartition, ...]
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


@dataclass(frozen=True, slots=True)
class ServerKeys:
    """The master keys of a server, by their ids."""

    server: str
    error: str
    """Why the server has not answered, or refuses; empty if it has answered."""
    source: str
    current: str
    """The key that wraps new data keys."""
    known: tuple[str, ...]
    offered: tuple[str, ...]
    """The keys in the source when the server read it last, the current one first."""
    phase: str
    """`idle`, `counting` or `rewrapping`."""
    bytes_done: int
    bytes_total: int
    is_counted: bool
    uses: dict[str, int]
    """Encrypted batches by key; `unknown` for a key that the server does not have."""
    former: int
    """Batches of a format that does not bind them to their stream."""
    rewrapped: int
    closed: int
    """Encrypted partitions that were left out, because they are paused."""
    failures: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ClusterPolicy:
    """The policy that the cluster stores."""

    lines: tuple[str, ...]
    admins: tuple[str, ...]
    """Users and roles that may do everything, by the configuration of the server."""


class ClusterAdmin:
    """Calls that operate a cluster: see docs/guides/operating-a-cluster.md. Answers are in `bascule.client.admin.cluster`."""

    def __init__(self, client: ClientCore) -> None:
        self._brokers = client._brokers

    async def status(self, *, timeout: float | None = None) -> ClusterStatus:
        return _status(await self._call("Status", "StatusResponse", timeout))

    async def counts(self, names: Iterable[str] = (), *, timeout: float | None = None) -> tuple[ServerCounts, ...]:
        """Metrics of every server, as docs/reference/metrics.md names them; a `*` at the end of a name stands for any rest.

        Without names: all metrics that do not belong to a stream.
        """
        found = await self._call("Counts", "CountsResponse", timeout, names=list(names))
        return tuple(
            _made(ServerCounts, one, counts=[_count(count) for count in one["counts"]]) for one in found["servers"]
        )

    async def drain(
        self, server: str, *, keep_running: bool = False, undo: bool = False, timeout: float | None = None
    ) -> tuple[KeptPartition, ...]:
        """Have a server hand over its leaderships and stop; with `keep_running` it stays and gets none until `undo`.

        Returns the partitions that no other server can lead. The server stops after this returns: watch `status`.
        """
        mode = UNDO if undo else KEEP_RUNNING if keep_running else STOP
        found = await self._call("Drain", "DrainResponse", timeout, server=server, mode=mode)
        return tuple(_made(KeptPartition, one) for one in found["kept"])

    async def add_servers(
        self, servers: Iterable[str], *, dry_run: bool = False, timeout: float | None = None
    ) -> PlannedMoves:
        found = await self._call("AddServers", "MovesResponse", timeout, servers=list(servers), dry_run=dry_run)
        return _moves(found)

    async def remove_server(
        self, server: str, *, dry_run: bool = False, force: bool = False, timeout: float | None = None
    ) -> Removal:
        """Start or continue the removal of a server. Repeat it until the result is `removed`."""
        found = await self._call(
            "RemoveServer", "RemoveServerResponse", timeout, server=server, dry_run=dry_run, force=force
        )
        moves = [_move(one) for one in found["moves"]]
        return _made(Removal, found, moves=moves, blocked=[_made(KeptPartition, one) for one in found["blocked"]])

    async def rebalance(
        self,
        streams: Iterable[str] = (),
        *,
        leaders_only: bool = False,
        dry_run: bool = False,
        timeout: float | None = None,
    ) -> PlannedMoves:
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
    ) -> PlannedMoves:
        """Move partitions, all by default, to these replicas, or give each `replication_factor` replicas, -1 for all servers."""
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
        """Cancel the moves of a stream, or of all streams, and return them."""
        found = await self._call(
            "CancelReassignment", "MovesResponse", timeout, stream=stream, partitions=list(partitions)
        )
        return tuple(map(_move, found["moves"]))

    async def elect_unclean(
        self, stream: str, partition: int, replica: str, *, confirm: bool = False, timeout: float | None = None
    ) -> Election:
        """What an unclean election of this replica would lose. With `confirm` the replica is elected."""
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
        return _made(Election, found, logs={log["server"]: log for log in found["logs"]})

    async def set_throttle(self, bytes_per_second: int, *, timeout: float | None = None) -> None:
        """Limit the rate at which each server fetches to catch up; 0 for no limit."""
        await self._call("SetThrottle", "SetThrottleResponse", timeout, bytes_per_second=bytes_per_second)

    async def keys(self, *, count: bool = False, timeout: float | None = None) -> tuple[ServerKeys, ...]:
        """The master keys of all servers. `count` begins a new count of their use; repeat the call until no server counts."""
        return _keys(await self._call("Keys", "KeysResponse", timeout, count=count))

    async def load_keys(self, *, timeout: float | None = None) -> tuple[ServerKeys, ...]:
        """Have all servers read their master keys again. They open messages with them; the current key stays."""
        return _keys(await self._call("RotateKeys", "KeysResponse", timeout, step=LOAD))

    async def switch_keys(self, *, timeout: float | None = None) -> tuple[ServerKeys, ...]:
        """Have all servers encrypt with the first key of their source from now on, and re-wrap what is stored."""
        return _keys(await self._call("RotateKeys", "KeysResponse", timeout, step=SWITCH))

    async def policies(self, *, timeout: float | None = None) -> ClusterPolicy:
        return _made(ClusterPolicy, await self._call("ListPolicies", "ListPoliciesResponse", timeout))

    async def grant(self, lines: Iterable[str], *, timeout: float | None = None) -> tuple[str, ...]:
        """Add lines to the policy: all of them, or none. Returns those that it had before."""
        found = await self._call("GrantPolicies", "ChangePoliciesResponse", timeout, lines=list(lines))
        return tuple(found["unchanged"])

    async def revoke(self, lines: Iterable[str], *, timeout: float | None = None) -> tuple[str, ...]:
        """Remove lines from the policy. Returns those that it did not have."""
        found = await self._call("RevokePolicies", "ChangePoliciesResponse", timeout, lines=list(lines))
        return tuple(found["unchanged"])

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


def _made(kind: type[_T], fields: Fields, **more: Any) -> _T:
    """An object with these fields; lists become tuples."""
    return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in (fields | more).items()})


def _count(fields: Fields) -> Count:
    return Count(fields["name"], {entry["key"]: entry["value"] for entry in fields["labels"]}, fields["value"])


def _keys(fields: Fields) -> tuple[ServerKeys, ...]:
    return tuple(
        _made(ServerKeys, one, uses={use["id"]: use["batches"] for use in one["uses"]}) for one in fields["servers"]
    )


def _move(fields: Fields) -> Move:
    return Move(fields["stream"], fields["partition"], tuple(fields["from"]), tuple(fields["to"]))


def _moves(fields: Fields) -> PlannedMoves:
    leaders = [Move(one["stream"], one["partition"], (one["from"],), (one["to"],)) for one in fields["leaders"]]
    load = tuple(_made(ServerLoad, one) for one in fields["load"])
    return PlannedMoves(tuple(map(_move, fields["moves"])), tuple(leaders), load)


def _status(fields: Fields) -> ClusterStatus:
    left_out = fields.pop("reassignments_left_out") + fields.pop("troubles_left_out")
    return _made(
        ClusterStatus,
        fields,
        members=[_member(one) for one in fields["members"]],
        reassignments=[_reassignment(one) for one in fields["reassignments"]],
        waiting=[_move(one) for one in fields["waiting"]],
        troubles=[_made(Trouble, one) for one in fields["troubles"]],
        left_out=left_out,
    )


def _member(fields: Fields) -> ClusterMember:
    uptime, state = fields.pop("uptime_ms"), fields["state"]
    name = STATES[state] if 0 <= state < len(STATES) else f"state {state}"
    return _made(ClusterMember, fields, uptime_seconds=uptime / 1000 if fields["answers"] else None, state=name)


def _reassignment(fields: Fields) -> Reassignment:
    return Reassignment(
        _move(fields),
        fields["leader"],
        fields["log_end_offset"],
        fields["high_watermark"],
        tuple(_made(Replica, one) for one in fields["replicas"]),
        fields["stalled"],
    )
