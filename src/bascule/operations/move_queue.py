"""The controller's queue of moves of replicas: a bounded number at a time, and after the last one the hand-overs of leaderships.

A move in progress is part of the metadata and continues after any failure. Waiting moves are in the memory of the controller: when
another server becomes controller they are lost, and the operator repeats the request. Repeating a request moves nothing twice.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from bascule import limits
from bascule.errors import BasculeError
from bascule.metadata.core.model.ops import Op, PauseStream, Reassign, ResumeStream
from bascule.metadata.core.model.streams import Partition
from bascule.metadata.core.rebalance import LeaderMove, ReplicaMove, plan_leaders
from bascule.metadata.leader_task import LeaderTask
from bascule.net.grpc.status import GrpcError
from bascule.proto import extensions_pb2 as extensions

if TYPE_CHECKING:
    from bascule.operations.members import Members
    from bascule.operations.switchboard import Switchboard

POLL_SECONDS: Final = 0.1
HAND_OVER_SECONDS: Final = 10.0

_Key = tuple[str, int]
_logger = logging.getLogger(__name__)


class MoveQueue:
    def __init__(self, members: Members, switchboard: Switchboard) -> None:
        self._members = members
        self._controller = members.controller
        self._switchboard = switchboard
        self._waiting: dict[_Key, ReplicaMove] = {}
        self._asked: set[_Key] = set()
        """Partitions whose leaderships are balanced after the last move."""
        self._paused: dict[_Key, bool] = {}
        """Partitions that were resumed for a move, and the `resume_all` flag of their stream."""
        self._leaders: list[LeaderMove] = []
        self._news = asyncio.Event()
        self._task = LeaderTask(self._controller, self._work, "moves")

    def start(self) -> None:
        self._task.start()
        self._controller.watch_role(self._on_role)

    async def stop(self) -> None:
        await self._task.stop()

    def _on_role(self, leads: bool) -> None:
        if not leads:
            self._waiting.clear()
            self._asked.clear()
            self._paused.clear()
            self._leaders.clear()

    # ── asking ───────────────────────────────────────────────────────────────────────────────────

    def add(self, moves: Iterable[ReplicaMove]) -> None:
        for move in moves:
            key = (move.stream, move.partition)
            self._waiting[key] = move
            self._asked.add(key)
        self._news.set()

    def add_leaders(self, streams: Iterable[str]) -> None:
        """Balance the leaderships of these streams after the last move."""
        known = self._controller.metadata.streams
        self._asked.update((name, one.id) for name in streams if name in known for one in known[name].partitions)
        self._news.set()

    def drop(self, key: _Key) -> ReplicaMove | None:
        self._asked.discard(key)
        return self._waiting.pop(key, None)

    @property
    def waiting(self) -> list[ReplicaMove]:
        return list(self._waiting.values())

    @property
    def leaders_waiting(self) -> int:
        return len(self._leaders) or len(self._asked)

    # ── doing ────────────────────────────────────────────────────────────────────────────────────

    async def _work(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            while self._waiting or self._asked or self._paused:
                try:
                    await self._advance()
                except BasculeError as error:
                    _logger.warning("moving replicas is delayed: %s", error.message)
                await asyncio.sleep(POLL_SECONDS)

    async def _advance(self) -> None:
        await self._pause_again()
        moving = await self._moving()
        if self._waiting:
            room = limits.REASSIGNMENTS_INFLIGHT_MAX - len(moving)
            for key in list(self._waiting)[: max(0, room)]:
                await self._begin(key)
        elif self._asked and not moving & self._asked:
            await self._move_leaders()

    async def _moving(self) -> set[_Key]:
        """Partitions that are moving; not those that are stalled, which would block all others."""
        answering = await self._members.answering()
        return {
            (name, one.id)
            for name, one in self._controller.metadata.each_partition()
            if one.target_replicas and not stalled(one, answering)
        }

    async def _begin(self, key: _Key) -> None:
        move = self._waiting[key]
        partition = self._find(key)
        if partition is not None and partition.paused and set(move.replicas) != set(partition.replicas):
            # A paused partition does not run, so its new replicas could not fetch it.
            self._paused[key] = self._controller.metadata.streams[key[0]].resume_all
            await self._submit(ResumeStream(key[0], time.time_ns(), (key[1],)))
        await self._submit(Reassign(move.stream, move.partition, move.replicas))
        self._waiting.pop(key, None)

    async def _pause_again(self) -> None:
        for key, resume_all in list(self._paused.items()):
            partition = self._find(key)
            if key in self._waiting or (partition is not None and partition.target_replicas):
                continue
            if partition is not None:
                await self._submit(PauseStream(key[0], time.time_ns(), (key[1],), resume_all))
            del self._paused[key]

    def _find(self, key: _Key) -> Partition | None:
        return self._controller.metadata.find(*key)

    async def _submit(self, op: Op) -> None:
        refusal = await self._controller.submit(op)
        if refusal is not None:
            _logger.warning("%s was refused: %s", op, refusal.text)

    # ── leaderships ──────────────────────────────────────────────────────────────────────────────

    async def _move_leaders(self) -> None:
        answering = await self._members.answering()
        # No await until the list of hand-overs is complete: a status in between would report that all is done.
        asked, self._asked = self._asked, set()
        planned = plan_leaders(self._controller.metadata)
        self._leaders = [
            move
            for move in planned
            if (move.stream, move.partition) in asked and {move.leader, move.successor} <= answering
        ]
        while self._leaders:
            some = self._leaders[: limits.HAND_OVERS_AT_ONCE_MAX]
            await asyncio.gather(*map(self._move_leader, some))
            del self._leaders[: len(some)]

    async def _move_leader(self, move: LeaderMove) -> None:
        request = extensions.HandOverRequest(stream=move.stream, partition=move.partition, successor=move.successor)
        try:
            await self._switchboard.call(move.leader, "HandOver", request, timeout=HAND_OVER_SECONDS)
        except (BasculeError, GrpcError) as error:
            text = error.message if isinstance(error, BasculeError) else error.text
            _logger.warning("%s/%d is still led by %s: %s", move.stream, move.partition, move.leader, text)


def stalled(partition: Partition, answering: set[str]) -> str:
    """Why a move cannot proceed; empty when it can."""
    if partition.paused:
        return "the partition is paused"
    if partition.leader not in answering:
        return f"its leader {partition.leader} does not answer"
    missing = [
        server
        for server in partition.target_replicas
        if server not in partition.in_sync_replicas and server not in answering
    ]
    return f"{', '.join(missing)} does not answer" if missing else ""
