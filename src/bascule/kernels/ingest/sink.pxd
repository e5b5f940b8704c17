# Ingest for other kernels: from the messages of a partition's NATS subject to record batches, and what their publishers have to be told.

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from bascule.kernels.batches.collected cimport AckEntry, Collected
from bascule.kernels.batches.pool cimport BatchPool
from bascule.kernels.envelope.messages cimport (
    ACK_INCORRECT_OFFSET, ACK_OUT_OF_SEQUENCE, ACK_PRODUCER_FENCED, AckView, HeaderView, PublishView,
)
from bascule.kernels.ingest.copies cimport Copies, NotedHashes
from bascule.kernels.ingest.held_messages cimport HeldMessages
from bascule.kernels.nats.protocol cimport MessageSink, NatsMessage
from bascule.kernels.records.builder cimport BatchBuilder
from bascule.kernels.records.producers cimport ProducerTable, ProducerView
from bascule.kernels.records.records cimport RecordView


cdef class PartitionSink(MessageSink):
    # Where the messages of a partition's subject go. The thread that scans is the one that takes.
    cdef readonly bytes stream
    cdef readonly uint32_t partition
    cdef readonly bytes base_subject            # the stream's; partition n > 0 listens on base_subject.n
    cdef BatchPool pool
    cdef BatchBuilder builder                   # has the buffer of the batch that is being filled
    cdef Collected current                      # the rest of that batch
    cdef bint is_filling
    cdef Collected* full                        # batches that reached a bound, oldest first
    cdef size_t full_count
    cdef size_t full_capacity
    cdef uint64_t full_records
    cdef size_t full_bytes
    cdef readonly size_t payload_bytes_max
    cdef readonly uint32_t batch_records_max
    cdef readonly size_t batch_bytes_max
    cdef public bint concurrency_control
    cdef public bint dropping                   # readonly: nothing is stored
    cdef public int64_t next_offset             # of the next record that is accepted; collected ones are counted
    cdef ProducerTable producers                # what the log will hold once everything collected is in it; None until it is needed
    cdef int producer_state
    cdef HeldMessages held                      # what waits for the table, or for the end of a hand-over
    cdef bint is_watching                       # one of the next three applies: a message takes the slower path
    cdef readonly bint is_noting                # a hand-over has begun: hashes of received messages are noted
    cdef readonly bint holds_all                # a hand-over: every message is held
    cdef Copies copies                          # what the leader before has received, while copies of it may arrive
    cdef NotedHashes noted
    cdef size_t held_bytes_max                  # while it holds all messages; 0: no limit
    cdef readonly bint has_overflowed           # messages that had to be held were too many: all of them were dropped
    cdef readonly uint64_t received             # messages, whatever became of them
    cdef readonly uint64_t refused              # of these: too large, not at the offset they expected, or dropped
    cdef readonly uint64_t duplicates           # of these: stored before, by the word of their producers
    cdef readonly uint64_t lost                 # of these: there was no memory for them
    cdef readonly uint64_t copied               # of these: the leader before has received them
    cdef int receive(self, NatsMessage* message) noexcept nogil
    cdef int watch(self, NatsMessage* message) noexcept nogil
    cdef void end_watching(self) noexcept nogil
    cdef int receive_all(self, HeldMessages held) noexcept nogil
    cdef int hold(self, NatsMessage* message) noexcept nogil
    cdef int accept(self, NatsMessage* message) noexcept nogil
    cdef int replay(self, int error) noexcept nogil
    cdef bint begin(self) noexcept nogil
    cdef bint close_current(self) noexcept nogil
    cdef int refuse(self, NatsMessage* message, PublishView* view, int error) noexcept nogil
    cdef int store(self, NatsMessage* message, PublishView* view) noexcept nogil
    cdef int judge(self, NatsMessage* message, PublishView* view, ProducerView* producer) noexcept nogil
    cdef int repeated(self, NatsMessage* message, PublishView* view, int64_t original, int64_t at_most) noexcept nogil
    cdef int add(self, RecordView* record) noexcept nogil
    cdef int set_headers(
        self, NatsMessage* message, PublishView* view, RecordView* record, ProducerView* producer
    ) noexcept nogil
    cdef int note(self, NatsMessage* message, PublishView* view, int error, int64_t original) noexcept nogil
    cdef PreparedBatch prepared(self, Collected* collected)


# Errors that the leader concludes from its log: another leader may decide otherwise.
cdef inline bint is_judgement(uint32_t error) noexcept nogil:
    return error == ACK_INCORRECT_OFFSET or error == ACK_PRODUCER_FENCED or error == ACK_OUT_OF_SEQUENCE


cdef class PreparedBatch:
    # A batch that a sink has collected, on its way into the log; then the acks on their way to its publishers.
    cdef PartitionSink sink
    cdef BatchBuilder records                   # None once release_records() gave its memory back, or when there are none
    cdef Collected collected                    # without the buffer, which `records` has
    cdef uint32_t record_count
    cdef size_t record_bytes
    cdef uint32_t holds                         # calls of release() that do nothing
    # Stream, subjects, inbox, correlation id, policy and error of an entry; offset and times are the caller's.
    cdef void view(self, AckEntry* entry, AckView* ack) noexcept
