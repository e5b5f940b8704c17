# The client's streaming calls: Subscribe and PublishAsync.

from libc.stdint cimport int64_t, uint8_t, uint32_t

from bascule.kernels.client.messages cimport MessageBatch
from bascule.kernels.grpc.client cimport ClientStream
from bascule.kernels.window.window cimport PublishColumns, PublishTarget, PublishWindow, Slot
from bascule.kernels.wire.buffers cimport Bytes


cdef class SubscribeClientStream(ClientStream):
    cdef public object on_ready
    cdef readonly bint confirmed
    cdef readonly int64_t last_offset
    cdef readonly Py_ssize_t waiting
    cdef readonly size_t waiting_bytes          # of complete batches and of the growing one
    cdef size_t batch_bytes
    cdef size_t waiting_bytes_max
    cdef size_t bytes_before                    # size of the last complete batch: initial room of the next
    cdef size_t messages_before
    cdef Bytes request
    cdef object complete                        # deque of batches
    cdef MessageBatch growing                   # None when there is none
    cdef bint announced                         # on_ready was called and nothing was taken since
    cdef int take_message(self, const uint8_t* data, size_t size) except -1
    cdef int put_aside(self) except -1
    cdef int announce(self) except -1


cdef class PublishAsyncClientStream(ClientStream):
    cdef public object on_writable
    cdef public object on_ended
    cdef readonly PublishWindow window
    cdef object queue                           # deque of columns that are not completely sent
    cdef bint room_wanted                       # a caller was refused for lack of room
    cdef bint pumping
    cdef bint is_open(self) except -1
    cdef int pump(self) except -1               # send queued columns, then call on_writable if there is room
    cdef int send_columns(self, PublishColumns columns) except -1
    cdef int64_t publish_one(
        self, PublishTarget target, bytes value, bytes key, headers, int64_t expected_offset, object waiter, double deadline
    ) except -2
    cdef size_t send(
        self, PublishTarget target, const uint8_t* key, size_t key_size, const uint8_t* value, size_t value_size,
        const uint8_t* headers, size_t headers_size, Slot* slot, int64_t expected_offset
    ) except? 0
