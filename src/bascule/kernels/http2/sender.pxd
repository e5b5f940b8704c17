# The sending half of an HTTP/2 connection: streams with something to send, windows of the peer, frames in `output`.
#
# A stream is a passive record of windows and state with a few hooks; a subclass interprets its bytes.

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t

from bascule.kernels.memory.account cimport MemoryAccount
from bascule.kernels.wire.output cimport OutputBuffer

cdef double monotonic() noexcept nogil

cdef OutputBuffer NOWHERE       # where a stream that has ended writes; always emptied

# Bytes of one stream that wait for the peer's windows. Above HIGH, or its share when there are many, it should not write; at LOW or below, may_send() is called.
cdef enum:
    OUTGOING_HIGH = 262144
    OUTGOING_LOW = 65536


cdef class ConnectionLimits:
    # Bounds of one connection, shared by all of a server; limits.py explains each.
    cdef readonly uint32_t streams_max
    cdef readonly uint32_t stream_window_bytes
    cdef readonly uint32_t connection_window_bytes
    cdef readonly uint32_t header_list_bytes_max
    cdef readonly uint32_t header_block_bytes_max
    cdef readonly uint32_t continuations_max
    cdef readonly uint32_t output_bytes_max
    cdef readonly uint32_t outgoing_bytes_max
    cdef readonly uint32_t message_bytes_max
    cdef readonly uint32_t assembly_bytes_max
    cdef readonly uint32_t resets_burst
    cdef readonly uint32_t resets_per_second
    cdef readonly uint32_t pings_burst
    cdef readonly uint32_t pings_per_second
    cdef readonly uint32_t settings_burst
    cdef readonly uint32_t settings_per_second
    cdef readonly uint32_t idle_frames_burst
    cdef readonly uint32_t idle_frames_per_second
    cdef readonly uint32_t turn_us_max              # 0: a read and a flush are not cut short


cdef class Http2Stream:
    cdef readonly uint32_t id
    cdef readonly bint half_closed              # the peer has sent its last byte
    cdef readonly bint closed
    cdef OutputBuffer outgoing                  # body that waits to be cut into DATA frames
    cdef bytes tail                             # header block that ends the stream once `outgoing` is empty; empty when DATA ends it; else None
    cdef bint end_sent                          # our last byte is in the connection's output
    cdef bint head_sent                         # response headers are in the connection's output
    cdef bint queued                            # in the connection's queue of streams to be flushed
    cdef bint withheld                          # the peer gets no more window for this stream
    cdef Http2Stream queue_next
    cdef Http2Stream queue_previous
    cdef int64_t send_window
    cdef int64_t receive_window
    cdef uint32_t receive_consumed              # received bytes that no WINDOW_UPDATE has returned yet
    cdef int64_t body_left                      # of the announced content-length; −1 when none was announced
    cdef int received_data(self, const uint8_t* data, size_t size) except -1
    cdef int received_end(self) except -1
    cdef int may_send(self) except -1           # windows are open and little is outgoing
    cdef int has_ended(self) except -1          # exactly once, after it has left the connection
    cdef size_t held_bytes(self) noexcept       # memory that ends with the stream
    cdef int shed(self) except -1               # end now and free that memory, because there is too little


cdef class Http2Sender:
    cdef public object peer                     # set by the shell; opaque to kernels
    cdef readonly OutputBuffer output           # frames to be sent
    cdef size_t unsent_bytes                    # bytes the transport still holds; Python code sets `unsent`
    cdef readonly MemoryAccount memory          # charged with all buffers of this connection; None when nothing counts them
    cdef public object on_output                # called without arguments, at most once between two flushes, when there is something to send
    cdef public object on_fault                 # called with an exception that one of our own hooks raised
    cdef readonly bint closing                  # to be closed once `output` is sent; nothing more is read
    cdef readonly bint draining                 # GOAWAY was sent: calls in progress continue, new ones are ignored
    cdef readonly uint32_t error_code           # of the GOAWAY that ended this connection
    cdef readonly str error_text
    cdef readonly uint32_t last_stream_id       # the highest id in use, of client or server
    cdef bint is_client                         # this side opens the streams
    cdef readonly ConnectionLimits limits
    cdef dict streams
    cdef list spare_buffers
    cdef size_t assembly_bytes                  # in the unfinished messages of all streams
    cdef Http2Stream recent                     # the stream looked up last: most frames are for the same as the one before
    cdef Http2Stream queue_first
    cdef Http2Stream queue_last
    cdef bint output_wanted                     # `on_output` was called and flush() not yet
    cdef bint table_update_sent                 # the first header block tells the peer that we keep no table
    cdef bint calls_answered                    # something but acknowledgements was sent since the last PING
    cdef bytes response_head                    # header block before the first DATA of every response; set by the subclass
    cdef int64_t send_window
    cdef int64_t peer_stream_window
    cdef uint32_t peer_frame_bytes_max
    cdef uint32_t[64] own_resets                # ids of streams that were closed while the peer may have been sending, the oldest overwritten
    cdef uint32_t own_resets_count

    cdef double turn_ends                       # time at which a read or a flush pauses; 0 when it does not
    cdef int32_t until_clock                    # steps until the next look at the clock

    cdef bint is_turn_over(self) noexcept
    cdef int check_memory(self) except -1       # after a read and after a flush
    cdef Http2Stream find(self, uint32_t stream_id)
    cdef int register(self, Http2Stream stream, uint32_t stream_id) except -1
    cdef int close_stream(self, Http2Stream stream) except -1
    cdef int close_all(self) except -1
    cdef int report(self, object error) except -1
    cdef int notify(self) except -1             # there is something to send
    cdef bint has_output_room(self) noexcept
    cdef size_t outgoing_share(self) noexcept   # how much one stream may have outgoing, so that all together stay bounded
    cdef int enqueue(self, Http2Stream stream) except -1
    cdef int dequeue(self, Http2Stream stream) except -1
    cpdef flush(self)
    cdef int serve(self, Http2Stream stream) except -1
    cdef int cut(self, Http2Stream stream) except -1
    cdef int send_head(self, Http2Stream stream) except -1
    cdef int send_header_block(self, uint32_t stream_id, bytes block, bint ends) except -1
    cdef int end_stream(self, Http2Stream stream) except -1
    cdef uint8_t* reserve(self, size_t size) except NULL
    cdef int put_control(self, uint8_t kind, uint8_t flags, uint32_t stream_id, const uint8_t* payload, uint32_t length) except -1
    cdef int put_goaway(self, uint32_t code, str text) except -1
    cdef int put_rst(self, uint32_t stream_id, uint32_t code) except -1
    cdef int put_window_update(self, uint32_t stream_id, uint32_t increment) except -1
    cdef int put_settings(self, tuple settings) except -1       # pairs of name and value, and the connection's window
    cdef int connection_error(self, uint32_t code, str text) except -1
    cdef void remember_reset(self, uint32_t stream_id) noexcept
    cdef bint was_reset_by_us(self, uint32_t stream_id) noexcept
    cdef OutputBuffer take_buffer(self)
    cdef int return_buffer(self, OutputBuffer buffer) except -1
