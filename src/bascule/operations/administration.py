"""The operations of this server, put together: what it answers for itself, and, while it is controller, for the cluster."""

from __future__ import annotations

from collections.abc import Mapping

from bascule.log.disk.space import DiskSpace
from bascule.metadata.controller import Controller
from bascule.metadata.server_directory import ServerDirectory
from bascule.net.nats.subjects import ControlSubjects
from bascule.operations.drain import Drain
from bascule.operations.drain_calls import DrainCalls
from bascule.operations.election import Elections
from bascule.operations.members import Members
from bascule.operations.move_calls import MoveCalls
from bascule.operations.move_queue import MoveQueue
from bascule.operations.removal import Removals
from bascule.operations.server_life import ServerLife
from bascule.operations.status import ServerReports, StatusCalls
from bascule.operations.switchboard import Handler, Switchboard
from bascule.partition.registry import Partitions
from bascule.raft.transport import Bus
from bascule.readers.cursor_tables import CursorTables


class Administration:
    def __init__(
        self,
        bus: Bus,
        subjects: ControlSubjects,
        controller: Controller,
        directory: ServerDirectory,
        partitions: Partitions,
        cursor_tables: CursorTables,
        life: ServerLife,
        local_calls: Mapping[str, Handler],
        space: DiskSpace,
    ) -> None:
        """`local_calls` are calls to this server that other parts answer."""
        self.switchboard = Switchboard(bus, subjects, controller.server_id)
        self.members = Members(controller, directory, self.switchboard)
        self.drain = Drain(controller, directory, partitions)
        self.elections = Elections(self.members, self.switchboard, partitions)
        self.status = StatusCalls(controller, directory, self.switchboard)
        self._moves = MoveQueue(self.members, self.switchboard)
        self._reports = ServerReports(controller, partitions, self._moves, life, space)
        self._move_calls = MoveCalls(self.members, self._moves, self.switchboard)
        self._drain_calls = DrainCalls(self.drain, self.members, partitions, life)
        self._removals = Removals(self.members, self._moves, self.elections)
        self._cursor_tables = cursor_tables
        self._local_calls = local_calls

    async def start(self) -> None:
        await self.switchboard.serve(
            {
                "AddServers": self._move_calls.add_servers,
                "Rebalance": self._move_calls.rebalance,
                "Reassign": self._move_calls.reassign,
                "CancelReassignment": self._move_calls.cancel,
                "RemoveServer": self._removals.remove_server,
                "Drain": self._drain_calls.drain,
                "HandOver": self._drain_calls.hand_over,
                "Report": self._reports.report,
                "Cursors": self._cursor_tables.answer,
                "ReplicaLog": self.elections.replica_log,
                **self._local_calls,
            }
        )
        self._moves.start()

    async def stop(self) -> None:
        await self._moves.stop()
        await self.switchboard.stop()
