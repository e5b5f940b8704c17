# gRPC calls over HTTP/2, for kernels that make them. What a call's bytes mean is up to subclasses of ClientStream; they never see
# frames, windows or headers.
#
# A subclass overrides the hooks and calls the methods below them. Hooks are called with the GIL held, from within
# ClientConnection.open(), received(), flush(), expire(), lost() or a call's own cancel(). A hook may cancel its own call or any other. An
# exception that leaves a hook ends the call with INTERNAL and is given to connection.on_fault.
#
# Order of hooks: on_headers (not for a call that fails at once), then of every read its on_message… and one on_messages_done, at the end
# on_finished, exactly once and last. Messages that came before it were handed over before it, with their on_messages_done.

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from bascule.kernels.grpc_messages cimport MessageStream
from bascule.kernels.hpack cimport HeaderField, HeaderSink
from bascule.kernels.http2 cimport Http2Connection


cdef class ResponseHead(HeaderSink):
    # What the header block or the trailers of a response say.
    cdef readonly int http_status               # −1 without
    cdef readonly int status                    # of grpc-status; −1 without or when it is no number
    cdef readonly bytes message                 # of grpc-message, percent-decoded; None without
    cdef readonly list metadata                 # [(name, value)] bytes, without pseudo headers and grpc's own; -bin decoded
    cdef readonly bytes content_type
    cdef readonly int64_t content_length        # −1 without
    cdef readonly uint8_t encoding
    cdef readonly bint is_grpc                  # of its content-type
    cdef readonly bint malformed                # RFC 9113 §8.1.1
    cdef readonly bint too_large
    cdef bint regular_seen
    cdef int pseudo(self, HeaderField* field) except -1
    cdef int add_length(self, HeaderField* field) except -1


cdef class ClientStream(MessageStream):
    # Inherited: id (0 while it waits for its turn), half_closed (the server has sent its last), closed, finished, connection (None before
    # open() and once closed), outgoing, begin_message, end_message, send_message, want_flush, room, withhold; hooks on_message, on_room.
    # What is written before the call has begun is sent when it does.
    cdef readonly bytes path
    cdef readonly double timeout                # seconds, −1 without
    cdef readonly double deadline               # on the monotonic clock; −1 without
    cdef readonly int status                    # −1 until finished
    cdef readonly str status_text
    cdef readonly bint unprocessed              # finished, and the server has surely not seen the call: safe to be made again
    cdef readonly bint sending_closed           # half_close() was called
    cdef readonly uint64_t received             # messages
    cdef readonly list headers                  # response metadata; None until it is there
    cdef readonly list trailers                 # the same of the trailers
    cdef bytes request_head                     # header block of a call that waits for its turn
    cdef bint headers_seen
    cdef bint done_pending                      # messages were handed over and on_messages_done not called yet
    cdef ClientStream done_next

    # hooks
    cdef int on_headers(self) except -1
    cdef int on_messages_done(self) except -1   # after all messages of one read were handed over
    cdef int on_finished(self, int status, bytes message) except -1      # trailers, reset, connection lost, deadline, cancelled

    # for subclasses and their users
    cpdef half_close(self)                      # no more messages of ours, behind what is outgoing
    cpdef cancel(self)                          # RST_STREAM CANCEL, if it has begun; on_finished with CANCELLED, at once

    cdef int finish(self, int status, str text, bint unprocessed) except -1
    cdef int settle(self) except -1
    cdef int response(self, ResponseHead head, bint ends) except -1
    cdef int trailing(self, ResponseHead head) except -1


cdef class ClientConnection(Http2Connection):
    # Inherited: output, unsent, on_output, on_fault, closing, draining (the server has sent GOAWAY: no more calls here), flush(), received(),
    # lost().
    cdef readonly bytes authority
    cdef readonly bytes scheme
    cdef readonly uint32_t peer_streams_max     # calls at the same time that the server takes; more wait for their turn
    cdef readonly uint32_t timed_calls          # with a deadline
    cdef readonly uint32_t goaway_code
    cdef readonly str goaway_text
    cdef readonly uint64_t pings_sent
    cdef readonly uint64_t pings_answered
    cdef bytes agent
    cdef dict heads                             # (path, metadata) -> header block without its timeout
    cdef object waiting                         # deque of calls that have not begun
    cdef uint32_t next_stream_id
    cdef uint32_t goaway_last_id
    cdef ClientStream done_first
    cdef str end_text                           # why the connection ended, for the calls that end with it

    cpdef open(self, ClientStream stream, bytes path, object metadata=*, double timeout=*)
    cdef int begin(self, ClientStream stream) except -1
    cdef int begin_waiting(self) except -1
    cdef int touch(self, ClientStream stream) except -1
    cdef int hand_over_done(self) except -1
    cdef ResponseHead read_response(self, const uint8_t* block, size_t size)
    cdef int abandon(self, ClientStream stream, uint32_t code) except -1


cdef class PyClientStream(ClientStream):
    # Hooks as methods, for calls made in Python: headers_received(), message(bytes), messages_done(), writable(), ended(status, text).
    pass


cdef class UnaryCall(ClientStream):
    # One message out, one in. `handler(call)` is called when it is finished: `reply` and `status` are there then.
    cdef readonly object handler
    cdef readonly bytes reply                   # None unless the status is OK
