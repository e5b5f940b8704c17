# gRPC calls over HTTP/2, for kernels that make them. Subclasses of ClientStream interpret a call's bytes; they never see
# frames, windows or headers.
#
# A subclass overrides the hooks and calls the methods below them. Hooks are called with the GIL held, from within
# ClientConnection.open(), received(), flush(), expire(), lost(), close() or a call's own cancel(). A hook may cancel its own call or any
# other. An exception that leaves a hook ends the call with INTERNAL and is given to connection.on_fault.
#
# Order of hooks: on_headers (not for a call that fails at once), then of every read its on_message… and one on_messages_done, at the end
# on_finished, exactly once and last. Messages that came before it were handed over before it, with their on_messages_done.
# on_room comes once after open(), when the call has begun, and later as messages.pxd says; never after half_close().

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from bascule.kernels.grpc.messages cimport MessageStream
from bascule.kernels.headers.response_head cimport ResponseHead
from bascule.kernels.http2.connection cimport Http2Connection


cdef class ClientStream(MessageStream):
    # Inherited: id (0 while it waits for its turn), half_closed (the server has sent its last), closed, finished, connection (None before
    # open() and once closed), message_count (`received` in Python), outgoing; begin_message, end_message, send_message, want_flush, room,
    # withhold; hooks on_message, on_room. Messages written before open() are discarded; those written before the call begins are sent when it begins.
    cdef readonly bytes path
    cdef readonly double timeout                # seconds, −1 without
    cdef readonly double deadline               # on the monotonic clock; −1 without
    cdef readonly int status                    # −1 until finished
    cdef readonly str status_text
    cdef readonly bint unprocessed              # finished, and the server certainly did not process the call: a retry is safe
    cdef readonly bint sending_closed           # half_close() was called
    cdef readonly list headers                  # metadata of the response; None until it is there
    cdef readonly list trailers                 # the same of its trailers
    cdef bytes request_head                     # header block of a call that waits for its turn
    cdef bint headers_seen
    cdef bint done_queued                       # in the connection's list of calls that this read was about
    cdef uint64_t done_count                    # messages that on_messages_done was called for
    cdef ClientStream done_next

    # hooks
    cdef int on_headers(self) except -1
    cdef int on_messages_done(self) except -1   # after all messages of one read were handed over
    cdef int on_finished(self, int status, bytes message) except -1     # trailers, reset, connection lost, deadline, cancelled

    # for subclasses and their users
    cpdef half_close(self)                      # ends our side after the outgoing messages
    cpdef cancel(self)                          # on_finished with CANCELLED at once; sends RST_STREAM

    cdef int finish(self, int status, str text, bint unprocessed, int64_t reset_code) except -1     # code: of RST_STREAM, −1 for none
    cdef int settle(self) except -1
    cdef int response(self, ResponseHead head, bint ends) except -1
    cdef int trailing(self, ResponseHead head) except -1


cdef class ClientConnection(Http2Connection):
    # Inherited: output, unsent, on_output, on_fault, closing, draining (the server has sent GOAWAY: no more calls here), flush(), received().
    cdef readonly bytes authority
    cdef readonly bytes scheme
    cdef readonly uint32_t peer_streams_max     # concurrent calls that the server accepts; further calls wait
    cdef readonly uint32_t goaway_code
    cdef readonly str goaway_text
    cdef readonly uint64_t pings_sent
    cdef readonly double earliest_deadline      # earliest deadline of all calls, or earlier; −1 without deadlines
    cdef bytes agent
    cdef dict heads                             # (path, metadata) -> header block without its timeout
    cdef object waiting                         # calls that have not begun, in order
    cdef uint32_t next_stream_id
    cdef uint32_t goaway_last_id
    cdef ClientStream done_first
    cdef int end_status                         # of the calls that end with the connection
    cdef str end_text

    cpdef open(self, ClientStream stream, bytes path, object metadata=*, double timeout=*)      # raises ValueError for a path or metadata that gRPC forbids
    cdef bytes encode_head(self, bytes path, object metadata)
    cdef int begin(self, ClientStream stream) except -1
    cdef int begin_waiting(self) except -1
    cdef int retire(self, ClientStream stream, int64_t reset_code) except -1
    cdef int refuse_new(self, uint32_t last_id) except -1
    cdef int touch(self, ClientStream stream) except -1
    cdef int hand_over_done(self) except -1


cdef class UnaryCall(ClientStream):
    # A unary call. `handler(call)` is called when it is finished, with `reply` and `status` set.
    cdef readonly object handler
    cdef readonly bytes reply                   # None unless the status is OK
