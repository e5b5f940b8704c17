# From record batches to the messages of a Subscribe stream, for other kernels.

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from bascule.kernels.records.records cimport BatchView, RecordView
from bascule.kernels.wire.output cimport OutputBuffer

# Why deliver() returned.
cdef enum Delivered:
    DELIVERED_ALL = 0               # every batch of the buffer is done
    DELIVERED_BUDGET                # the byte budget is used up: call again with the same cursor
    DELIVERED_END                   # the next record is at end_offset or beyond it
    DELIVERED_DAMAGED               # the batch at cursor.batch_at is incomplete, sealed or does not parse
    DELIVERED_NO_MEMORY

# Position of a delivery in a buffer of batches. For a new buffer: batch_at is the start of its first batch, record_at is 0.
cdef struct DeliveryCursor:
    size_t batch_at                 # position of the next batch
    size_t record_at                # position of the next record; 0: the first one of its batch
    uint32_t record_index           # its index in the batch
    int64_t next_offset             # records below it are skipped; one more than the last message written
    int64_t last_offset             # of the last message written by any call; the caller sets it to −1 first
    uint64_t messages               # added to by every call
    uint64_t bytes                  # likewise, prefixes included


cdef class Delivery:
    # Encodes the messages of one subscription or partition; keeps the parts of a message that do not change.
    cdef bytes stream
    cdef const uint8_t* stream_data # bytes of `stream`, for code without the GIL
    cdef size_t stream_size
    cdef int32_t partition
    cdef uint8_t* tail              # fields 5, 6, 7 and 9 of a message that arrived on `subject` without reply and headers
    cdef size_t tail_size
    cdef size_t tail_capacity
    cdef uint8_t* subject           # the subject that the tail was made for
    cdef uint32_t subject_size
    cdef size_t subject_capacity
    cdef bint has_tail
    # Append the records next_offset <= offset < end_offset of data[cursor.batch_at:size] as length-prefixed gRPC messages, until
    # `budget` bytes or more are written (the message that reaches the budget is whole).
    cdef int deliver(
        self, OutputBuffer output, const uint8_t* data, size_t size, DeliveryCursor* cursor, int64_t end_offset, size_t budget
    ) noexcept nogil
    cdef int deliver_batch(
        self, OutputBuffer output, const uint8_t* data, BatchView* batch, DeliveryCursor* cursor, int64_t end_offset, size_t stop
    ) noexcept nogil
    # One record, e.g. for a subscription that reads backwards. 0, or −1 when there is no memory.
    cdef int append_message(self, OutputBuffer output, RecordView* record) noexcept nogil
    cdef int prepare_tail(self, const uint8_t* subject, uint32_t subject_size) noexcept nogil
