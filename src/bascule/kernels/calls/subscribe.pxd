# A Subscribe call: record batches in, messages out. What is read, and when it ends, is decided by its subscription, in Python.

from libc.stdint cimport int64_t

from bascule.kernels.calls.delivery cimport Delivery, DeliveryCursor
from bascule.kernels.grpc.server cimport GrpcStream
from bascule.kernels.wire.buffers cimport Bytes


cdef class SubscribeStream(GrpcStream):
    cdef object shell                   # called with this stream and the request
    cdef public object subscription     # has on_room() and on_closed(); None until the shell has made one
    cdef bytes request
    cdef Delivery delivery
    cdef Bytes batches                  # what is being delivered; None between reads
    cdef DeliveryCursor cursor
    cdef int64_t end_offset
