"""What must hold in a simulated cluster, checked at every step that could break it.

The checker knows, of every partition, what is committed: the first leader to commit an offset says what stands there, for ever. Only
an op that declares a loss (an unclean election, or the power failure of the only in-sync replica) takes anything of it back: then the
truth is what the leader of that epoch begins with, and a server that is still in an earlier epoch does not count any more.

    durability     a leader begins with everything committed; declared loss takes no ALL ack under `sync: ack`, nothing under `always`
    agreement      every replica has the committed record wherever its high watermark has been
    readers        see what is committed, dense and unchanged
    LEADER acks    a successor has them after a hand-over; a leader that leads on has them after the end of its process
    producers      a message of an idempotent producer stands at one offset
    cleaning       retention and compaction take only committed records, compaction only those with a newer one of their key
    leadership     one server acts in a leader epoch, and not again after it was stopped uncleanly
    watermarks     never go back in the life of a process
    groups         one member has a partition in an epoch of its group
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bascule.log.core.options import SyncPolicy
from bascule.metadata.core.model.ops import (
    ChangeLeader,
    ElectUnclean,
    ExpandIsr,
    JoinConsumerGroup,
    LeaveConsumerGroup,
    Op,
)
from bascule.metadata.core.model.refusal import Refusal
from bascule.metadata.core.model.streams import Partition
from bascule.metadata.core.state import Outcome, PartitionChanged, StreamCreated
from bascule.partition.core.leader import Leader
from tests.simulation.cluster.cluster_log import Content, key_of

if TYPE_CHECKING:
    from tests.simulation.cluster.cluster_replica import Key, Publish, Replica
    from tests.simulation.cluster.cluster_server import Server
    from tests.simulation.cluster.cluster_simulator import ClusterSimulation


class Violation(AssertionError):
    """An invariant does not hold."""


@dataclass(slots=True)
class Truth:
    """What is known of one partition."""

    committed: list[Content | None] = field(default_factory=list)
    """The record at each offset; None where no replica has shown it since a loss: the first one that does decides."""
    durable_end_offset: int = 0
    """No power failure takes an offset below it: with `sync: ack` the end of what is ALL-acked, with `always` of what is committed.
    After an unclean election, at most the end of what the elected replica has synced."""
    believed_epoch: int = 0
    """Leaders before it are not believed any more: a loss was declared."""
    lossy_epochs: dict[int, bool] = field(default_factory=dict)
    """The epochs that may begin with less, and whether that may be any less: the election was unclean."""
    latest_epoch: int = 0
    """The latest leader epoch in which a leader has begun."""
    superseded: dict[bytes, int] = field(default_factory=dict)
    """Keys of records that a loss has taken: compaction may have removed older ones below this offset for their sake."""
    elections: dict[int, tuple[str, str, int, bool]] = field(default_factory=dict)
    """Of each leader epoch: its leader, the leader and the epoch before it, and whether that leader has handed over."""
    leader_acked: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Of each leader epoch: the end of what its leader has LEADER-acked, and how often its server had lost power by then."""


def differs(found: Content | None, known: Content | None) -> bool:
    """Whether these are two records. None is one that cannot be told: deleted, damaged, or not seen yet."""
    return found is not None and known is not None and found != known


