# A Subscribe call: record batches in, messages out. Its subscription, in Python, decides what to read and when to end.

from libc.stdint cimport int64_t

from bascule.kernels.calls.delivery cimport Delivery, DeliveryCursor
from bascule.kernels.grpc.server cimport GrpcStream
from bascule.kernels.wire.buffers cimport Bytes


cdef class SubscribeStream(GrpcStream):
    cdef object shell                   # called with this stream and the request
    cdef public object subscription     # has on_room() and on_closed(); None until the shell has made one
    cdef bytes request
    cdef Delivery delivery
    cdef Bytes batches                  # batches being delivered; None between reads
    cdef DeliveryCursor cursor
    cdef int64_t end_offset
