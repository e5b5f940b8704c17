# Columns from record batches, for other kernels: buffers laid out as Arrow wants them, and where a reader of batches stands.

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from bascule.kernels.records.records cimport BatchView, RecordView
from bascule.kernels.wire.buffers cimport Bytes

# Bits of the columns that are wanted, in the order of the table.
cdef enum Column:
    WANT_KEY = 1
    WANT_VALUE = 2
    WANT_STREAM = 4
    WANT_PARTITION = 8
    WANT_OFFSET = 16
    WANT_TIMESTAMP = 32
    WANT_SUBJECT = 64
    WANT_REPLY = 128
    WANT_HEADERS = 256
    WANT_EPOCH = 512
    WANT_ALL = 1023

# Why fill() came back.
cdef enum Filled:
    FILLED_ALL = 0              # every batch of what was loaded is done: load more
    FILLED_FULL                 # the rows or bytes asked for are there: take them, then go on with what is loaded
    FILLED_END                  # the next record is at end_offset or beyond it
    FILLED_DAMAGED              # the batch at batch_at is incomplete, sealed, out of order or does not parse
    FILLED_NO_MEMORY

# Memory that grows; ColumnBuffer takes it over when it is handed out.
cdef struct Memory:
    uint8_t* data
    size_t size
    size_t capacity
    size_t usual                # what was handed out last: the next rows will need about as much

# Nothing but Memory: walked as an array where all are treated alike.
cdef struct Buffers:
    Memory key_valid, key_ends, key_data
    Memory value_valid, value_ends, value_data
    Memory offsets, timestamps, epochs
    Memory subject_ends, subject_data
    Memory reply_valid, reply_ends, reply_data
    Memory headers_ends, name_ends, name_data, header_value_ends, header_value_data

cdef class ColumnBuffer:
    # A finished, read-only buffer with the buffer protocol.
    cdef uint8_t* data
    cdef Py_ssize_t size
    cdef ColumnBuffer whole         # whose memory it is; None: its own

cdef class Columns:
    cdef bytes stream
    cdef const uint8_t* stream_data
    cdef size_t stream_size
    cdef int32_t partition
    cdef int wanted
    # what is being read
    cdef Bytes batches              # None: nothing is loaded
    cdef size_t batch_at            # position of the batch to go on with
    cdef size_t record_at           # position of the record to go on with; 0: at the first one of its batch
    cdef uint32_t record_index      # which one of the batch that is
    cdef int64_t behind_batch       # first offset that the next batch may have
    cdef int64_t last_offset        # of the record before, in the same batch
    cdef int64_t last_timestamp
    cdef int64_t next_offset_       # records below are passed over
    cdef int64_t end_offset
    # the subject of the row before, and how long it was written
    cdef const uint8_t* last_subject
    cdef uint32_t last_subject_size
    cdef size_t last_subject_written
    # what was written
    cdef uint32_t rows_
    cdef size_t row_bytes           # of all rows so far, as the budget counts them
    cdef int64_t key_nulls, value_nulls, reply_nulls
    cdef uint32_t entries           # headers of all rows
    cdef Buffers to
    # what is the same in every row, and for how many rows it was written
    cdef ColumnBuffer stream_ends, stream_texts, partitions
    cdef uint32_t stream_rows, partition_rows
    cdef int begin(self) except -1
    cdef int fill_rows(self, uint32_t rows_max, size_t bytes_max) noexcept nogil
    cdef int fill_batch(self, BatchView* batch, uint32_t rows_max, size_t bytes_max) noexcept nogil
    cdef int append_row(self, RecordView* record, uint64_t leader_epoch) noexcept nogil
    cdef int append_headers(self, RecordView* record) noexcept nogil
    cdef int overflow(self) noexcept nogil
    cdef void take_back(self, uint32_t entries, size_t names, size_t values) noexcept nogil
    cdef uint32_t same_name(self, uint32_t first) noexcept nogil
    cdef void remove_header(self, uint32_t index) noexcept nogil
    cdef tuple repeated_stream(self)
    cdef int repeat_stream(self, size_t written) except -1
    cdef ColumnBuffer repeated_partition(self)