class Checker:
    def __init__(self, world: ClusterSimulation) -> None:
        self.world = world
        self.truths: dict[Key, Truth] = {}
        self.leaders: dict[tuple[Key, int], tuple[str, int]] = {}
        self.counts: Counter[str] = Counter()
        self._groups: dict[tuple[str, int], dict[tuple[str, int], str]] = {}
        self._written: dict[tuple[Key, int, int], int] = {}
        self.sequenced: set[int] = set()
        """Messages of idempotent producers, which may be published often and are stored once."""
        self._places: dict[int, int] = {}

    def truth(self, key: Key) -> Truth:
        return self.truths.setdefault(key, Truth())

    # ── ops ──────────────────────────────────────────────────────────────────────────────────────

    def decided(self, op: Op, outcome: Outcome) -> None:
        state = self.world.metadata_log.truth
        if isinstance(outcome, Refusal):
            return
        for change in outcome:
            if isinstance(change, PartitionChanged):
                stream = state.streams[change.stream]
                partition = stream.partitions[change.partition]
                truth = self.truth((stream.id, partition.id))
                self._note_election(truth, partition, op)
                if partition.data_loss_epoch > max(truth.lossy_epochs, default=0):
                    truth.lossy_epochs[partition.data_loss_epoch] = isinstance(op, ElectUnclean)
                    self.counts["losses declared"] += 1
            elif isinstance(change, StreamCreated):
                stream = state.streams[change.stream]
                for partition in stream.partitions:
                    self._note_election(self.truth((stream.id, partition.id)), partition, op)
        if isinstance(op, JoinConsumerGroup | LeaveConsumerGroup):
            self._check_group(op.group)
        elif isinstance(op, ExpandIsr) and outcome:
            self._check_joined(op)

    def _note_election(self, truth: Truth, partition: Partition, op: Op) -> None:
        if partition.leader_epoch not in truth.elections:
            before = max(truth.elections, default=0)
            leader_before = truth.elections[before][0] if before else ""
            is_handed_over = isinstance(op, ChangeLeader) and not op.failed
            truth.elections[partition.leader_epoch] = (partition.leader, leader_before, before, is_handed_over)

    def _check_joined(self, op: ExpandIsr) -> None:
        """Who joins may be elected the next moment: it has everything that is committed, and on its disk what was acked."""
        stream = self.world.metadata_log.truth.streams[op.stream]
        key, server = (stream.id, op.partition), self.world.servers[op.replica]
        log, truth = server.log_of(key), self.truth(key)
        if log is None or server.lost_power or op.leader_epoch < truth.believed_epoch:
            return
        if log.log_end_offset < len(truth.committed):
            raise Violation(f"{op.replica} joins with {log.log_end_offset}, {len(truth.committed)} are committed")
        if log.synced_end_offset < truth.durable_end_offset:
            raise Violation(
                f"{op.replica} joins with {log.synced_end_offset} synced, {truth.durable_end_offset} are durable"
            )
        self.counts["joins"] += 1

    def server_ready(self, server: Server) -> None:
        """It has told what it lost: where it still counts as in sync, it has everything."""
        for stream in self.world.metadata_log.truth.streams.values():
            for partition in stream.partitions:
                key = (stream.id, partition.id)
                truth, log = self.truth(key), server.log_of(key)
                is_lossy = any(epoch > truth.believed_epoch for epoch in truth.lossy_epochs)
                if log is None or is_lossy or server.id not in partition.in_sync_replicas:
                    continue
                if log.log_end_offset < len(truth.committed):
                    raise Violation(
                        f"{server.id} is still in sync with {log.log_end_offset}, {len(truth.committed)} are committed"
                    )

    def _check_group(self, name: str) -> None:
        group = self.world.metadata_log.truth.groups.get(name)
        if group is None:
            return
        assigned: dict[tuple[str, int], str] = {}
        for member in group.members.values():
            for stream, numbers in member.assignments.items():
                for number in numbers:
                    if assigned.setdefault((stream, number), member.id) != member.id:
                        raise Violation(f"group {name} assigns {stream}/{number} twice in epoch {group.epoch}")
        if group.epoch:  # a new group begins with 0, each time anew
            known = self._groups.setdefault((name, group.epoch), assigned)
            if known != assigned:
                raise Violation(f"group {name} has two assignments in epoch {group.epoch}: {known}, {assigned}")
        self.counts["group changes"] += 1

    # ── leaders ──────────────────────────────────────────────────────────────────────────────────

    def leader_began(self, replica: Replica, epoch: int) -> None:
        """The log has begun the epoch, nothing is written in it yet."""
        server, key, truth = replica.server, replica.key, self.truth(replica.key)
        before = self.leaders.setdefault((key, epoch), (server.id, server.unclean_stops))
        if before != (server.id, server.unclean_stops):
            raise Violation(f"{replica} leads in epoch {epoch} like {before}")
        self.counts["leaders"] += 1
        if epoch < max(truth.latest_epoch, truth.believed_epoch):
            return  # it does not know that it has a successor: nothing it does counts
        truth.latest_epoch = epoch
        lossy = [lossy for lossy in truth.lossy_epochs if truth.believed_epoch < lossy <= epoch]
        if lossy:
            self._accept_loss(replica, truth, any(truth.lossy_epochs[one] for one in lossy))
            truth.believed_epoch = max(lossy)
        self._must_have(replica, truth, len(truth.committed), "what is committed")
        self._check_leader_acks(replica, truth, epoch)

    def _check_leader_acks(self, replica: Replica, truth: Truth, epoch: int) -> None:
        """A successor has what was LEADER-acked before a hand-over. So has a leader that leads on after its process was killed, and
        with `sync: always` after a power failure."""
        leader, leader_before, epoch_before, is_handed_over = truth.elections[epoch]
        end_offset, power_losses = truth.leader_acked.get(epoch_before, (0, 0))
        leads_on = leader == leader_before and (
            replica.policy is SyncPolicy.ALWAYS or replica.server.power_losses == power_losses
        )
        if (is_handed_over or leads_on) and replica.log.log_end_offset < end_offset:
            raise Violation(f"{replica} lacks LEADER-acked offsets up to {end_offset - 1} of epoch {epoch_before}")
        self.counts["hand-overs"] += is_handed_over

    def acked_leader(self, replica: Replica, end_offset: int) -> None:
        self.counts["LEADER acks"] += 1
        truth, epoch = self.truth(replica.key), replica.epoch
        end_offset = max(end_offset, truth.leader_acked.get(epoch, (0, 0))[0])
        truth.leader_acked[epoch] = (end_offset, replica.server.power_losses)

    def _accept_loss(self, replica: Replica, truth: Truth, is_unclean: bool) -> None:
        log = replica.log
        kept = next(
            (at for at, known in enumerate(truth.committed) if differs(self._content(replica, at), known)),
            len(truth.committed),
        )
        kept = min(kept, max(log.log_end_offset, 0))
        is_excused = is_unclean
        if not is_excused and kept < truth.durable_end_offset:
            raise Violation(f"{replica} lost durable offsets from {kept} to {truth.durable_end_offset}")
        if kept < len(truth.committed):
            self.counts["losses"] += 1
        for known in truth.committed[kept:]:
            if known is not None:
                truth.superseded[key_of(known[1])] = kept
        del truth.committed[kept:]
        # The offsets that it had committed itself are committed again.
        for offset in range(kept, log.high_watermark + 1):
            truth.committed.append(self._content(replica, offset))
        # A replica that an operator elected may not have synced what it has: no power failure so far has asked for it.
        truth.durable_end_offset = min(truth.durable_end_offset, kept, max(log.synced_end_offset, 0))

    def _content(self, replica: Replica, offset: int) -> Content | None:
        """None where the log begins later, and where a copy does not know the epoch of a record that compaction has removed. Otherwise
        a record that is damaged or compacted is still the one that the leader of its epoch wrote."""
        log = replica.log
        found = log.content(offset)
        if found is None and log.log_start_offset <= offset < log.log_end_offset:
            epoch = log.epoch_of(offset)
            number = self._written.get((replica.key, epoch, offset))
            if number is not None:
                return epoch, number
            if not self.world.log_options.compact:
                raise Violation(f"{replica} has a record of epoch {epoch} at {offset}, which no leader of it wrote")
        return found

    def _must_have(self, replica: Replica, truth: Truth, end_offset: int, what: str) -> None:
        log = replica.log
        if log.log_end_offset < end_offset:
            raise Violation(f"{replica} ends at {log.log_end_offset} and lacks {what}, up to {end_offset - 1}")
        self._compare(replica, truth, range(log.log_start_offset, end_offset))
        self._check_compaction(replica, truth, log.log_start_offset)

    def _check_compaction(self, replica: Replica, truth: Truth, first: int) -> None:
        """A record that is gone has a newer one of its key, which is committed."""
        log, newer = replica.log, set[bytes]()
        for offset in range(min(len(truth.committed), log.log_end_offset) - 1, first - 1, -1):
            known = truth.committed[offset]
            if known is None:
                continue
            key = key_of(known[1])
            if offset < truth.superseded.get(key, 0):
                continue
            if key not in newer and log.content(offset) is None and not log.is_unreadable(offset):
                raise Violation(f"{replica} lacks offset {offset}, the newest committed record of its key")
            newer.add(key)

    def _compare(self, replica: Replica, truth: Truth, offsets: Iterable[int]) -> None:
        for offset in offsets:
            found = self._content(replica, offset)
            if differs(found, truth.committed[offset]):
                raise Violation(f"{replica} has {found} at {offset}, committed is {truth.committed[offset]}")
            truth.committed[offset] = truth.committed[offset] or found

    def is_believed(self, replica: Replica) -> bool:
        return replica.epoch >= self.truth(replica.key).believed_epoch

    # ── records ──────────────────────────────────────────────────────────────────────────────────

    def appended(self, replica: Replica, base_offset: int, numbers: list[int]) -> None:
        count = len(numbers)
        if replica.log.log_end_offset != base_offset + count:
            raise Violation(f"{replica} appended {count} at {base_offset} and ends at {replica.log.log_end_offset}")
        for offset, number in enumerate(numbers, base_offset):
            self._written[(replica.key, replica.epoch, offset)] = number
        self.counts["appends"] += 1

    def committed(self, replica: Replica, before: int) -> None:
        """The replica's high watermark has moved on from `before`."""
        log, truth = replica.log, self.truth(replica.key)
        if log.high_watermark >= log.log_end_offset:
            raise Violation(f"{replica} has its watermark at {log.high_watermark}, its end is {log.log_end_offset}")
        self.watermark(replica)
        if not self.is_believed(replica):
            return
        if not isinstance(replica.role, Leader):
            if log.high_watermark >= len(truth.committed):
                raise Violation(
                    f"{replica} takes {log.high_watermark} for committed, the last is {len(truth.committed) - 1}"
                )
            # All of it once in every role: by another truth, if there was a loss meanwhile.
            first = max(log.log_start_offset, before + 1 if replica.is_checked else 0)
            self._compare(replica, truth, range(first, log.high_watermark + 1))
            replica.is_checked = True
            return
        # After a loss the leader's own watermark may be above what the new truth knows: those offsets are committed now too.
        first = min(before + 1, len(truth.committed))
        for offset in range(max(first, log.log_start_offset), log.high_watermark + 1):
            found = self._content(replica, offset)
            if offset < len(truth.committed):
                if differs(found, truth.committed[offset]):
                    raise Violation(f"{replica} commits {found} at {offset}, it is {truth.committed[offset]}")
            elif found is None:
                raise Violation(f"{replica} commits {offset}, which it does not have")
            else:
                truth.committed.append(found)
                self.counts["commits"] += 1
                self._check_once(replica, truth, offset, found[1])
        if replica.policy is SyncPolicy.ALWAYS:
            truth.durable_end_offset = max(truth.durable_end_offset, log.high_watermark + 1)
        self._check_electable(replica, log.high_watermark, needs_sync=replica.policy is SyncPolicy.ALWAYS)

    def _check_once(self, replica: Replica, truth: Truth, offset: int, number: int) -> None:
        """A message of an idempotent producer stands at one offset."""
        if number in self.sequenced:
            first, self._places[number] = self._places.get(number, offset), offset
            known = truth.committed[first] if first < len(truth.committed) else None
            if first != offset and known is not None and known[1] == number:
                raise Violation(f"{replica} commits message {number} at {offset}, it is at {first} already")

    def _check_electable(self, leader: Replica, offset: int, *, needs_sync: bool) -> None:
        """Every replica that can be elected has it: that is the meaning of a commit."""
        stream = self.world.metadata_log.truth.streams.get(leader.stream)
        if stream is None or stream.id != leader.key[0]:
            return
        known, partition = leader.partition, stream.partitions[leader.key[1]]
        if known is None or partition.leader_epoch != leader.epoch or offset < 0:
            return
        if len({*known.in_sync_replicas, leader.server.id}) < leader.options.min_insync_replicas:
            raise Violation(f"{leader} commits with {known.in_sync_replicas} in sync")
        wanted = self._content(leader, offset)
        for name in partition.in_sync_replicas:
            server = self.world.servers[name]
            log = server.log_of(leader.key)
            if log is None or server.lost_power:
                continue  # it says so before it could be elected
            end = log.synced_end_offset if needs_sync else log.log_end_offset
            found = log.content(offset)
            if end <= offset or differs(found, wanted):
                raise Violation(f"{leader} commits {offset}, {name} is in sync and has {found} there, up to {end}")

    def claims(self, replica: Replica, leader: str) -> None:
        """The follower tells its leader what it has: that has to be the leader's too. The last record says so for all before."""
        other = self.world.servers[leader].replicas.get(replica.key)
        if other is None or not isinstance(other.role, Leader) or other.epoch != replica.epoch:
            return
        offset = replica.log.log_end_offset - 1
        mine, its = replica.log.content(offset), other.log.content(offset)
        if differs(mine, its):
            raise Violation(f"{replica} claims to have what its leader has, {mine} at {offset}, but that has {its}")

    def watermark(self, replica: Replica) -> None:
        high_watermark = replica.log.high_watermark
        if high_watermark < replica.highest_watermark:
            raise Violation(f"{replica}: the watermark went from {replica.highest_watermark} to {high_watermark}")
        replica.highest_watermark = high_watermark

    def acked_all(self, replica: Replica, end_offset: int, publish: Publish) -> None:
        truth = self.truth(replica.key)
        self.counts["ALL acks"] += len(publish.numbers)
        if not self.is_believed(replica):
            return
        offset = end_offset - 1
        if end_offset > len(truth.committed):
            raise Violation(f"{replica} acked {publish} up to {offset}, which is not committed")
        found = truth.committed[end_offset - len(publish.numbers) : end_offset]
        if publish.sequenced is None and found != [(replica.epoch, number) for number in publish.numbers]:
            raise Violation(f"{replica} acked {publish} up to {offset}, where {found} is committed")
        is_durable = replica.policy is not SyncPolicy.INTERVAL
        self._check_electable(replica, offset, needs_sync=is_durable)
        if is_durable:
            truth.durable_end_offset = max(truth.durable_end_offset, offset + 1)

    def read(self, replica: Replica, first: int, found: list[Content | None]) -> None:
        """A reader read the offsets from `first` on; None is damage, which is reported as such."""
        truth = self.truth(replica.key)
        self.counts["reads"] += 1
        if not self.is_believed(replica):
            return
        for offset, content in enumerate(found, first):
            if offset >= len(truth.committed):
                raise Violation(f"a reader of {replica} sees {offset}, which is not committed")
            if content is None:
                self.counts["gaps read"] += 1
            if differs(content, truth.committed[offset]):
                raise Violation(f"a reader of {replica} sees {content} at {offset}, not {truth.committed[offset]}")

    def retained(self, replica: Replica) -> None:
        """The cleaner has deleted records."""
        log = replica.log
        if log.log_start_offset > log.high_watermark + 1:
            raise Violation(f"{replica} deleted records that are not committed")

    def cut(self, replica: Replica, offset: int, allow_committed: bool) -> None:
        """The replica is about to cut its log there."""
        log, truth = replica.log, self.truth(replica.key)
        if offset > log.high_watermark:
            return
        if not allow_committed:
            raise Violation(f"{replica} is to be cut at {offset}, {log.high_watermark} is committed")
        if max(truth.lossy_epochs, default=0) <= log.latest_epoch:
            raise Violation(f"{replica} cuts what is committed at {offset}, no loss was declared")
        replica.highest_watermark = -1

    # ── the end ──────────────────────────────────────────────────────────────────────────────────

    def all_equal(self, replicas: list[Replica]) -> bool:
        """Whether these replicas of a partition hold the same; those that hold something else than what is committed break the law."""
        truth = self.truth(replicas[0].key)
        end = replicas[0].log.log_end_offset
        if any(replica.log.log_end_offset != end or replica.log.high_watermark != end - 1 for replica in replicas):
            return False
        if len(truth.committed) != end:
            raise Violation(f"{replicas[0]} and the others end at {end}, {len(truth.committed)} are committed")
        for replica in replicas:
            self._must_have(replica, truth, end, "what is committed")
        return True
