# Many messages published from inside the broker under one ack inbox: their correlation ids say which one an ack is for.

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from bascule.kernels.calls.publish cimport InternalReceiver
from bascule.kernels.envelope.messages cimport AckView


cdef class RowPublisher(InternalReceiver):
    cdef list requests
    cdef Py_ssize_t count
    cdef int64_t* offsets_          # of the rows that are acked; −1 of the others
    cdef uint32_t* waiting          # bytes of a row that waits for its ack, and 1; 0 of the others
    cdef readonly Py_ssize_t sent   # rows in front of it were published
    cdef readonly Py_ssize_t acked  # so many have their offsets
    cdef readonly Py_ssize_t unacked
    cdef readonly size_t unacked_bytes
    cdef readonly int32_t error     # of the first ack that said one
    cdef readonly bint is_lost      # the connection to NATS was lost while rows waited
    cdef Py_ssize_t wake_at         # the callback is called at this many unacked rows; −1: no caller waits
    cdef int wake(self) except -1
