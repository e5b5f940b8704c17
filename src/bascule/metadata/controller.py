"""This server's member of the metadata's Raft group; the server that leads the group is the controller.

Ops may be submitted on any server. A retried op is applied once, because every server numbers its ops within its session. The answer
comes from this server's own state machine, so a client that got it sees its own writes here.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from bascule.errors import (
    BasculeError,
    OutcomeUnknown,
    RejectedEnvelope,
    StateError,
    Unavailable,
)
from bascule.metadata.bootstrap import SeedWatch, decode_join_request, encode_join_response
from bascule.metadata.core.failures import CoordinatorFailures, LeaderFailures, Noted
from bascule.metadata.core.model.ops import MalformedOp, Op, decode_op, encode_op
from bascule.metadata.core.model.refusal import Refusal
from bascule.metadata.core.state import ClusterMetadata
from bascule.metadata.machine import MetadataMachine, decode_verdict
from bascule.net.nats.envelope import MessageType, pack_message, unpack_message
from bascule.net.nats.subjects import ControlSubjects
from bascule.net.retry import retry
from bascule.proto.internal_pb2 import (
    Error,
    PropagatedRequest,
    PropagatedResponse,
    ReportConsumerGroupCoordinatorOp,
    ReportLeaderOp,
)
from bascule.raft.core.model.entries import EntryKind
from bascule.raft.core.model.membership import AddLearner, PromoteLearner
from bascule.raft.core.node import RaftNode
from bascule.raft.core.sessions import Applied, ApplyOutcome, RaftSessions
from bascule.raft.driver import DurableLog, RaftDriver
from bascule.raft.transport import Bus, RaftTransport, publish_quietly

SUBMIT_SECONDS: Final = 5.0
ATTEMPT_SECONDS: Final = 1.0
RETRY_SECONDS: Final = 0.05
REPORT_SECONDS: Final = 0.5
"""Time without an answer after which a report is sent again."""
PROMOTE_SECONDS: Final = 0.2
IDLE_SECONDS: Final = 1.0
"""Interval between checks for learners to promote, while there are none."""
OPS_OUTSTANDING_MAX: Final = 64
"""Half of the window of ops that a session keeps."""
PROPAGATED_MAX: Final = 4096
"""Requests of other servers that are answered at the same time; further ones are dropped, and their senders ask again."""

GRPC_CODES: Final = {
    "INVALID_ARGUMENT": 3,
    "DEADLINE_EXCEEDED": 4,
    "NOT_FOUND": 5,
    "ALREADY_EXISTS": 6,
    "FAILED_PRECONDITION": 9,
    "INTERNAL": 13,
    "UNAVAILABLE": 14,
}
_NAMES: Final = {number: name for name, number in GRPC_CODES.items()}


@dataclass(frozen=True, slots=True)
class ControllerOptions:
    tick_seconds: float
    election_ticks: int
    snapshot_entries: int = 8192
    leader_timeout_ns: int = 5_000_000_000
    coordinator_timeout_ns: int = 15_000_000_000
    is_seed: bool = False
    has_state: bool = False
    """The metadata log is from an earlier run."""


class Controller:
    def __init__(
        self,
        node: RaftNode,
        wal: DurableLog,
        bus: Bus,
        subjects: ControlSubjects,
        cluster_id: str,
        machine: MetadataMachine,
        options: ControllerOptions,
        on_rival_seed: Callable[[str, bool], None] | None = None,
        on_failure: Callable[[BaseException], None] | None = None,
    ) -> None:
        self._bus = bus
        self._subjects = subjects
        self._cluster_id = cluster_id
        self._machine = machine
        self._options = options
        self._sessions = RaftSessions(machine)
        self._sessions.restore(node.snapshot.data)
        self._transport = RaftTransport(bus, subjects, node.id, cluster_id)
        self.driver = RaftDriver(
            node,
            wal,
            self._sessions,
            self._transport.send,
            tick_seconds=options.tick_seconds,
            election_ticks=options.election_ticks,
            snapshot_entries=options.snapshot_entries,
            on_role_change=self._on_role_change,
            on_failure=on_failure,
        )
        self._seed_watch = SeedWatch(
            bus,
            subjects,
            node.id,
            cluster_id,
            self._weight,
            self._has_begun,
            on_rival_seed or (lambda _id, _give_way: None),
        )
        self._session = 0
        self._sequence = 0
        self._opening = asyncio.Lock()
        self._outstanding = asyncio.Semaphore(OPS_OUTSTANDING_MAX)
        self._leader_failures = LeaderFailures(options.leader_timeout_ns)
        self._coordinator_failures = CoordinatorFailures(options.coordinator_timeout_ns)
        self._tasks: list[asyncio.Task[None]] = []
        self._answering: set[asyncio.Task[None]] = set()
        self._joined = asyncio.Event()
        self._role_watchers: list[Callable[[bool], None]] = []

    # ── running ──────────────────────────────────────────────────────────────────────────────────

    async def start(self) -> None:
        await self._transport.start(self.driver.receive)
        await self._bus.subscribe(self._subjects.join, self._on_join)
        await self._bus.subscribe(self._subjects.propagate, self._on_propagated)
        self.driver.start()
        self._tasks = [asyncio.create_task(self._promote_learners(), name="promote-learners")]
        if self._options.is_seed:
            await self._seed_watch.start()

    async def stop(self) -> None:
        tasks = [*self._tasks, *self._answering]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._seed_watch.stop()
        await self.driver.stop()
        await self._transport.stop()

    def _weight(self) -> tuple[int, int]:
        node = self.driver.node
        return len(node.membership.members), node.commit_index

    def _has_begun(self) -> bool:
        """Whether this cluster has state to lose: from an earlier run, of other members, or streams that are not internal ones."""
        if self._options.has_state or len(self.members) > 1:
            return True
        return any(not name.startswith("__") for name in self.metadata.streams)

    def _on_role_change(self, leads: bool) -> None:
        if not leads:
            self._leader_failures.clear()
            self._coordinator_failures.clear()
        for watcher in self._role_watchers:
            watcher(leads)

    def watch_role(self, watcher: Callable[[bool], None]) -> None:
        """Call `watcher` now and whenever this server becomes controller or stops being it. It must not block."""
        self._role_watchers.append(watcher)
        watcher(self.is_leader)

    # ── what it knows ────────────────────────────────────────────────────────────────────────────

    @property
    def server_id(self) -> str:
        return self.driver.node.id

    @property
    def is_leader(self) -> bool:
        return self.driver.node.is_leader

    @property
    def leader(self) -> str | None:
        return self.driver.node.leader

    @property
    def members(self) -> list[str]:
        return self.driver.node.membership.members

    @property
    def messages_refused(self) -> int:
        """Raft messages that were malformed, of another cluster, or such that no member can have sent them."""
        return self._transport.refused + self.driver.node.messages_refused + self.driver.messages_dropped

    @property
    def metadata(self) -> ClusterMetadata:
        """The state of this server, which may be slightly stale; `fresh_metadata` is not."""
        return self._machine.state

    async def fresh_metadata(self, *, timeout: float = SUBMIT_SECONDS) -> ClusterMetadata:
        """The state including every op that any server acknowledged before this call."""
        # A read changes nothing, and a session that is opened twice does no harm: both are retried whatever happened.
        await self._retried(self.driver.read_barrier, time.monotonic() + timeout)
        return self._machine.state

    async def _retried(self, attempt: Callable[..., Awaitable[int]], deadline: float) -> int:
        try:
            return await retry(
                lambda: attempt(timeout=_share(deadline)),
                (Unavailable, OutcomeUnknown),
                (RETRY_SECONDS,),
                deadline=deadline,
            )
        except OutcomeUnknown as error:
            raise Unavailable(error.message) from None

    # ── ops ──────────────────────────────────────────────────────────────────────────────────────

    async def submit(self, op: Op, *, timeout: float = SUBMIT_SECONDS) -> Refusal | None:
        """Apply the op exactly once; returns None or the refusal. Raises Unavailable when it was not applied, OutcomeUnknown when it
        may have been."""
        deadline = time.monotonic() + timeout
        data = encode_op(op)
        async with self._outstanding:
            while True:
                session = await self._open_session(deadline)
                self._sequence += 1
                try:
                    return await self._submit(data, session, self._sequence, deadline)
                except _SessionExpired:
                    # refused before it was applied: retried in a new session
                    self._session = 0 if self._session == session else self._session

    async def _submit(self, data: bytes, session: int, sequence: int, deadline: float) -> Refusal | None:
        doubt: OutcomeUnknown | None = None
        while True:
            error: BasculeError
            try:
                _, applied = await self.driver.propose(
                    data, timeout=_share(deadline), session=session, sequence=sequence
                )
                return _verdict(applied, in_doubt=doubt is not None)
            except OutcomeUnknown as unknown:
                error = doubt = unknown
            except Unavailable as unavailable:
                error = doubt or unavailable
            if time.monotonic() + RETRY_SECONDS >= deadline:
                raise error
            await asyncio.sleep(RETRY_SECONDS)

    async def _open_session(self, deadline: float) -> int:
        async with self._opening:
            if self._session == 0:
                self._session = await self._retried(self._new_session, deadline)
            return self._session

    async def _new_session(self, *, timeout: float) -> int:
        self._sequence = 0
        index, applied = await self.driver.propose(b"", timeout=timeout, kind=EntryKind.OPEN_SESSION)
        assert applied.outcome is ApplyOutcome.SESSION_OPENED
        return index

    # ── membership ───────────────────────────────────────────────────────────────────────────────

    async def _on_join(self, data: bytes, reply: str) -> None:
        if not reply or not self.is_leader:
            return
        try:
            server_id = decode_join_request(data)
        except RejectedEnvelope:
            return  # another program's bytes on our subject
        try:
            if server_id not in self.driver.node.membership:
                await self.driver.change_membership(AddLearner(server_id), timeout=ATTEMPT_SECONDS)
                self._joined.set()
            answer = encode_join_response(self._cluster_id)
        except BasculeError as error:
            answer = encode_join_response(self._cluster_id, error.message)
        await publish_quietly(self._bus, reply, answer)

    async def _until_learners(self) -> None:
        """Wait: briefly while there are learners, otherwise until one joins or the idle interval ends."""
        if self.is_leader and self.driver.node.membership.learners:
            await asyncio.sleep(PROMOTE_SECONDS)
            return
        self._joined.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(IDLE_SECONDS):
                await self._joined.wait()

    async def _promote_learners(self) -> None:
        """Promote learners that have caught up, up to the maximum number of voters."""
        while True:
            await self._until_learners()
            for learner in self.driver.node.promotable[:1]:
                try:
                    await self.driver.change_membership(PromoteLearner(learner), timeout=ATTEMPT_SECONDS)
                except (StateError, Unavailable, OutcomeUnknown):
                    continue  # retried in the next round

    # ── requests to the controller ──────────────────────────────────────────────────────────────────────────

    async def forward(self, op: Op, *, timeout: float = SUBMIT_SECONDS) -> Refusal | None:
        """Have the controller apply the op. For servers that are not members of the group; a member uses `submit`."""
        return await self._propagate(PropagatedRequest(op=encode_op(op)), timeout)

    async def report_leader(
        self,
        stream: str,
        partition: int,
        reporter: str,
        leader: str,
        leader_epoch: int,
        *,
        timeout: float = SUBMIT_SECONDS,
    ) -> Refusal | None:
        """Report to the controller that a partition's leader does not answer."""
        report = ReportLeaderOp(
            stream=stream, partition=partition, replica=reporter, leader=leader, leader_epoch=leader_epoch
        )
        return await self._report(PropagatedRequest(report_leader_op=report), timeout)

    async def report_coordinator(
        self, group: str, consumer: str, coordinator: str, epoch: int, *, timeout: float = SUBMIT_SECONDS
    ) -> Refusal | None:
        """Report to the controller that a group's coordinator does not answer."""
        report = ReportConsumerGroupCoordinatorOp(
            group_id=group, consumer_id=consumer, coordinator=coordinator, epoch=epoch
        )
        return await self._report(PropagatedRequest(report_consumer_group_coordinator_op=report), timeout)

    async def _report(self, report: PropagatedRequest, timeout: float) -> Refusal | None:
        """Repeat the report until a controller answers: the failed server may have been the controller, so that none exists until the
        next election. A repeated report counts once."""
        deadline = time.monotonic() + timeout
        while True:
            attempt = time.monotonic() + REPORT_SECONDS
            try:
                return await self._propagate(report, min(attempt, deadline) - time.monotonic())
            except Unavailable:
                if attempt >= deadline:
                    raise
            await asyncio.sleep(attempt - time.monotonic())

    async def _propagate(self, request: PropagatedRequest, timeout: float) -> Refusal | None:
        data = pack_message(MessageType.PROPAGATED_REQUEST, request)
        answer = await self._bus.request(self._subjects.propagate, data, timeout)
        response = unpack_message(PropagatedResponse, answer, MessageType.PROPAGATED_RESPONSE)
        if not response.HasField("error"):
            return None
        return Refusal(_NAMES.get(response.error.code, "INTERNAL"), response.error.msg)

    async def _on_propagated(self, data: bytes, reply: str) -> None:
        if not reply or not self.is_leader:
            return
        try:
            request = unpack_message(PropagatedRequest, data, MessageType.PROPAGATED_REQUEST)
        except RejectedEnvelope:
            return
        if len(self._answering) >= PROPAGATED_MAX:
            return  # the sender asks again
        # Concurrently: when a server dies, hundreds of partitions need a new leader, and one round of Raft serves many of them.
        answering = asyncio.create_task(self._answer(request, reply), name="propagated")
        self._answering.add(answering)
        answering.add_done_callback(self._answering.discard)

    async def _answer(self, request: PropagatedRequest, reply: str) -> None:
        response = PropagatedResponse()
        refusal = await self._judge(request)
        if refusal is not None:
            response.error.CopyFrom(Error(code=GRPC_CODES[refusal.code], msg=refusal.text))
        await publish_quietly(self._bus, reply, pack_message(MessageType.PROPAGATED_RESPONSE, response))

    async def _judge(self, request: PropagatedRequest) -> Refusal | None:
        op = self._op_of(request)
        if isinstance(op, Noted):
            return None
        if isinstance(op, Refusal):
            return op
        try:
            return await self.submit(op)
        except BasculeError as error:
            return Refusal("INTERNAL", error.message)

    def _op_of(self, request: PropagatedRequest) -> Noted | Op | Refusal:
        """The op in the request, or the op that follows from enough reports."""
        if request.op:
            try:
                return decode_op(request.op)
            except MalformedOp as error:
                return Refusal("INVALID_ARGUMENT", f"malformed op: {error}")
        now_ns = time.monotonic_ns()
        if request.HasField("report_leader_op"):
            report = request.report_leader_op
            return self._leader_failures.report(
                self.metadata,
                report.stream,
                report.partition,
                report.replica,
                report.leader,
                report.leader_epoch,
                now_ns,
            )
        if request.HasField("report_consumer_group_coordinator_op"):
            group = request.report_consumer_group_coordinator_op
            return self._coordinator_failures.report(
                self.metadata,
                group.group_id,
                group.consumer_id,
                group.coordinator,
                group.epoch,
                tuple(self.members),
                now_ns,
            )
        return Refusal("INVALID_ARGUMENT", "the request has no op and no report")


class _SessionExpired(Exception):
    """The session was dropped before the op could be applied in it."""


def _verdict(applied: Applied, *, in_doubt: bool) -> Refusal | None:
    if applied.outcome in (ApplyOutcome.APPLIED, ApplyOutcome.DUPLICATE):
        return decode_verdict(applied.result)
    if not in_doubt:
        raise _SessionExpired
    raise OutcomeUnknown("the session of this server was dropped: the op may or may not have been applied")


def _share(deadline: float) -> float:
    """Timeout of one attempt: a leader that is down must not use up the whole deadline."""
    return max(0.01, min(ATTEMPT_SECONDS, deadline - time.monotonic()))
