# Publishes that wait for their ack, for the kernels that send them.
#
# A publish has a slot in a window until it is answered or given up. Its correlation id on the wire is the decimal number
# `generation * size + slot`, where the generation counts how often the slot was used: an answer finds its slot without a search, and
# a late answer, after the slot was reused, is recognised.

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from bascule.kernels.envelope.messages cimport AckView
from bascule.kernels.window.columns cimport Column
from bascule.kernels.window.wire cimport ResponseView
from bascule.kernels.wire.buffers cimport Bytes

cdef enum Outcome:
    OUTCOME_STORED = 0
    OUTCOME_WAITING = -1
    OUTCOME_IS_UNKNOWN = -2
    OUTCOME_NOT_SENT = -3
    OUTCOME_SENT = -4               # no ack was requested
    OUTCOME_FAILED = 1              # and up: plus the code of a PublishAsyncError

cdef struct Slot:
    uint64_t id                     # correlation id of the current use, or of the last one
    uint64_t number                 # sequence number of the publish in the window
    int64_t row                     # row of a PublishColumns that waits; −1 for another waiter
    double deadline                 # 0 without
    uint32_t next_free
    bint used


cdef class Ack:
    cdef readonly str stream
    cdef readonly str partition_subject
    cdef readonly str message_subject
    cdef readonly str ack_inbox
    cdef readonly str correlation_id
    cdef readonly int64_t offset
    cdef readonly int64_t reception_timestamp
    cdef readonly int64_t commit_timestamp
    cdef readonly int32_t ack_policy
    cdef readonly int32_t error
    cdef readonly bint duplicate
    cdef public int32_t partition   # −1 if it is not known: the wire does not carry it
    cdef tuple fields(self)


cdef class PublishTarget:
    cdef readonly str stream
    cdef readonly int32_t partition
    cdef readonly int32_t ack_policy
    cdef bytes encoded              # fields 3, 4 and 8 of a PublishRequest


cdef class PublishColumns:
    cdef readonly PublishTarget target
    cdef object waiter
    cdef public double deadline
    cdef Bytes values
    cdef Column value_ends
    cdef Bytes keys                 # None without keys
    cdef Column key_ends
    cdef Bytes headers              # None without headers
    cdef Column header_ends
    cdef Py_ssize_t count
    cdef bint begun                 # publish_columns() was called
    cdef readonly Py_ssize_t sent
    cdef readonly Py_ssize_t answered
    cdef readonly Py_ssize_t failed
    cdef readonly dict texts
    cdef Column offset_column       # int64
    cdef Column outcome_column      # int32
    cdef void span(self, Py_ssize_t row, const uint8_t** value, size_t* value_size, const uint8_t** key, size_t* key_size) noexcept
    cdef void header_span(self, Py_ssize_t row, const uint8_t** headers, size_t* size) noexcept
    cdef int answer(self, int64_t row, int32_t outcome, int64_t offset, str text) except -1
    cdef int give_up_rest(self) except -1       # mark the rows that were not sent
    cdef int tell(self) except -1               # give the waiter its result


cdef class PublishWindow:
    cdef public object on_failed
    cdef public object on_lost
    cdef object on_freed            # called without arguments when slots were given up
    cdef readonly uint32_t size
    cdef readonly uint32_t outstanding
    cdef readonly uint64_t published
    cdef readonly uint64_t acknowledged
    cdef readonly uint64_t failed
    cdef readonly uint64_t strays
    cdef Slot* slots
    cdef list waiters
    cdef uint32_t first_free        # `size` when there is none
    cdef Ack last                   # most acks have the same texts
    cdef Slot* occupy(self, object waiter, int64_t row, double deadline) except NULL     # only while one is free
    cdef object vacate(self, Slot* slot)                                                # the waiter
    cdef Slot* find(self, const uint8_t* id, uint32_t size) noexcept                    # NULL for an unknown id
    cdef Ack make_ack(self, AckView* view)
    cdef int succeed(self, AckView* view) except -1             # or fail, if the ack has an error; counts strays
    cdef int fail(self, const uint8_t* id, uint32_t id_size, int32_t code, str text) except -1
    cdef int end_slot(self, Slot* slot, int32_t code, str text) except -1
    cdef int answer(self, ResponseView* view) except -1
    cdef Py_ssize_t lose(self, double now, bint all) except -1


# A copy of int64 positions. ValueError unless they increase and are at most `bytes_there`.
cdef Column checked_ends(str name, object ends, Py_ssize_t bytes_there)
