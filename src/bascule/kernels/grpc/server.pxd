# gRPC calls over HTTP/2, for kernels that answer them. Subclasses of GrpcStream interpret a call's bytes; they never see
# frames, windows or headers.
#
# A subclass overrides the hooks and calls the methods below them. Hooks are called with the GIL held, from within
# GrpcConnection.received(), flush() or lost(). A hook may finish its own call or any other. An exception that leaves a hook ends the
# call with INTERNAL and is given to connection.on_fault.

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from bascule.kernels.grpc.messages cimport MessageStream
from bascule.kernels.headers.request_head cimport RequestHead
from bascule.kernels.http2.sender cimport OUTGOING_HIGH, OUTGOING_LOW
from bascule.kernels.http2.server cimport Http2Server

cdef class GrpcStream(MessageStream):
    # Inherited: id, half_closed, closed, finished (finish() was called), connection (None once closed), outgoing; begin_message, end_message,
    # send_message, want_flush, room, withhold; hooks on_message, on_room.
    cdef readonly bytes path
    cdef readonly list metadata                 # [(name, value)] bytes, without pseudo headers and grpc's own; -bin decoded. Not to be changed
    cdef readonly double timeout                # seconds of grpc-timeout, −1 when the client set none
    cdef readonly double deadline               # when that ends, on the monotonic clock; −1 without timeout
    cdef public bint lasting                    # has no natural end, such as Subscribe: a server that stops does not wait for it
    cdef readonly object peer                   # the client of the call, None until it is known: the connection's, or that of admit()
    cdef bint opened                            # on_open() was called
    cdef bint ended_unread                      # the client has sent its last message before it was known

    # hooks
    cdef int on_open(self) except -1
    cdef int on_half_close(self) except -1                                      # the client has sent its last message
    cdef int on_closed(self) except -1          # exactly once, whatever ended it (trailers sent, reset, connection lost, shutdown)

    cdef int open_call(self) except -1
    cpdef admit(self, peer)                     # the client is known: on_open(), and the messages that have arrived meanwhile

    # for subclasses
    cpdef send_headers(self)                    # response headers now instead of with the first message
    cpdef finish(self, int status, str message=*)                               # sends trailers after the outgoing messages


cdef class GrpcConnection(Http2Server):
    # Inherited: peer (has .common_name and .address), output, unsent, on_output, on_fault, closing, draining, flush().
    cdef readonly dict routes                   # path -> callable that makes the GrpcStream of a call
    cdef readonly uint32_t timed_calls          # open calls with a deadline
    cdef public object identify                 # called with each new stream: returns its peer, or None when admit() or finish() will follow;
                                                # None: every call has the connection's peer
    cdef dict heads                             # header blocks seen before -> RequestHead, valid for one state of the decoder's table
    cdef uint64_t heads_generation
    cdef int ask_for_peer(self, GrpcStream stream) except -1
    cdef GrpcStream make_stream(self, object route)
    cdef bint is_acceptable(self, RequestHead head) noexcept
    cdef bytes refusal(self, RequestHead head)


cdef class CallStream(GrpcStream):              # hooks as methods, for calls answered in Python
    pass


cdef class UnaryStream(GrpcStream):             # one message in, one out; `handler(stream, request)` at half-close
    cdef readonly object handler
    cdef public object task                     # computes the answer; its cancel() is called when the call ends first
    cdef bytes request
    cdef bint reply_at_once(self, const uint8_t* data, size_t size) except -1
