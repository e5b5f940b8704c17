# gRPC calls over HTTP/2, for kernels that answer them. What a call's bytes mean is up to subclasses of GrpcStream; they never see
# frames, windows or headers.
#
# A subclass overrides the hooks and calls the methods below them. Hooks are called with the GIL held, from within
# GrpcConnection.received(), flush() or lost(). A hook may finish its own call or any other. An exception that leaves a hook ends the
# call with INTERNAL and is given to connection.on_fault.

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from bascule.kernels.http2 cimport Http2Connection
from bascule.kernels.http2_sender cimport OUTGOING_HIGH, OUTGOING_LOW, Http2Stream
from bascule.kernels.output cimport OutputBuffer
from bascule.kernels.request_head cimport RequestHead

cdef class GrpcStream(Http2Stream):
    # Inherited: id, half_closed, closed (readonly), outgoing (length-prefixed messages that wait to be cut into DATA frames).
    cdef readonly GrpcConnection connection     # None once closed
    cdef readonly bytes path
    cdef readonly list metadata                 # [(name, value)] bytes, without pseudo headers and grpc's own; -bin decoded. Not to be changed
    cdef readonly double timeout                # seconds of grpc-timeout, −1 when the client set none
    cdef readonly double deadline               # when that ends, on the monotonic clock; −1 without timeout
    cdef readonly bint finished                 # finish() was called: nothing more is taken or given
    cdef public bint lasting                    # goes on until somebody ends it: a server that stops does not wait for it
    cdef uint8_t encoding                       # of the client's compressed messages
    cdef OutputBuffer assembly                  # a message that has not arrived completely; None when there is none

    # hooks
    cdef int on_open(self) except -1
    cdef int on_message(self, const uint8_t* data, size_t size) except -1       # one whole message; the bytes are gone afterwards
    cdef int on_half_close(self) except -1                                      # the client has sent its last message
    cdef int on_room(self) except -1            # outgoing is at OUTGOING_LOW or below and the peer's windows are open: write more
    cdef int on_closed(self) except -1          # exactly once, whatever ended it (trailers sent, reset, connection lost, shutdown)

    # for subclasses. What is written to a call that has ended goes nowhere, without an error.
    cdef uint8_t* begin_message(self, size_t size) except NULL                  # where `size` bytes go, behind a prefix; then
    cdef int end_message(self, size_t size) except -1                           # what it came to, at most what begin_message was told
    cdef int send_message(self, const uint8_t* data, size_t size) except -1     # both in one; calls want_flush() itself
    cdef int want_flush(self) except -1         # have frames cut from `outgoing` at the end of this turn; idempotent, cheap
    cdef size_t room(self) except? 0            # bytes that may sensibly be put into outgoing now; after a 0 on_room() will be called
    cpdef send_headers(self)                    # response headers now instead of with the first message
    cpdef finish(self, int status, str message=*)                               # trailers behind what is outgoing
    cpdef withhold(self, bint on)               # while on, the client stops after its window (ConnectionLimits.stream_window_bytes)

    cdef int hand_on(self, const uint8_t* prefix, size_t size) except -1
    cdef int hand_on_compressed(self, const uint8_t* data, size_t size) except -1
    cdef size_t assemble(self, const uint8_t* data, size_t size) except? 0
    cdef int drop_assembly(self) except -1
    cdef int fault(self, object error) except -1


cdef class GrpcConnection(Http2Connection):
    # Inherited: output, unsent, on_output, on_fault, closing, draining, flush().
    cdef public object peer                     # of the shell's: has .common_name and .address. Kernels never look inside
    cdef readonly dict routes                   # path -> callable that makes the GrpcStream of a call
    cdef readonly uint32_t timed_calls          # open calls with a deadline
    cdef dict heads                             # header blocks seen before -> RequestHead, valid for one state of the decoder's table
    cdef uint64_t heads_generation
    cdef size_t assembly_bytes                  # in all unfinished messages
    cdef GrpcStream make_stream(self, object route)
    cdef bint is_acceptable(self, RequestHead head) noexcept
    cdef bytes refusal(self, RequestHead head)


cdef class CallStream(GrpcStream):              # hooks as methods, for calls answered in Python
    pass


cdef class UnaryStream(GrpcStream):             # one message in, one out; `handler(stream, request)` at half-close
    cdef readonly object handler
    cdef public object task                     # what works on the answer: its cancel() is called when the call ends before that
    cdef bytes request
    cdef bint reply_at_once(self, const uint8_t* data, size_t size) except -1
