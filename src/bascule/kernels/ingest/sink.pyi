"""Ingest: every message of a partition's NATS subject becomes a record, and its publisher is remembered if it waits for an ack."""

from typing import final

from typing_extensions import Buffer

from bascule.kernels.batches.pool import BatchPool
from bascule.kernels.nats.protocol import MessageSink
from bascule.kernels.records.builder import BatchBuilder
from bascule.kernels.records.producers import ProducerTable

def nats_headers(block: Buffer) -> list[tuple[bytes, bytes]]:
    """Names and values of a NATS header block, in its order. No block, or one with too many lines, has none."""

class PartitionSink(MessageSink):
    """Collects the messages of one partition into batches until they are taken. Take on the thread that scans."""

    concurrency_control: bool
    """Only messages whose expected offset is the next one, or −1, are stored; without an envelope a message expects 0."""
    dropping: bool
    """Nothing is stored; who left an ack inbox is told (UNKNOWN)."""
    next_offset: int
    """Offset of the next record that is accepted, collected ones counted. Set it when the log says otherwise."""

    def __init__(
        self,
        pool: BatchPool,
        *,
        stream: bytes,
        partition: int,
        base_subject: bytes,
        payload_bytes_max: int,
        batch_records_max: int,
        batch_bytes_max: int,
        concurrency_control: bool = False,
        next_offset: int = 0,
    ) -> None:
        """`base_subject` is the stream's, which acks name. A single record may be larger than `batch_bytes_max`."""

    @property
    def stream(self) -> bytes: ...
    @property
    def partition(self) -> int: ...
    @property
    def base_subject(self) -> bytes: ...
    @property
    def payload_bytes_max(self) -> int: ...
    @property
    def batch_records_max(self) -> int: ...
    @property
    def batch_bytes_max(self) -> int: ...
    @property
    def waiting_records(self) -> int:
        """Collected and not taken."""
    @property
    def waiting_bytes(self) -> int:
        """The same in bytes, with what is kept for acks."""
    @property
    def has_waiting_acks(self) -> bool:
        """Somebody waits for an answer to what was collected, or a batch is full."""
    @property
    def received(self) -> int:
        """Messages so far, whatever became of them."""
    @property
    def refused(self) -> int:
        """Of these: too large, not at the offset they expected, or dropped."""
    @property
    def lost(self) -> int:
        """Of these: there was no memory for them."""
    @property
    def duplicates(self) -> int:
        """Of these: stored before, by the word of their producers."""
    @property
    def knows_producers(self) -> bool: ...
    @property
    def is_holding(self) -> bool:
        """A message of an idempotent producer has come, and with all after it waits for learn_producers(). False with hold_all()."""
    def learn_producers(self, table: ProducerTable, next_offset: int) -> None:
        """What the log holds, and where it ends. What was held is judged and collected. Everything collected has to be taken before."""
    def forget_producers(self, error: int, for_good: bool = False) -> None:
        """What is held is refused with `error`. The next message of a producer is held, or for good collected as any other."""
    def note_received(self, key: bytes) -> None:
        """Note the hash of every message that arrives from now on, under a key of 16 bytes."""
    @property
    def is_noting(self) -> bool: ...
    @property
    def noted_hashes(self) -> int:
        """Hashes noted since note_received()."""
    def hold_all(self, bytes_max: int = 0) -> None:
        """Hold every message that arrives from now on. With more than `bytes_max` bytes, if not 0, all of them are dropped."""
    @property
    def holds_all(self) -> bool: ...
    @property
    def has_overflowed(self) -> bool:
        """hold_all() had a limit, and more messages came: they were dropped."""
    def release_held(self) -> None:
        """End the hand-over: collect what was held, in its order, and go on."""
    def drop_held(self) -> None:
        """End the hand-over: drop what was held, and go on."""
    def give_up(self) -> tuple[bytes | None, bytes]:
        """The hashes of all messages since note_received(), None if some could not be noted; and the messages since hold_all()."""
    def take_over(self, key: bytes, hashes: bytes, early: int, messages: bytes) -> None:
        """Collect `messages`, which the leader before held, then the messages held here of which the leader before has no copy.

        `hashes` are those of all messages that it received. Copies of them that arrive later are dropped, until forget_copies(); not
        those of the first `early` ones, which may not exist. Raises ValueError when the bytes are malformed: nothing has changed then.
        """
    @property
    def copies_missing(self) -> int:
        """Copies of messages of the leader before that have not arrived."""
    @property
    def copied(self) -> int:
        """Messages that were dropped because the leader before has received them."""
    def forget_copies(self) -> None:
        """Collect every message from now on."""
    def take(self) -> list[PreparedBatch]:
        """Everything collected so far, oldest first; the sink begins anew."""

@final
class PreparedBatch:
    """What a sink has collected, on its way into the log and back to its publishers."""

    @property
    def builder(self) -> BatchBuilder | None:
        """For PartitionLog.append. None when the batch holds nothing but errors, and after release_records()."""
    @property
    def count(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def base_offset(self) -> int:
        """What the sink took for the offset of the first record."""
    @property
    def is_sequenced(self) -> bool:
        """Holds messages of idempotent producers, or duplicates: right only at `base_offset`."""
    @property
    def originals_to(self) -> int:
        """Acks of duplicates are due when the record at this offset is as safe as they ask; −1 without any."""
    @property
    def has_leader_acks(self) -> bool: ...
    @property
    def has_all_acks(self) -> bool: ...
    @property
    def has_errors(self) -> bool:
        """Messages that were refused while scanning; their publishers get an error from AckWriter.write_errors()."""
    def hold(self) -> None:
        """The next call of release() does nothing: the batch has another user."""
    def release_records(self) -> None:
        """The records are in the log: their memory goes back to the pool, the ack entries stay."""
    def release(self) -> None:
        """Done: all memory goes back to the pool. Memory that somebody still looks at stays with them."""
