"""How a server without state enters a cluster: as its seed, as one of the named peers, or by asking to join."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from bascule import limits
from bascule.errors import InvalidConfig, RejectedEnvelope, StateError, Unavailable
from bascule.metadata.identity import random_id
from bascule.net.nats.envelope import MessageType, pack_message, unpack_message
from bascule.net.nats.subjects import ControlSubjects
from bascule.proto.internal_pb2 import RaftJoinRequest, RaftJoinResponse
from bascule.raft.core.model.membership import RaftMembership
from bascule.raft.transport import Bus, publish_quietly

JOIN_ATTEMPTS: Final = 30
JOIN_WAIT_SECONDS: Final = 1.0
SEED_INTERVAL_SECONDS: Final = 10.0
WORD_BYTES_MAX: Final = 8 * limits.NAME_CHARACTERS_MAX + 64
"""Size of a seed's announcement: two names and two numbers. Longer ones are ignored."""


@dataclass(frozen=True, slots=True)
class Beginning:
    """The initial state of a new member's Raft log. A server that joins knows no members; the leader sends them."""

    cluster_id: str
    membership: RaftMembership


def as_seed(server_id: str) -> Beginning:
    """A cluster of one server, which others join."""
    return Beginning(random_id(), RaftMembership(voters=frozenset({server_id})))


def as_peer(namespace: str, server_id: str, peers: Iterable[str], voters_max: int) -> Beginning:
    """A cluster of named servers; each computes the same membership: sorted by name, the first ones vote."""
    members = sorted({server_id, *peers})
    if any(not member for member in members):
        raise InvalidConfig(
            "clustering.raft.bootstrap.peers names an empty id", hint="name the ids of the other servers"
        )
    voters = members[:voters_max] if voters_max else members
    digest = hashlib.sha256("\0".join([namespace, *members]).encode()).hexdigest()[:22]
    return Beginning(digest, RaftMembership(frozenset(voters), frozenset(members) - frozenset(voters)))


async def by_joining(
    bus: Bus,
    subjects: ControlSubjects,
    server_id: str,
    *,
    attempts: int = JOIN_ATTEMPTS,
    wait_seconds: float = JOIN_WAIT_SECONDS,
) -> Beginning:
    """Ask the leader to join, until it answers. Raises Unavailable when no leader answers."""
    request = pack_message(MessageType.RAFT_JOIN_REQUEST, RaftJoinRequest(node_id=server_id))
    last: Exception | None = None
    for attempt in range(attempts):
        if attempt:
            await asyncio.sleep(wait_seconds)
        try:
            answer = unpack_message(
                RaftJoinResponse,
                await bus.request(subjects.join, request, wait_seconds),
                MessageType.RAFT_JOIN_RESPONSE,
            )
        except (Unavailable, RejectedEnvelope) as error:
            last = error
            continue
        if not answer.error and answer.cluster_id:
            return Beginning(answer.cluster_id, RaftMembership())
        last = StateError(answer.error or "the leader does not say which cluster it leads")
    raise Unavailable(
        f"failed to join metadata Raft group after {attempts} attempts: {last}",
        hint="start one server with --raft-bootstrap-seed, or all with --raft-bootstrap-peers; "
        f"all need the same NATS, `cluster.secret` and namespace, which is `{subjects.namespace}` here",
    )


def decode_join_request(data: bytes) -> str:
    """The id of the server that asks. Raises RejectedEnvelope."""
    node_id = unpack_message(RaftJoinRequest, data, MessageType.RAFT_JOIN_REQUEST).node_id
    if (
        not 0 < len(node_id) <= limits.NAME_CHARACTERS_MAX
        or not node_id.isprintable()
        or any(char.isspace() or char in ".*>" for char in node_id)
    ):
        raise RejectedEnvelope(f"a join request names the impossible id {node_id!r}")
    return node_id


def encode_join_response(cluster_id: str, error: str = "") -> bytes:
    response = RaftJoinResponse(error=error, cluster_id="" if error else cluster_id)
    return pack_message(MessageType.RAFT_JOIN_RESPONSE, response)


class SeedWatch:
    """Detects a second server that was started as seed: there would be two clusters in one namespace.

    Only a seed that has nothing to lose stops: one that started without state, which no server has joined and which has no stream.
    Of two such seeds the one with fewer log entries stops; if these are equal, both stop. A cluster that has begun logs the other
    seed and goes on. Seeds of the same cluster may meet, because a restarted server still has the flag on its command line.
    """

    def __init__(
        self,
        bus: Bus,
        subjects: ControlSubjects,
        server_id: str,
        cluster_id: str,
        weight: Callable[[], tuple[int, int]],
        has_begun: Callable[[], bool],
        on_rival: Callable[[str, bool], None],
    ) -> None:
        """`weight` returns the members and log entries of this cluster, `has_begun` whether it has state to lose; `on_rival` gets the
        rival's id and whether this seed stops."""
        self._bus = bus
        self._subjects = subjects
        self._server_id = server_id
        self._cluster_id = cluster_id
        self._weight = weight
        self._has_begun = has_begun
        self._on_rival = on_rival
        self._task: asyncio.Task[None] | None = None

    async def start(self, interval_seconds: float = SEED_INTERVAL_SECONDS) -> None:
        await self._bus.subscribe(self._subjects.bootstrap, self._on_word)
        self._task = asyncio.create_task(self._tell(interval_seconds), name="seed-watch")

    def _word(self) -> bytes:
        members, entries = self._weight()
        return f"{self._server_id} {self._cluster_id} {members} {entries}".encode()

    async def _on_word(self, data: bytes, _reply: str) -> None:
        if len(data) > WORD_BYTES_MAX:
            return
        fields = data.decode("utf-8", "replace").split(" ")
        if len(fields) != 4 or not (fields[2].isdecimal() and fields[3].isdecimal()) or fields[1] == self._cluster_id:
            return
        weight = (int(fields[2]), int(fields[3]))
        self._on_rival(fields[0], not self._has_begun() and weight >= self._weight())

    async def _tell(self, interval_seconds: float) -> None:
        while True:
            await self._say()
            await asyncio.sleep(interval_seconds)

    async def _say(self) -> None:
        await publish_quietly(self._bus, self._subjects.bootstrap, self._word())

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
