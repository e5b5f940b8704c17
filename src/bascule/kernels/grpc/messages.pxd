# gRPC messages in the DATA of a stream, for both sides of a call: assembled from frames, written with their prefix.
#
# A message is a byte (1: compressed), its length as four big-endian bytes, and itself.

from libc.stdint cimport uint8_t, uint64_t

from bascule.kernels.http2.connection cimport Http2Connection
from bascule.kernels.http2.sender cimport Http2Stream
from bascule.kernels.wire.output cimport OutputBuffer

cdef enum:
    PREFIX_SIZE = 5

# The gRPC statuses that kernels set themselves.
cdef enum:
    STATUS_OK = 0
    STATUS_CANCELLED = 1
    STATUS_UNKNOWN = 2
    STATUS_DEADLINE_EXCEEDED = 4
    STATUS_PERMISSION_DENIED = 7
    STATUS_RESOURCE_EXHAUSTED = 8
    STATUS_UNIMPLEMENTED = 12
    STATUS_INTERNAL = 13
    STATUS_UNAVAILABLE = 14
    STATUS_UNAUTHENTICATED = 16


cdef str NO_MEMORY_LEFT          # the text of STATUS_RESOURCE_EXHAUSTED for lack of memory


cdef class MessageStream(Http2Stream):
    # Inherited: id, half_closed, closed (readonly), outgoing (length-prefixed messages that wait to be cut into DATA frames).
    cdef readonly Http2Connection connection    # None once closed
    cdef readonly bint finished                 # messages of the peer are ignored from now on
    cdef uint64_t message_count                 # of those that were handed on
    cdef bint sealed                            # our messages are discarded from now on
    cdef uint8_t encoding                       # of the peer's compressed messages
    cdef OutputBuffer assembly                  # a message that has not arrived completely; None when there is none
    cdef list unread                            # messages of a call whose client is not known yet; None once it is
    cdef size_t kept_bytes                      # messages that subclasses keep, charged to the connection's account

    # hooks
    cdef int on_message(self, const uint8_t* data, size_t size) except -1       # one complete message; the bytes are valid during the call
    cdef int on_room(self) except -1            # outgoing is at OUTGOING_LOW or below and the peer's windows are open: write more

    # for subclasses. Messages written to a call that has ended are discarded without an error.
    cdef uint8_t* begin_message(self, size_t size) except NULL                  # returns room for `size` bytes after a prefix; then
    cdef int end_message(self, size_t size) except -1                           # the actual size, at most that of begin_message
    cdef int send_message(self, const uint8_t* data, size_t size) except -1     # both in one; calls want_flush() itself
    cdef int want_flush(self) except -1         # send `outgoing` at the end of this loop turn; idempotent, cheap
    cdef size_t room(self) except? 0            # bytes that outgoing should take now; after a 0, on_room() will be called
    cdef bytes keep(self, const uint8_t* data, size_t size)     # a message to be kept until the call ends; None if it was ended instead
    cdef int drop_kept(self) except -1          # kept messages are kept no longer
    cpdef withhold(self, bint on)               # while on, the peer stops after its window (ConnectionLimits.stream_window_bytes)

    # for the two sides of a call
    cdef int break_off(self, int status, str text) except -1       # the peer's messages cannot be read: end the call
    cdef int fault(self, object error) except -1                # one of our own hooks has raised
    cdef int hand_on(self, const uint8_t* prefix, size_t size) except -1
    cdef int hand_on_compressed(self, const uint8_t* data, size_t size) except -1
    cdef int deliver_message(self, const uint8_t* data, size_t size) except -1
    cdef int drop_unread(self) except -1
    cdef size_t assemble(self, const uint8_t* data, size_t size) except? 0
    cdef int drop_assembly(self) except -1
    cdef bint is_without_memory(self) noexcept
